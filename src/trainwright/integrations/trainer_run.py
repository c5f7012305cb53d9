"""The run of a training that another trainer makes: finding or creating it, and recording into it.

Only the first process of a distributed training records; the others only look for the checkpoint to resume
from.
"""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from trainwright.config.fields import PATH_SAFE, PATTERNS
from trainwright.errors import InputError, TrainwrightError
from trainwright.integrations.attempt import SavedCheckpoint, TrainerAttempt, TrainingEnd
from trainwright.integrations.checkpoints import Checkpoint, TrainerCheckpoints
from trainwright.integrations.description import Description, Tracking, trackers
from trainwright.records.listing import all_runs, find_run, local_runs_folder
from trainwright.records.manifest import ForeignTrainer, InitialWeights, Manifest
from trainwright.records.run_dir import RunDir
from trainwright.records.status import UNFINISHED, Ended, Status
from trainwright.runs.manifest import check_unchanged
from trainwright.safe_files import write_atomically

log = logging.getLogger("trainwright")
Json = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class RecordingOptions:
    """The arguments of the callbacks. `run` is the run to continue; for `sample` see `data_inputs`."""

    experiment: str
    runs_dir: Path | str | None = None
    run: str | None = None
    tracking: Tracking = ()
    sample: int = 16

    @property
    def folder(self) -> Path:
        """The folder that holds the runs."""
        return local_runs_folder(self.runs_dir, "runs of other libraries' trainers")


@dataclass(frozen=True)
class _ResumePoint:
    """The run to continue, and its checkpoint (None: from step 0)."""

    run: RunDir
    checkpoint: Checkpoint | None


class TrainerRun:
    """Record one training of a trainer, then the next one that the same trainer makes.

    The constructor, `resume_from` and `begin` check the user's input, and raise. After that nothing raises:
    what cannot be recorded is logged as an error, with its values.
    """

    def __init__(self, trainer: str, options: RecordingOptions) -> None:
        """Check the options.

        Raises:
            InputError: The name of the experiment is not allowed.
            ConfigError: The options of a tracker are wrong.
        """
        if not re.fullmatch(PATH_SAFE, options.experiment):
            raise InputError(f"experiment: {options.experiment!r} given, expected {PATTERNS[PATH_SAFE]}")
        self._trainer = trainer
        self._options = options
        self._tracking, self._templates = trackers(options.tracking)
        self._resume_point: _ResumePoint | None = None
        self._resume_called = False
        self._attempt: TrainerAttempt | None = None
        self._last: TrainerAttempt | None = None
        self._before_training: list[tuple[str, Json]] = []  # values that came before the training
        self._uncaught_before: Any = None

    @property
    def run(self) -> RunDir | None:
        """The run of the current training, or of the last one."""
        attempt = self._attempt or self._last
        return attempt.run if attempt else None

    # -- finding the run

    def resume_from(self, identity: Json) -> Path | None:
        """Return the newest verified checkpoint of the unfinished run with this identity, or None.

        Raises:
            RunLockedError: Another process is training this run.
            RunNotFoundError: The run that the user named does not exist.
            InputError: The run that the user named belongs to another trainer.
        """
        self._end_abandoned()
        self._resume_called = True
        self._resume_point = None
        run = self._requested_run() if self._options.run else self._unfinished_run(identity)
        if run is None:
            return None
        checkpoints = TrainerCheckpoints(run.path)
        checkpoint, problems = checkpoints.newest()
        begun = min((attempt.started for attempt in run.attempts()), default=0.0)
        trainer = _trainer(run)
        locations = trainer.checkpoints if trainer else []
        for problem in problems + checkpoints.unfinished(locations, begun):
            log.warning("%s", problem)
        if checkpoint is None:
            log.warning("run %s has no valid checkpoint: the training begins at step 0", run.id)
        if checkpoint is not None or self._options.run:
            self._resume_point = _ResumePoint(run, checkpoint)
        return checkpoint.path if checkpoint else None

    def _requested_run(self) -> RunDir:
        """Find the run that the user named."""
        run = find_run(str(self._options.run), self._options.folder)
        trainer = _trainer(run)
        name = trainer.name if trainer else "trainwright"
        if name != self._trainer:
            raise InputError(f"run {run.id} was made by {name}: {self._trainer} cannot continue it")
        if self._status(run) == "running":
            _refuse_owned(run)
        return run

    def _unfinished_run(self, identity: Json) -> RunDir | None:
        """Return the newest run with this identity, if it is unfinished."""
        others: list[str] = []
        for run in all_runs(self._options.folder):
            try:
                trainer = _trainer(run) if run.experiment == self._options.experiment else None
                if trainer is None or trainer.name != self._trainer:
                    continue
                status = self._status(run)
            except TrainwrightError as error:  # damage to another run must not stop this training
                log.warning("run %s is skipped: %s", run.id, error)
                continue
            if not (different := _differing_keys(trainer.identity, identity)):
                if status == "running":
                    _refuse_owned(run)
                return run if status in UNFINISHED else None
            if status in UNFINISHED:
                others.append(
                    f"run {run.id} is unfinished, but not of this training: {', '.join(different)} differ"
                )
        if others:
            log.warning(
                "%s; to continue it, give run='...'; `trainwright runs compare` shows how two runs differ",
                others[0],
            )
        return None

    def _status(self, run: RunDir) -> Status:
        """Return a run's status; an earlier training of this process has ended by now."""
        for other in list(_OPEN):
            if other is not self and other.run is not None and other.run.path == run.path:
                other._end_abandoned()
        return run.status()

    # -- beginning

    def begin(self, describe: Callable[[], Description], step: int) -> None:
        """Begin an attempt at `step`; the model must have its weights of that step.

        Raises:
            TrainwrightError: What the user asked for is not possible: another process owns the run, for
                example.
        """
        self._end_abandoned()
        resume_point = self._confirmed_resume_point(step)
        try:
            self._attempt = self._begin_attempt(describe(), step, resume_point)
        except TrainwrightError:
            raise
        except Exception as error:  # a defect of ours must not keep the user from training
            log.error(
                "nothing of this training is recorded: %s: %s", type(error).__name__, error, exc_info=error
            )
            return
        _OPEN.add(self)
        self._uncaught_before = _uncaught_exception()
        before_training, self._before_training = self._before_training, []
        for kind, values in before_training:
            if step:  # they are not of the weights from which the training continues
                self.event(step, f"{kind}_before", values=values)
            else:
                self._record(kind, step, values)
        log.info("run %s: %s", self._attempt.run.id, self._attempt.run.path)

    def _confirmed_resume_point(self, step: int) -> _ResumePoint | None:
        """Return the resume point of `resume_from`, if the training really begins there."""
        point, self._resume_point = self._resume_point, None
        if self._options.run and not self._resume_called:
            raise InputError(
                f"run: {self._options.run!r} given, but the training was started without its checkpoint; "
                "give the trainer what resume_from() returns"
            )
        self._resume_called = False
        if point is None and step:
            log.warning(
                "the training continues from step %d of a checkpoint that was not verified, as a new run",
                step,
            )
        if point is None or self._options.run or (point.checkpoint and point.checkpoint.step == step):
            return point
        expected = point.checkpoint.step if point.checkpoint else 0
        log.warning(
            "the training begins at step %d, not where run %s ended (%d): it is a new run",
            step,
            point.run.id,
            expected,
        )
        return None

    def _begin_attempt(
        self, description: Description, step: int, point: _ResumePoint | None
    ) -> TrainerAttempt:
        options = self._options
        config = description.config(options.experiment, self._tracking, self._templates)
        run = point.run if point else RunDir.create(options.folder, options.experiment, config)
        run.acquire()
        try:
            before = run.manifest()
            weights = before.weights if before else InitialWeights(from_step=step)
            manifest = description.manifest(run, options.sample, weights if step else None)
            if before:
                write_atomically(run.config_file, config.encode())
                after = check_unchanged(run, before, manifest, allow_change=True)
                manifest = after.model_copy(update={"trainer": manifest.trainer})
            else:
                log.info("determinism: %s (%s)", manifest.determinism.tier, manifest.determinism.reason)
            run.write(Manifest.FILE, manifest)
            seconds = point.checkpoint.train_seconds if point and point.checkpoint else 0.0
            return TrainerAttempt(run, step, seconds)
        except BaseException:
            run.release()
            raise

    # -- recording

    @property
    def is_open(self) -> bool:
        """Return whether a training is being recorded."""
        return self._attempt is not None

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """Record metrics; those from before or after the training are treated as in `evaluation`."""
        self._record("metrics", step, values)

    def evaluation(self, step: int, values: Mapping[str, Any]) -> None:
        """Record an evaluation; one from before the training is kept until it begins."""
        self._record("evaluation", step, values)

    def _record(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        attempt, last = self._attempt, self._last
        if attempt is not None:
            record_safely(lambda: attempt.values(kind, step, values), f"{kind} of step {step}", values)
        elif last is not None:
            record_safely(
                lambda: last.record_after_end(kind, values), f"{kind} after run {last.run.id}", values
            )
        else:
            self._before_training.append((kind, dict(values)))

    def event(self, step: int, name: str, **detail: Any) -> None:
        """Record an event."""
        attempt = self._attempt
        if attempt is not None:
            record_safely(lambda: attempt.event(step, name, **detail), name, detail)

    def commit(self, checkpoint: SavedCheckpoint) -> None:
        """Record a checkpoint that the trainer has written."""
        attempt = self._attempt
        if attempt is not None:
            record_safely(lambda: attempt.commit(checkpoint), f"checkpoint {checkpoint.path}")

    def end(self, status: Ended, describe_end: Callable[[], TrainingEnd], error: str = "") -> None:
        """End the attempt; `describe_end` is called for the state of the training."""
        attempt, self._attempt = self._attempt, None
        _OPEN.discard(self)
        if attempt is not None:
            self._last = attempt
            what = f"the end of run {attempt.run.id}"
            training_end = record_safely(describe_end, what) or TrainingEnd(attempt.last_step, 0.0)
            record_safely(lambda: attempt.end(status, training_end, error), what, {"status": status})
            attempt.run.release()  # even if `end` failed

    def _end_abandoned(self, reason: str = "the trainer left the training without ending it") -> None:
        """End the attempt of a training that raised: not every trainer tells its callbacks so."""
        attempt = self._attempt
        if attempt is None:
            return
        raised = _uncaught_exception() if _uncaught_exception() is not self._uncaught_before else None
        status: Ended = "failed"
        error = reason
        if isinstance(raised, KeyboardInterrupt):
            status, error = "interrupted", ""
        elif raised is not None:
            error = f"{type(raised).__name__}: {raised}"
        self.end(status, lambda: TrainingEnd(attempt.last_step, 0.0), error)


def _differing_keys(before: Json, now: Json) -> list[str]:
    return [key for key, value in now.items() if before.get(key) != value]


def _trainer(run: RunDir) -> ForeignTrainer | None:
    manifest = run.manifest()
    return manifest.trainer if manifest else None


def _uncaught_exception() -> BaseException | None:
    """Return the last uncaught exception: in a notebook, or at the end of the process."""
    return getattr(sys, "last_value", None)


def _refuse_owned(run: RunDir) -> None:
    """Raise RunLockedError, which says who owns the run."""
    run.acquire()
    run.release()  # its owner has just ended


def record_safely(action: Callable[[], T], what: str, values: Mapping[str, Any] | None = None) -> T | None:
    """Call `action` and return its result; if it raises, log the error and return None.

    Args:
        action: Writes a part of the record, or prepares it.
        what: What is recorded, for the message.
        values: Values that are lost if it fails; they go into the log.
    """
    try:
        return action()
    except Exception as error:
        log.error(
            "%s cannot be recorded: %s: %s%s",
            what,
            type(error).__name__,
            error,
            f"; {dict(values)}" if values else "",
        )
        return None


# The trainings that this process is recording: they end with the process. A forked child must not hold their
# locks, which would outlive a kill of this process, nor end them when it ends itself.
_OPEN: set[TrainerRun] = set()


def _end_all() -> None:
    for run in list(_OPEN):
        run._end_abandoned("the process ended before the training did")


def _release_all() -> None:
    for run in _OPEN:
        if run._attempt is not None:
            run._attempt.run.release()
    _OPEN.clear()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_release_all)
