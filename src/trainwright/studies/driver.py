"""The driver of studies: it asks a plan for the next trial, runs it, and tells the plan what came of it.

All kinds of studies share what is here: the lease of the study's folder, signals, the statuses, and the end.
What makes a kind of study is its plan.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from trainwright.config import Resolved
from trainwright.engine.signals import Signals, Stopped
from trainwright.errors import InputError, TrainwrightError
from trainwright.process.alarms import announced
from trainwright.records.run_dir import RunDir
from trainwright.records.status import FINAL
from trainwright.records.tuning_result import TuningResult
from trainwright.reports.studies import write_report
from trainwright.runs.cleanup import discard_folder
from trainwright.runs.session import report
from trainwright.studies.study import RESULT, Json, Study
from trainwright.trackers.base import StudyCard
from trainwright.trackers.feed import send_rest
from trainwright.trackers.feed.studies import tell_end

log = logging.getLogger("trainwright")
Piece = TypeVar("Piece")  # of work: a trial, or a part of one
Outcome = TypeVar("Outcome")
Piece_contra = TypeVar("Piece_contra", contravariant=True)
Outcome_co = TypeVar("Outcome_co", covariant=True)


class Executor(Protocol[Piece_contra, Outcome_co]):
    """The worker of a driver: it does pieces of work, as many at once as it has `slots`."""

    @property
    def slots(self) -> int:
        """The number of pieces that it can do at once now."""

    def submit(self, piece: Piece_contra) -> None:
        """Begin a piece of work; there is a free slot."""

    def wait(self) -> Outcome_co | None:
        """Return how the next piece has ended; None if there are more slots now. Some piece was submitted.

        Raises:
            Stopped: A signal has come, and nothing is being done any more.
            InputError, TrainingError: The trial cannot be trained for now, which is no result of it.
        """

    def close(self) -> None:
        """End all workers; what is in progress is saved and stops."""


class InProcess(Generic[Piece, Outcome]):
    """An executor that does one piece of work at a time, in this process.

    Args:
        run: Does it, and returns what came of it.
    """

    slots = 1

    def __init__(self, run: Callable[[Piece], Outcome]) -> None:
        self._run = run
        self._waiting: list[Piece] = []

    def submit(self, piece: Piece) -> None:
        """Begin a piece of work; see `Executor.submit`."""
        self._waiting.append(piece)

    def wait(self) -> Outcome:
        """Run the last piece that was submitted; see `Executor.wait`."""
        return self._run(self._waiting.pop())

    def close(self) -> None:
        """Do nothing; see `Executor.close`."""


class StudyPlan(ABC, Generic[Piece, Outcome]):
    """The trials of a study: which one is next, and what becomes of them. Each kind of study has its plan."""

    write_report: Callable[[Path], Path] = staticmethod(write_report)

    def __init__(self, study: Study) -> None:
        self.study = study

    @property
    def resolved(self) -> Resolved | None:
        """The config that the runs share, whose trackers are told of the end; None if there is none."""
        return None

    def open(self, stack: ExitStack) -> None:
        """Check that the study may go on, and open what it keeps open to its end.

        Raises:
            TrainwrightError: It may not; the study stays as it was.
        """

    def begin(self, signals: Signals, stack: ExitStack) -> None:
        """Prepare the trials; `stack` is closed when no other is made, and before the conclusion."""

    def executor(self) -> Executor[Piece, Outcome]:
        """Return the executor of the next pieces of work."""
        return InProcess(self.run)

    @abstractmethod
    def ask(self) -> Piece | None:
        """Return the next piece of work; None if there is none now.

        If none is being done, either, the trials are complete.
        """

    @abstractmethod
    def run(self, piece: Piece) -> Outcome:
        """Do a piece of work in this process."""

    @abstractmethod
    def tell(self, outcome: Outcome) -> None:
        """Take what came of a piece of work into account.

        Raises:
            Stopped: A signal has ended it.
        """

    @abstractmethod
    def conclude(self) -> Json:
        """Return the content of `result.json`, with the status of the study."""

    def has_begun(self) -> bool:
        """Return whether there is anything to keep if the study fails."""
        folder = self.study.path.parent
        return any(RunDir(folder / run.run_id).config_file.exists() for run in self.study.record.runs)

    def completed_runs(self) -> Iterable[RunDir]:
        """Return the runs whose trackers get what they lack when the study is completed."""
        return ()


def drive(plan: StudyPlan[Any, Any]) -> None:
    """Make the trials of a study, conclude, and record the status.

    A signal ends it with what is being done; `study.status` then says so.

    Raises:
        ChangedInputsError: The inputs of its runs have changed; the study stays as it was.
        TrainwrightError: The study has failed. If nothing was begun, its folder is deleted.
        RunLockedError: Another process works on this study.
    """
    study = plan.study
    with study.owned(), log_warnings_once(), ExitStack() as opened:
        study.check_seals()
        plan.open(opened)
        study.update(status="running", error=None)
        try:
            with Signals() as signals:
                _make_trials(plan, signals)
                result = plan.conclude()
                study.write(RESULT, result)
            status = result["status"]
        except Stopped as signal:
            status = signal.status
        except TrainwrightError as error:
            _record_failure(plan, error)
            raise
        study.update(status=status)
        _tell(plan, plan.completed_runs() if status == "completed" else ())


def _make_trials(plan: StudyPlan[Any, Any], signals: Signals) -> None:
    """Do all pieces of work, as many at once as the executor takes."""
    with ExitStack() as stack:
        plan.begin(signals, stack)
        executor, running = plan.executor(), 0
        try:
            while True:
                while running < executor.slots and (piece := plan.ask()) is not None:
                    executor.submit(piece)
                    running += 1
                if not running:
                    return
                if (outcome := executor.wait()) is not None:
                    running -= 1
                    plan.tell(outcome)
                if not running:
                    executor = plan.executor()
        finally:
            executor.close()


def _record_failure(plan: StudyPlan[Any, Any], error: TrainwrightError) -> None:
    """Write down why a study has failed; the folder of one that has nothing to keep is deleted."""
    study, resolved = plan.study, plan.resolved
    if isinstance(error, InputError) and not plan.has_begun():
        discard_folder(study.path)
        return
    message = str(error) if resolved is None else resolved.hide(str(error))
    with suppress(OSError):  # it may be the disk that failed
        study.update(status="failed", error=message)
    _tell(plan)


def _tell(plan: StudyPlan[Any, Any], runs: Iterable[RunDir] = ()) -> None:
    """Write the report of a study that has ended, and tell its trackers.

    Args:
        plan: Its plan.
        runs: The runs whose missing values are sent to the trackers.
    """
    report(plan.study.path, plan.write_report)
    if plan.resolved is not None:
        tell_trackers(plan.study, plan.resolved, runs)


def tell_trackers(study: Study, resolved: Resolved, runs: Iterable[RunDir] = ()) -> None:
    """Tell the trackers of a study's runs how it has ended; a failure is only a warning.

    Args:
        study: The study.
        resolved: The config that its runs share.
        runs: The runs whose missing values are sent to the trackers.
    """
    if resolved.config.tracking:
        _send_rest(runs)
    tracking = [(one.type, one.params) for one in resolved.config.tracking]
    found = TuningResult.of(study.result if study.record.kind == "tune" else {})
    best = found.best
    metrics = {} if best is None else {found.metric: best.value, **(best.values or {}), **best.metrics}
    tags = {"trainwright.digest": found.digest} if found.digest else {}
    best_run = "" if best is None else best.run_id
    name, status = study.path.parent.name, study.record.status
    card = StudyCard(study.id, name, study.path, status, metrics, tags, best_run)
    tell_end(card, tracking)


def _send_rest(runs: Iterable[RunDir]) -> None:
    """Send what trackers lack of runs that have ended; if one is away, it is not waited for again."""
    with announced("sending the trackers what they lack of the trials"):
        for run in runs:
            warnings = send_rest(run.path, run.status()) if run.status() in FINAL else []
            for warning in warnings:
                log.warning("%s", warning)
            if warnings:
                return


@contextmanager
def log_warnings_once() -> Iterator[None]:
    """Log equal warnings of a study's runs once, and other lines that say `once`."""
    seen: set[str] = set()

    def is_new(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        once = record.levelno == logging.WARNING or getattr(record, "once", False)
        known = once and message in seen
        seen.add(message)
        return not known

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)
