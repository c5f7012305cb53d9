"""The order of a study's jobs, as its config asks for it: by the horizon, rung by rung, or free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainwright.config.schema import RunConfig
from trainwright.config.tuning import HalvingPruner, HyperbandPruner, TuningConfig
from trainwright.records.trials import LENGTH, TrialLog
from trainwright.studies.tuning.agenda import Agenda, Free, InOrder
from trainwright.studies.tuning.lengths import length_key, length_of
from trainwright.studies.tuning.rungs import Rungs, hyperband
from trainwright.types import Mode


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

    The log keeps the numbers of trials that the study has had: of one with rungs, whose order depends on
    them, each; of another, those since it has gone on.

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
    limits = log.lengths()
    if trials > max(limits, default=0) and (log.trials or isinstance(pruner, HalvingPruner)):
        log.note(kind=LENGTH, trials=trials)
        limits.append(trials)
    if tuning.order == "free":
        return Free(trials, recorded)
    if not isinstance(pruner, HalvingPruner):
        return InOrder(trials, horizon)
    cycle = hyperband(pruner.min_resource, length_of(config), pruner.reduction_factor)
    if not isinstance(pruner, HyperbandPruner):
        cycle = cycle[:1]
    return Rungs.plan(cycle, limits, pruner.reduction_factor, horizon, mode)


def brackets_in(agenda: Agenda, config: RunConfig) -> dict[str, Any]:
    """Return what `result.json` says of the brackets of a study with rungs; nothing for one without."""
    if not isinstance(agenda, Rungs):
        return {}
    unit = {"training.epochs": "epochs", "training.max_steps": "steps"}.get(length_key(config), "rounds")
    brackets = [
        {"first": one.first, "sizes": list(one.sizes), "resources": list(one.resources)}
        for one in agenda.brackets
    ]
    return {"unit": unit, "brackets": brackets}
