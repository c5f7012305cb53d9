"""Spaces to begin with: the keys that usually matter for a model, as its framework knows them.

Each is checked against the config before it is suggested.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainwright import plugins
from trainwright.config import Config, Overrides, Resolved
from trainwright.config import load as load_config
from trainwright.config.emit import inline
from trainwright.config.overrides import with_settings
from trainwright.config.schema import ModelConfig
from trainwright.errors import ConfigError, InputError
from trainwright.frameworks.base import Framework
from trainwright.frameworks.support.advice import BATCH, RATE
from trainwright.runs.catalog import Catalog
from trainwright.types import Suggestion

Spec = Any  # of one parameter, as in `tuning.space`
_DEFAULT = {"training.learning_rate": RATE, "training.batch_size": BATCH}  # of models without advice
_TRIALS_PER_PARAMETER = 10


def suggest(config: Config, overrides: Overrides = ()) -> str:
    """Return a `tuning` section (YAML) for a config: see `trainwright.suggest_tuning`."""
    resolved = load_config(config, overrides, Catalog())
    model = resolved.config.model.type
    advised = {
        key: advice
        for key, advice in _space(resolved.config.model).items()
        if _is_taken(key, advice.spec, resolved, config, overrides)
    }
    if not advised:
        raise InputError(
            f"nothing is known to be worth a search for {model}; docs/config.md has its options, and "
            "docs/tuning.md says how to write a space"
        )
    return _section(model, advised, resolved)


def _space(model: ModelConfig) -> Mapping[str, Suggestion]:
    """Return the keys that are worth a search: the framework's advice, or those of training by gradients."""
    name = model.framework or plugins.framework_of(model.type)
    framework: type[Framework] | None = None if name is None else plugins.adapter("framework", name)
    if framework is None:  # that of a class, which is not imported here
        return _DEFAULT if ":" in model.type else {}
    keys = {f"training.{key}" for key in framework.training_keys(model.type, model.params)}
    spaces = framework.advice.spaces
    advised = spaces.get(model.type) or spaces.get(str(name))  # of a class of the framework's only model
    return advised or (_DEFAULT if keys >= _DEFAULT.keys() else {})


def _is_taken(key: str, spec: Spec, resolved: Resolved, config: Config, overrides: Overrides) -> bool:
    """Return whether a config takes the ends of a range (all choices), and they have an effect."""
    values = spec if isinstance(spec, list) else [spec["low"], spec["high"]]
    for value in values:
        try:
            unused = load_config(config, with_settings(overrides, {key: value}), Catalog()).unused
        except ConfigError:
            return False
        if len(unused) > len(resolved.unused):
            return False
    return True


def _section(model: str, advised: Mapping[str, Suggestion], resolved: Resolved) -> str:
    metric = resolved.config.checkpoint.metric
    trials = _TRIALS_PER_PARAMETER * len(advised)
    lines = [
        f"tuning:  # of {model}; add it to the config, and start with: trainwright tune CONFIG",
        f"  metric: {metric}",
        f"  trials: {trials}  # ten for each parameter; more is better",
        "  space:",
    ]
    texts = {key: f"    {key}: {inline(advice.spec)}" for key, advice in advised.items()}
    width = max(map(len, texts.values()))
    lines += [f"{texts[key]:{width}}  # {advice.why}" for key, advice in advised.items()]
    return "\n".join(lines) + "\n"
