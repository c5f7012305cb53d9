"""What a study learns from an earlier one: those of its trials that are in the new space."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwright.config.tuning import TuningConfig
from trainwright.errors import InputError
from trainwright.records.journal import finite, number
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import LoggedTrial, read_trials
from trainwright.runs.run_config import read_config
from trainwright.samplers.base import Observation, Parameter, Space, exists
from trainwright.studies.study import Json, Study
from trainwright.studies.tuning.goals import Goals

log = logging.getLogger("trainwright")
FILE = "earlier.json"  # in the study's folder: the earlier study may go on, or be deleted


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
