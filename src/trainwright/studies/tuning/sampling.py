"""The next trial of a search: the order of its stints, the parameters, and what the sampler knows.

A sampler knows the trials before, as far as the order of the stints shows them, and those of an earlier study
that the new one starts from.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright.config.schema import RunConfig
from trainwright.config.tuning import HalvingPruner, HyperbandPruner, TuningConfig
from trainwright.errors import InputError
from trainwright.records.journal import finite, number
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import (
    LENGTH,
    TIME_LIMIT,
    Ending,
    LoggedTrial,
    TrialLog,
    TrialStatus,
    read_trials,
)
from trainwright.runs.run_config import read_config
from trainwright.samplers.base import Observation, Parameter, Space, exists
from trainwright.studies.study import Json, Study
from trainwright.studies.tuning.goals import Goals
from trainwright.studies.tuning.plan import SearchPlan
from trainwright.studies.tuning.pruning import Rungs, hyperband
from trainwright.studies.tuning.trial_configs import length_key, length_of
from trainwright.studies.tuning.trial_order import Free, InOrder, TrialOrder, Turn
from trainwright.types import Mode

log = logging.getLogger("trainwright")
EARLIER = "earlier.json"  # in the study's folder: the earlier study may go on, or be deleted


class Proposals:
    """The stints of a study, decided one by one from plan and log: a resumed study makes the same ones.

    Args:
        plan: What the trials are a function of.
        log: The log of the study.
        order: The order of the stints.
        before: The number of the first stint that is not done any more; None: all stints are done.
        earlier: The trials of another study, known to all.
    """

    def __init__(
        self,
        plan: SearchPlan,
        log: TrialLog,
        order: TrialOrder,
        before: int | None = None,
        earlier: Sequence[Observation] = (),
    ) -> None:
        self._plan, self._log, self._order, self._earlier = plan, log, order, earlier
        self._before = math.inf if before is None else before
        self._began = time.monotonic()

    def next(self) -> Turn | None:
        """Return the next stint; None if there is no more, or if it cannot be decided yet.

        A time limit that is reached is a decision, which is written to the log.
        """
        turn = self._order.next(self._log.trials)
        if turn is None or turn.stint >= self._before or self._log.is_over_time:
            return None
        target, goals = self._plan.tuning.target, self._plan.goals
        known = self._order.known(self._log.trials, turn.stint)
        if any(goals.is_reached(target, ending.value) for ending in known if ending is not None):
            return None
        limit = self._plan.tuning.max_minutes
        if limit is not None and time.monotonic() - self._began >= 60 * limit:
            self._log.note(kind=TIME_LIMIT, before=turn.stint)
            return None
        return turn

    def params(self, turn: Turn) -> Json:
        """Return the parameters of the trial that begins with a stint."""
        return self._plan.sampler.propose(turn.trial, self._seen(turn))

    def replay(self) -> None:
        """Let a sampler that keeps a state in trials make the earlier proposals of a resumed study again.

        The log tells what each of them knew: with rungs, more has become known of trials since.
        """
        if getattr(self._plan.sampler, "keeps_state", False):
            for trial in self._log.trials:
                self.params(Turn(trial.stints[0].number, trial.number))

    def observations(
        self, trials: Sequence[LoggedTrial], known: Sequence[Ending | None]
    ) -> list[Observation]:
        """Return trials as a sampler sees them, from what is known of their endings."""
        return [observation(trial, end, self._plan.goals) for trial, end in zip(trials, known, strict=False)]

    def _seen(self, turn: Turn) -> list[Observation]:
        """Return the earlier trials as the proposal of a trial may know them."""
        known = self._order.known(self._log.trials, turn.stint)[: turn.trial]
        return [*self._earlier, *self.observations(self._log.trials, known)]


def observation(trial: LoggedTrial, end: Ending | None, goals: Goals | None = None) -> Observation:
    """Return what a later trial may know of this one; a paused one is like one that was pruned there.

    Args:
        trial: The trial.
        end: How it has ended, if the later trial may know that; else None.
        goals: The goals, so that a study with several metrics or constraints tells all values.
    """
    if end is None:
        return Observation(trial.params, "running")
    status: TrialStatus = "pruned" if end.status == "paused" else end.status
    status = "failed" if end.value is None and status == "completed" else status
    seen = Observation(trial.params, status, end.value, end.curve)
    if status not in ("completed", "pruned") or goals is None or not goals.measured:
        return seen
    values = goals.values(end)
    if not values:
        return seen._replace(status="failed")
    return seen._replace(values=values, violations=goals.violations(end))


def order_of(
    tuning: TuningConfig,
    config: RunConfig,
    trials: int,
    horizon: int,
    log: TrialLog,
    mode: Mode,
    recorded: Sequence[Sequence[int]] | None = None,
) -> TrialOrder:
    """Return the order of the stints of a study.

    The log keeps the numbers of trials that the study has had: of one with rungs, whose order depends on
    them, each; of another, those since it has gone on.

    Args:
        tuning: The options.
        config: The config of a trial.
        trials: The number of trials.
        horizon: After how many stints a result is known.
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


def brackets_in(order: TrialOrder, config: RunConfig) -> dict[str, Any]:
    """Return the entry of `result.json` on the brackets of a study with rungs; empty for other studies."""
    if not isinstance(order, Rungs):
        return {}
    unit = {"training.epochs": "epochs", "training.max_steps": "steps"}.get(length_key(config), "rounds")
    brackets = [
        {"first": one.first, "sizes": list(one.sizes), "resources": list(one.resources)}
        for one in order.brackets
    ]
    return {"unit": unit, "brackets": brackets}


def check_learns(tuning: TuningConfig, sampler: Any) -> None:
    """Refuse a sampler that does not learn from an earlier study.

    Raises:
        InputError: The sampler does not learn from earlier studies.
    """
    if "earlier" in getattr(sampler, "limits", ()):
        raise InputError(
            f"--from: {tuning.sampler.type} proposes without regard to another study; use tpe, gp or cmaes"
        )


def learned(earlier: Study, space: Space, goals: Goals) -> Json:
    """Return the trials of an earlier study that a new one keeps, as plain values.

    A parameter that the earlier study did not search has the value of its config.

    Raises:
        InputError: It searched by another metric, or none of its trials is in the space.
    """
    theirs = earlier.record.question.get("tuning", {}).get("metric")
    names = [theirs] if isinstance(theirs, str) else theirs or []
    if missing := [name for name in goals.metrics if name not in names]:
        raise InputError(
            f"--from: study {earlier.id} searched by {', '.join(names) or 'nothing'}, not "
            f"by {', '.join(missing)}: its values say nothing here; leave --from out"
        )
    ended = [trial for trial in read_trials(earlier.path) if trial.ending is not None]
    trials = [trial for trial in ended if trial.ending and trial.ending.status != "failed"]
    fixed = _fixed(earlier.path.parent, trials)
    seen = [one for trial in trials if (one := _seen(trial, fixed, space, goals)) is not None]
    if not seen:
        raise InputError(
            f"--from: none of the {len(trials)} trials of study {earlier.id} is in the space; widen it, or "
            "start without --from"
        )
    log.info("starting from %d of %d trials of study %s", len(seen), len(trials), earlier.id)
    return {"study_id": earlier.id, "trials": seen}


def _fixed(runs: Path, trials: Sequence[LoggedTrial]) -> Mapping[str, Any]:
    """Return the values that all trials of a study share, from the config of its first one."""
    run = next((RunDir(runs / trial.run_id) for trial in trials if trial.run_id), None)
    return {} if run is None else read_config(run).flat()


def _seen(trial: LoggedTrial, fixed: Mapping[str, Any], space: Space, goals: Goals) -> Json | None:
    """Return a trial as it is kept; None if it is not in the space, or lacks a value."""
    assert trial.ending is not None
    params: dict[str, Any] = {}
    for parameter in space:
        if not exists(parameter, params):
            continue
        value = trial.params.get(parameter.key, fixed.get(parameter.key))
        if not _holds(parameter, value):
            return None
        params[parameter.key] = value
    values = goals.values(trial.ending)
    if not values:
        return None
    several = values if len(goals.metrics) > 1 else ()
    return {
        "params": params,
        "status": "pruned" if trial.ending.status == "paused" else trial.ending.status,
        "value": trial.ending.value,
        "curve": [[step, finite(value)] for step, value in trial.ending.curve],
        "values": list(several),
        "violations": {name: finite(value) for name, value in goals.violations(trial.ending).items()},
    }


def _holds(parameter: Parameter, value: Any) -> bool:
    """Return whether a parameter can have a value."""
    if parameter.choices is not None:
        return any(value == choice and type(value) is type(choice) for choice in parameter.choices)
    if isinstance(value, bool) or not isinstance(value, int if parameter.integer else int | float):
        return False
    if not parameter.low <= value <= parameter.high:
        return False
    steps = (value - parameter.low) / parameter.step if parameter.step else 0.0
    return abs(steps - round(steps)) < 1e-9


def observations(kept: Json) -> list[Observation]:
    """Return the trials of an earlier study, as a sampler may know them."""
    return [
        Observation(
            trial["params"],
            trial["status"],
            trial["value"],
            tuple((step, number(value)) for step, value in trial["curve"]),
            tuple(trial["values"]),
            {name: number(value) for name, value in trial["violations"].items()},
        )
        for trial in kept.get("trials", [])
    ]
