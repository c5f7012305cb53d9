"""The check of `tuning.tuner` against the rest of its section."""

from __future__ import annotations

from pathlib import Path

from trainwright import plugins
from trainwright.config.schema import ModelConfig, RunConfig
from trainwright.config.tree import DEFAULT
from trainwright.config.tuning import TuningConfig
from trainwright.errors import ConfigError, Problem
from trainwright.runs.children.compatibility import LENGTH, refusal
from trainwright.runs.frameworks import framework_name
from trainwright.samplers.base import Space
from trainwright.studies.trials import StudyConfig
from trainwright.studies.tuning.goals import Goals
from trainwright.tuners.base import Tuner

CONFIG = "search.yaml"  # the config of the search; `config.yaml` would make the folder look like a run
_WITHOUT_WEIGHTS = ("dropout",)  # options of networks that change the shape of no weight
# What a tuner does itself, and where its options say how.
_INSTEAD = {
    "sampler": "proposes trials by itself (tuner.search of ray)",
    "pruner": "decides by itself which trials continue (tuner.scheduler of ray)",
    "parallel": "runs as many trials at once as fit (tuner.num_cpus of ray, and tuning.resources)",
    "horizon": "decides from whatever has ended first, so its trials are not a function of the config",
    "order": "decides from whatever has ended first in any case",
    "folds": "judges one run of a trial at a time; pruner: hyperband, without a tuner, goes with folds",
    "repeats": "judges one run of a trial at a time; pruner: hyperband, without a tuner, goes with repeats",
}


def tuner_of(tuning: TuningConfig) -> Tuner | None:
    """Return the tuner of a section, whose library is not imported yet; None if it has none.

    Raises:
        InputError: It is a plugin that cannot be used.
    """
    if tuning.tuner is None:
        return None
    cls = plugins.adapter("tuner", tuning.tuner.type)
    # The loader has checked the options as JSON, where a whole number is fine for a real one.
    tuner: Tuner = cls(cls.Params.model_validate(tuning.tuner.params, strict=False))
    return tuner


def forkable_keys(space: Space, config: RunConfig) -> list[str]:
    """Return the keys of a space that a fork may change, since the state fits all their values."""
    return [one.key for one in space if _fits(_long(one.key), config)]


def _fits(key: str, config: RunConfig) -> bool:
    section, _, option = key.partition(".")
    framework = plugins.adapter("framework", framework_name(config, None))
    if section not in ("training", "model") or key in LENGTH or refusal(key, config, framework) is not None:
        return False
    is_network = "batch_size" in framework.training_keys(config.model.type, config.model.params)
    return section == "training" or not is_network or option.removeprefix("params.") in _WITHOUT_WEIGHTS


def _long(key: str) -> str:
    """Return a key with its full path: options of the model may be written beside its type."""
    section, _, option = key.partition(".")
    inline = section == "model" and option.partition(".")[0] not in ModelConfig.model_fields
    return f"model.params.{option}" if inline else key


def check_tuner(goals: Goals, space: Space, base: StudyConfig, tuning: TuningConfig) -> None:
    """Refuse what a tuner and the rest of the section cannot do together.

    Raises:
        ConfigError: It is given.
    """
    tuner = tuner_of(tuning)
    if tuner is None:
        return
    assert tuning.tuner is not None
    name = tuning.tuner.type
    problems = [
        Problem(f"tuner {name} {why}; leave it out", f"tuning.{key}")
        for key, why in _INSTEAD.items()
        if _is_given(base, f"tuning.{key}")
    ]
    if goals.measured:
        key = "constraints" if goals.constraints else "metric"
        message = (
            f"tuner {name} searches by one metric; for several, leave the tuner out and use sampler: tpe"
        )
        problems.append(Problem(message, f"tuning.{key}"))
    if (tuning.resources.nproc or base.resolved.config.distributed.nproc) != 1:
        message = f"tuner {name} judges a trial within its process, so it has one; leave it out"
        problems.append(Problem(message, "tuning.resources.nproc"))
    if base.objects:
        problems.append(
            Problem(f"{name} trains in other processes, and data given as objects stay in this one", "data")
        )
    if (reason := tuner.refusal(space, forkable_keys(space, base.resolved.config))) is not None:
        problems.append(Problem(reason, "tuning.tuner"))
    if problems:
        raise ConfigError(problems)


def _is_given(base: StudyConfig, key: str) -> bool:
    """Return whether the user has written a key; the config that a study keeps has all of them."""
    return any(
        source != DEFAULT and Path(source.file).name != CONFIG
        for name, source in base.resolved.sources.items()
        if name == key or name.startswith(f"{key}.")
    )
