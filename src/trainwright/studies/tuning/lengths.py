"""How long a trial is, in the measure that its config gives: epochs, steps or rounds."""

from __future__ import annotations

from typing import Any

from trainwright.config.options import ROUNDS
from trainwright.config.schema import RunConfig
from trainwright.config.tuning import HalvingPruner
from trainwright.errors import ConfigError, Problem
from trainwright.records.result import Result
from trainwright.samplers.base import Space
from trainwright.studies.trials import StudyConfig

_ROUNDS = f"model.params.{ROUNDS}"


def with_length(base: StudyConfig, pruner: HalvingPruner, space: Space) -> StudyConfig:
    """Return the config of the trials of a study with rungs: of the length that the pruner gives, if any.

    Raises:
        ConfigError: The length is searched, too, or is too short for one rung before its end; or the model is
            not trained step by step.
    """
    key = length_key(base.resolved.config)
    if any(parameter.key == key for parameter in space):
        message = f"is searched, but pruner {pruner.type} decides how long a trial trains; keep one"
        raise ConfigError([Problem(message, f"tuning.space.{key}")])
    if pruner.max_resource is not None:
        base = base.with_overrides({key: pruner.max_resource})
    length, first = length_of(base.resolved.config), pruner.min_resource * pruner.reduction_factor
    if length < first:
        message = (
            f"the first of two rungs would end at {pruner.min_resource} and the second at {first}, but {key} "
            f"is {length}; train longer, or give a smaller min_resource or reduction_factor"
        )
        raise ConfigError([Problem(message, "tuning.pruner")])
    return base


def length_key(config: RunConfig) -> str:
    """Return the key that says how long a trial is.

    Raises:
        ConfigError: There is none.
    """
    if config.model.params.get(ROUNDS):
        return _ROUNDS
    for name in ("max_steps", "epochs"):
        if getattr(config.training, name) is not None:
            return f"training.{name}"
    message = f"{config.model.type} is trained in one step, which no rung divides; allowed: none"
    raise ConfigError([Problem(message, "tuning.pruner")])


def length_of(config: RunConfig) -> int:
    """Return the length of a trial, by its `length_key`.

    Raises:
        ConfigError: There is none.
    """
    section, _, name = length_key(config).rpartition(".")
    value = config.model.params[name] if section == "model.params" else getattr(config.training, name)
    return int(value)


def best_length(config: RunConfig, result: Result, step: int) -> dict[str, Any]:
    """Return the keys, with values, of a training that ends where another one was best.

    Args:
        config: The config of a whole training.
        result: The result of the other one.
        step: The step at which it was best.
    """
    try:
        key = length_key(config)
    except ConfigError:
        return {}  # one step
    epochs = result.epochs * step / max(1, result.steps)
    if key == "training.epochs":
        whole = round(epochs)
        is_end = abs(epochs - whole) < 1e-6 and whole > 0
        return {key: whole} if is_end else {key: None, "training.max_steps": step}
    return {} if step == result.steps and result.status == "completed" else {key: step}
