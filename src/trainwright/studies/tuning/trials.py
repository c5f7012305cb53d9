"""The trials of a search as its log has them: how they end, who is told, and the result that they make."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from trainwright.config.tuning import TuningConfig
from trainwright.engine.signals import Signals
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import LoggedTrial, TrialLog
from trainwright.studies.driver import Outcome, Piece, StudyPlan
from trainwright.studies.study import Json, Study, StudyRequest
from trainwright.studies.tuning.conclusion import check_first_trials, result_of, summary_of
from trainwright.studies.tuning.goals import Goals
from trainwright.studies.tuning.progress import Progress
from trainwright.studies.tuning.projection import Projector
from trainwright.studies.tuning.view import counted


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

    def _best(self) -> LoggedTrial | None:
        return self._goals.best(self._log.trials)

    def _ended(self, number: int) -> None:
        """Tell the user how a trial has ended, as the log has it.

        Raises:
            TrainingError: The first trials have all failed.
        """
        trial, trials = self._log.trials[number], counted(self._log)
        ending, best = trial.ending, self._best()
        assert ending is not None, "it has ended"
        run = {"run_id": trial.run_id} if trial.run_id else {}
        summary = {"trial": number, **run, "status": ending.status}
        named = {self._goals.metrics[0]: ending.value} if ending.value is not None else {}
        named |= ending.values or {}
        error = {"error": ending.error} if ending.error else {}
        top = {"best": best.ending.value} if best and best.ending else {}
        running = len(self._running)
        if self._tuning.tuner is not None:
            running = sum(one.ending is None for one in trials)
        self._request.watch(summary | named | error | top | self._progress.shown(trials, running))
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
