"""What later trials may know of a trial, and the result of a study."""

from __future__ import annotations

import json
from collections.abc import Sequence

from trainwright.digest import sha256_bytes
from trainwright.errors import TrainingError
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import Ending, LoggedTrial
from trainwright.records.tuning_result import BestTrial, TuningResult
from trainwright.studies.study import Json
from trainwright.studies.tuning.goals import Goals

_FIRST = 3  # a study whose first trials all fail ends


def check_first_trials(trials: Sequence[LoggedTrial], number: int, total: int, metric: str) -> None:
    """End a study whose first trials have all failed, or have no value: so would the others.

    Args:
        trials: The trials.
        number: The one that has just ended. A study that is resumed after such an end makes the later ones.
        total: How many trials the study makes; of fewer than three, all must have failed.
        metric: The metric that a trial must have a value of.

    Raises:
        TrainingError: It is among the first ones, and all of these have failed, or have no value.
    """
    first = min(_FIRST, total)
    endings = [trial.ending for trial in trials[:first] if trial.ending is not None]
    if number >= first or len(endings) < first or not all(map(_is_of_no_use, endings)):
        return
    error = endings[number].error
    if error is not None:
        which = "the only trial has" if total == 1 else f"the first {first} trials have all"
        raise TrainingError(f"{which} failed: {error}")
    which = "the only trial has" if total == 1 else f"the first {first} trials have"
    raise TrainingError(
        f"{which} no {metric}: it was NaN at each evaluation, so it may be undefined for these rows; choose "
        "another tuning.metric"
    )


def _is_of_no_use(ending: Ending) -> bool:
    return ending.status == "failed" or (ending.status == "completed" and ending.value is None)


def result_of(trials: Sequence[LoggedTrial], goals: Goals, best: BestTrial | None) -> Json:
    """Return what `result.json` says of the trials; see `TuningResult`.

    Args:
        trials: All of them.
        goals: What they are judged by.
        best: The best one, if there is one.
    """
    counts: list[str] = [trial.ending.status for trial in trials if trial.ending]
    shown = ("completed", "pruned", "failed", *(["paused"] if "paused" in counts else []))
    several: Json = {
        "metrics": dict(zip(goals.metrics, goals.modes, strict=True)),
        "constraints": list(map(str, goals.constraints)),
        "front": [trial.number for trial in goals.front(trials)],
    }
    return TuningResult(
        metric=goals.metrics[0],
        mode=goals.modes[0],
        **(several if goals.measured else {}),
        trials=len(trials),
        counts={status: counts.count(status) for status in shown},
        best=best,
        digest=digest_of(trials),
        train_seconds=sum(t.ending.seconds for t in trials if t.ending and t.same_as is None),
    ).written()


def digest_of(trials: Sequence[LoggedTrial]) -> str:
    """Return the SHA-256 over number, parameters, status, curve and weights of each trial, in order."""
    plain = [
        [t.number, t.params, *([t.ending.status, t.ending.curve, t.ending.digest] if t.ending else [])]
        for t in trials
    ]
    return sha256_bytes(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())


def summary_of(trial: LoggedTrial, final: RunDir | None = None) -> BestTrial:
    """Return the best trial as `result.json` has it.

    Args:
        trial: The trial.
        final: The run of its configuration that was trained once more, if one was; it replaces its own.
    """
    assert trial.ending is not None, "the best trial has ended"
    assert trial.ending.value is not None, "it has a value"
    more: Json = {"values": dict(trial.ending.values)} if trial.ending.values else {}
    more |= {"digest": final.require_result().digest} if final is not None else {}
    return BestTrial(
        trial=trial.number,
        run_id=trial.run_id if final is None else final.id,
        value=trial.ending.value,
        step=trial.ending.step,
        params=trial.params,
        **more,
    )
