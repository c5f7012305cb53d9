"""The results of a search: how its trials end, as the log has them, who is told, and what they come to."""

from __future__ import annotations

import json
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from trainwright.config.tuning import TuningConfig
from trainwright.digest import sha256_bytes
from trainwright.engine.signals import Signals
from trainwright.errors import InputError, TrainingError, TrainwrightError
from trainwright.records.journal import evaluations, number, read
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import Ending, LoggedTrial, TrialLog
from trainwright.records.tuning_result import BestTrial, TuningResult
from trainwright.runs.objects import Objects
from trainwright.runs.predictor import open_predictor
from trainwright.runs.weights import stored_model
from trainwright.studies.cost import latency
from trainwright.studies.driver import Outcome, Piece, StudyPlan
from trainwright.studies.study import Json, Study, StudyRequest
from trainwright.studies.tuning.goals import Goals
from trainwright.studies.tuning.optuna_storage import Projector
from trainwright.studies.tuning.tuning_view import counted

_FIRST = 3  # a study whose first trials all fail ends


class LoggedPlan(StudyPlan[Piece, Outcome]):
    """A plan whose trials are in a log, by which a killed study goes on with the same ones.

    Args:
        study: The study.
        tuning: Its options.
        goals: The metrics that its trials are judged by.
        count: The number of trials, if nothing ends the study early.
        request: The arguments of the study.
    """

    def __init__(
        self, study: Study, tuning: TuningConfig, goals: Goals, count: int, request: StudyRequest
    ) -> None:
        super().__init__(study)
        self._tuning, self._goals, self._count, self._request = tuning, goals, count, request
        self._log: TrialLog
        self._running: set[int] = set()
        self._progress = Progress(count, tuning.max_minutes)
        metrics = dict(zip(goals.metrics, goals.modes, strict=True))
        self._projector = Projector(study.path, metrics, tuning.storage)

    def open(self, stack: ExitStack) -> None:
        """Open the log; see `StudyPlan.open`."""
        self._log = TrialLog(self.study.path)
        stack.callback(self._log.close)

    def begin(self, signals: Signals, stack: ExitStack) -> None:  # noqa: ARG002 - as in `StudyPlan`
        """Write Optuna's storage at the end; see `StudyPlan.begin`."""
        stack.callback(self._project, end=True)

    def has_begun(self) -> bool:
        """Return whether there is a trial; see `StudyPlan.has_begun`."""
        return bool(self._log.trials)

    @property
    def running(self) -> int:
        """The number of trials that are being trained."""
        return len(self._running)

    def _best(self) -> LoggedTrial | None:
        return self._goals.best(self._log.trials)

    def _ended(self, number: int) -> None:
        """Tell the user how a trial has ended, as the log has it.

        Raises:
            TrainingError: The first trials have all failed.
        """
        trial, best = self._log.trials[number], self._best()
        ending = trial.ending
        assert ending is not None, "it has ended"
        run = {"run_id": trial.run_id} if trial.run_id else {}
        summary = {"trial": number, **run, "status": ending.status}
        named = {self._goals.metrics[0]: ending.value} if ending.value is not None else {}
        named |= ending.values or {}
        error = {"error": ending.error} if ending.error else {}
        top = {"best": best.ending.value} if best and best.ending else {}
        progress = self._progress.shown(counted(self._log), self.running)
        self._request.watch(summary | named | error | top | progress)
        self._project()
        check_first_trials(self._log.trials, number, self._count, self._goals.metrics[0])

    def _project(self, *, end: bool = False) -> None:
        """Write the storage that Optuna reads."""
        if self._projector.is_due(end=end):
            frozen = self._frozen_trials()
            self._projector.write(frozen, self._log.trials[: len(frozen)], end=end)

    @abstractmethod
    def _frozen_trials(self) -> Sequence[Any]:
        """Return the trials before the first one that has not ended, as Optuna's."""

    def _result(self, final: RunDir | None = None) -> Json:
        """Return what `result.json` says of any search.

        Args:
            final: The run in which the best configuration was trained once more, if it was.
        """
        best = self._best()
        identity = {"study_id": self.study.id, "experiment": self.study.path.parent.name}
        result = result_of(self._log.trials, self._goals, summary_of(best, final) if best else None)
        return {"status": "completed", **identity, **result}


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


class Progress:
    """The progress of a search since this process works on it.

    Args:
        total: The number of trials, if nothing ends the search early.
        max_minutes: The time limit, if there is one.
        clock: Returns seconds.
    """

    def __init__(
        self, total: int, max_minutes: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._clock = total, clock
        self._limit = None if max_minutes is None else 60 * max_minutes
        self._began, self._before = clock(), 0

    def resumed(self, trials: Sequence[LoggedTrial]) -> None:
        """Do not count trials that ended earlier when estimating the time left."""
        self._before = sum(trial.ending is not None for trial in trials)

    def shown(self, trials: Sequence[LoggedTrial], running: int) -> dict[str, str | int]:
        """Return what a progress line says; `running` is the number of trials that are being trained."""
        statuses = [trial.ending.status for trial in trials if trial.ending is not None]
        counts = {name: statuses.count(name) for name in ("pruned", "failed")}
        shown: dict[str, str | int] = {"done": f"{len(statuses)}/{self._total}", "running": running}
        shown |= {name: count for name, count in counts.items() if count}
        if (left := self._left(len(statuses))) is not None:
            shown["time_left"] = _brief(left)
        return shown

    def _left(self, ended: int) -> float | None:
        """Return the seconds that are left at the pace so far; None before the first trial has ended."""
        passed, done = self._clock() - self._began, ended - self._before
        if done <= 0:
            return None
        left = passed / done * max(0, self._total - ended)
        return left if self._limit is None else min(left, max(0.0, self._limit - passed))


def _brief(seconds: float) -> str:
    """Return a time span without spaces: `45s`, `3m20s`, `2h05m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def measured(run: RunDir, names: Sequence[str], step: int, objects: Objects) -> dict[str, float]:
    """Return metrics at a step of a run, and measures of its best model, by name.

    Args:
        run: The run; its best model is that of the step.
        names: `val_METRIC`, or names of `goals.MEASURES`.
        step: The step of the evaluation.
        objects: What was given in Python.

    Raises:
        TrainwrightError: A value cannot be measured for this model.
    """
    rows = [values for at, values in evaluations(read(run.journal)) if at == step]  # of each split
    at = {name: value for values in rows for name, value in values.items()}
    return {name: _measure(run, name, at, objects) for name in names}


def _measure(run: RunDir, name: str, at: Mapping[str, Any], objects: Objects) -> float:
    if name in _MEASURES:
        return _MEASURES[name](run, objects)
    if name not in at:
        raise InputError(f"{name} is not among the metrics of run {run.id}: {', '.join(sorted(at))}")
    return number(at[name])


def _latency_ms(run: RunDir, objects: Objects) -> float:
    predictor = open_predictor(run, objects.model, pinned=True)
    split = (objects.data or predictor.load_data()).splits["val"]
    return latency(predictor.model, split).one_ms


def _parameters(run: RunDir, objects: Objects) -> float:
    predictor = open_predictor(run, objects.model, pinned=True)
    count = predictor.model.parameter_count
    if count is None:
        kind = type(predictor.native).__name__
        raise TrainwrightError(f"a {kind} has no count of parameters; give model_bytes or latency_ms instead")
    return float(count)


def _model_bytes(run: RunDir, objects: Objects) -> float:  # noqa: ARG001 - as the others
    return float(stored_model(run).bytes)


def _train_seconds(run: RunDir, objects: Objects) -> float:  # noqa: ARG001
    return run.require_result().train_seconds


_MEASURES: Mapping[str, Callable[[RunDir, Objects], float]] = {
    "latency_ms": _latency_ms,
    "model_bytes": _model_bytes,
    "parameters": _parameters,
    "train_seconds": _train_seconds,
}
