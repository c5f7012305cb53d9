"""How long a trial is (in epochs, steps or rounds, as its config says), and the order of jobs by that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainyard.config.options import ROUNDS
from trainyard.config.schema import RunConfig
from trainyard.config.tuning import HalvingPruner, HyperbandPruner, TuningConfig
from trainyard.errors import ConfigError, Problem
from trainyard.records.result import Result
from trainyard.records.trials import TrialLog
from trainyard.samplers.base import Space
from trainyard.studies.trials import StudyConfig
from trainyard.studies.tuning.agenda import Agenda, Free, InOrder
from trainyard.studies.tuning.rungs import Rungs, hyperband
from trainyard.types import Mode

_ROUNDS = f"model.params.{ROUNDS}"


def with_length(base: StudyConfig, pruner: HalvingPruner, space: Space) -> StudyConfig:
    """Return the config of the trials of a study with rungs: of the length that the pruner gives, if any.

    Raises:
        ConfigError: The length is searched, too, or is too short for one rung before its end; or the model is
            not trained step by step.
    """
    key = _key(base.resolved.config)
    if any(parameter.key == key for parameter in space):
        message = f"is searched, but pruner {pruner.type} decides how long a trial trains; keep one"
        raise ConfigError([Problem(message, f"tuning.space.{key}")])
    if pruner.max_resource is not None:
        base = base.with_overrides({key: pruner.max_resource})
    length, first = _length(base.resolved.config), pruner.min_resource * pruner.reduction_factor
    if length < first:
        message = (
            f"the first of two rungs would end at {pruner.min_resource} and the second at {first}, but {key} "
            f"is {length}; train longer, or give a smaller min_resource or reduction_factor"
        )
        raise ConfigError([Problem(message, "tuning.pruner")])
    return base


def _key(config: RunConfig) -> str:
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


def _length(config: RunConfig) -> int:
    section, _, name = _key(config).rpartition(".")
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
        key = _key(config)
    except ConfigError:
        return {}  # one step
    epochs = result.epochs * step / max(1, result.steps)
    if key == "training.epochs":
        whole = round(epochs)
        is_end = abs(epochs - whole) < 1e-6 and whole > 0
        return {key: whole} if is_end else {key: None, "training.max_steps": step}
    return {} if step == result.steps and result.status == "completed" else {key: step}


def agenda_of(
    tuning: TuningConfig,
    config: RunConfig,
    trials: int,
    horizon: int,
    log: TrialLog,
    mode: Mode,
    recorded: Sequence[Sequence[int]] | None = None,
) -> Agenda:
    """Return the order of the jobs of a study.

    Where it depends on the number of trials, the log keeps each number that the study has had.

    Args:
        tuning: The options.
        config: The config of a trial.
        trials: The number of trials.
        horizon: After how many jobs a result is known.
        log: The log.
        mode: Whether the lowest or the highest value is best.
        recorded: In free order, of a study that repeats another one: what each trial did not know there.
    """
    pruner = tuning.pruner
    if tuning.order == "free":
        return Free(trials, recorded)
    if not isinstance(pruner, HalvingPruner):
        return InOrder(trials, horizon)
    limits = [note["trials"] for note in log.notes if note["kind"] == "trials"]
    if trials > max(limits, default=0):
        log.note(kind="trials", trials=trials)
        limits.append(trials)
    cycle = hyperband(pruner.min_resource, _length(config), pruner.reduction_factor)
    if not isinstance(pruner, HyperbandPruner):
        cycle = cycle[:1]
    return Rungs.plan(cycle, limits, pruner.reduction_factor, horizon, mode)


def brackets_in(agenda: Agenda, config: RunConfig) -> dict[str, Any]:
    """Return what `result.json` says of the brackets of a study with rungs; nothing for one without."""
    if not isinstance(agenda, Rungs):
        return {}
    unit = {"training.epochs": "epochs", "training.max_steps": "steps"}.get(_key(config), "rounds")
    brackets = [
        {"first": one.first, "sizes": list(one.sizes), "resources": list(one.resources)}
        for one in agenda.brackets
    ]
    return {"unit": unit, "brackets": brackets}
