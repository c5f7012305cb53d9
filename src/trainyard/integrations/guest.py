"""The training of another trainer as a guest in our runs: which run it is, and what it leaves there.

Only the first process of a distributed training records; the others read, to find the checkpoint to resume from.
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

from trainyard.config.schema import PATH_SAFE, PATTERNS
from trainyard.digest import write_atomically
from trainyard.errors import InputError, TrainyardError
from trainyard.integrations.attempt import Attempt, Ending, Saved
from trainyard.integrations.checkpoints import Checkpoint, TrainerCheckpoints
from trainyard.integrations.description import Description, Tracking, trackers
from trainyard.records.listing import all_runs, default_runs_dir, find_run
from trainyard.records.manifest import ForeignTrainer, InitialWeights, Manifest
from trainyard.records.run_dir import UNFINISHED, RunDir
from trainyard.runs.manifest import check_unchanged

log = logging.getLogger("trainyard")
Json = dict[str, Any]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Place:
    """Where a guest is recorded: the arguments of the callbacks. `run`: which run to go on with; `sample`: see `data_inputs`."""

    experiment: str
    runs_dir: Path | str | None = None
    run: str | None = None
    tracking: Tracking = ()
    sample: int = 16

    @property
    def folder(self) -> Path:
        return Path(self.runs_dir) if self.runs_dir else default_runs_dir()


@dataclass(frozen=True)
class _Found:
    """The run to go on with, and its checkpoint (None: from step 0)."""

    run: RunDir
    checkpoint: Checkpoint | None


class Guest:
    """The record of one training, and of the next one that the same trainer makes.

    What the user gave is checked when it is made, in `resume_from` and in `begin`, which raise; after that nothing
    raises: what cannot be recorded is logged as an error, with its values.
    """

    def __init__(self, trainer: str, place: Place) -> None:
        """Raises InputError where the arguments are wrong, ConfigError where the trackers' options are."""
        if not re.fullmatch(PATH_SAFE, place.experiment):
            raise InputError(f"experiment: {place.experiment!r} given, expected {PATTERNS[PATH_SAFE]}")
        self._trainer = trainer
        self._place = place
        self._tracking, self._templates = trackers(place.tracking)
        self._found: _Found | None = None
        self._asked = False
        self._attempt: Attempt | None = None
        self._last: Attempt | None = None
        self._early: list[tuple[str, Json]] = []  # what came before the training
        self._raised_before: Any = None

    @property
    def run(self) -> RunDir | None:
        """The run of the training that is under way, or of the last one."""
        attempt = self._attempt or self._last
        return attempt.run if attempt else None

    # -- which run

    def resume_from(self, identity: Json) -> Path | None:
        """The newest verified checkpoint of the unfinished run with this identity; None where there is none.

        Raises:
            RunLockedError: another process is at this very training.
            RunNotFoundError: there is no such run as was asked for.
            InputError: the run that was asked for is not this trainer's.
        """
        self._abandon()
        self._asked = True
        self._found = None
        run = self._named() if self._place.run else self._unfinished(identity)
        if run is None:
            return None
        checkpoints = TrainerCheckpoints(run.path)
        checkpoint, complaints = checkpoints.newest()
        begun = min((attempt.started for attempt in run.attempts()), default=0.0)
        trainer = _trainer(run)
        places = trainer.checkpoints if trainer else []
        for complaint in complaints + checkpoints.unfinished(places, begun):
            log.warning("%s", complaint)
        if checkpoint is None:
            log.warning("run %s has no whole checkpoint: the training begins at step 0", run.id)
        if checkpoint is not None or self._place.run:
            self._found = _Found(run, checkpoint)
        return checkpoint.path if checkpoint else None

    def _named(self) -> RunDir:
        """The run that the user asked for."""
        run = find_run(str(self._place.run), self._place.folder)
        trainer = _trainer(run)
        name = trainer.name if trainer else "trainyard"
        if name != self._trainer:
            raise InputError(f"run {run.id} is {name}'s: {self._trainer} cannot go on with it")
        if self._status(run) == "running":
            _refuse_owned(run)
        return run

    def _unfinished(self, identity: Json) -> RunDir | None:
        """The newest run with this identity, if it did not come to its end."""
        others: list[str] = []
        for run in all_runs(self._place.folder):
            try:
                trainer = _trainer(run) if run.experiment == self._place.experiment else None
                if trainer is None or trainer.name != self._trainer:
                    continue
                status = self._status(run)
            except TrainyardError as error:  # what is left of another run is none of this one's business
                log.warning("run %s is passed over: %s", run.id, error)
                continue
            if not (different := _differing(trainer.identity, identity)):
                if status == "running":
                    _refuse_owned(run)
                return run if status in UNFINISHED else None
            if status in UNFINISHED:
                others.append(
                    f"run {run.id} is unfinished, but not of this training: {', '.join(different)} differ"
                )
        if others:
            log.warning(
                "%s; run='...' goes on with it, `trainyard runs compare` says in what two runs differ",
                others[0],
            )
        return None

    def _status(self, run: RunDir) -> str:
        """How a run stands, an earlier training of this process being over by now."""
        for guest in list(_OPEN):
            if guest is not self and guest.run is not None and guest.run.path == run.path:
                guest._abandon()
        return run.status()

    # -- the training

    def begin(self, describe: Callable[[], Description], step: int) -> None:
        """The training begins at `step`; the model has the weights that it begins with.

        Raises:
            TrainyardError: what the user asked for cannot be had: the run is owned by another process, say.
        """
        self._abandon()
        found = self._run_to_go_on_with(step)
        try:
            self._attempt = self._begun(describe(), step, found)
        except TrainyardError:
            raise
        except Exception as error:  # ours to mend, and no reason to keep the user from training
            log.error(
                "nothing of this training is recorded: %s: %s", type(error).__name__, error, exc_info=error
            )
            return
        _OPEN.add(self)
        self._raised_before = _raised()
        early, self._early = self._early, []
        for kind, values in early:
            if step:  # they are not of the weights that the training goes on with
                self.event(step, f"{kind}_before", values=values)
            else:
                self._record(kind, step, values)
        log.info("run %s: %s", self._attempt.run.id, self._attempt.run.path)

    def _run_to_go_on_with(self, step: int) -> _Found | None:
        """What `resume_from` found, if the training really begins there."""
        found, self._found = self._found, None
        if self._place.run and not self._asked:
            raise InputError(
                f"run {self._place.run!r} is to go on: give the trainer what resume_from() returns"
            )
        self._asked = False
        if found is None and step:
            log.warning(
                "the training goes on from step %d of a checkpoint that was not verified, as a new run", step
            )
        if found is None or self._place.run or (found.checkpoint and found.checkpoint.step == step):
            return found
        expected = found.checkpoint.step if found.checkpoint else 0
        log.warning(
            "the training begins at step %d, not where run %s ended (%d): it is a new run",
            step,
            found.run.id,
            expected,
        )
        return None

    def _begun(self, description: Description, step: int, found: _Found | None) -> Attempt:
        config = description.config(self._place.experiment, self._tracking, self._templates)
        run = found.run if found else RunDir.create(self._place.folder, self._place.experiment, config)
        run.acquire()
        try:
            before = run.manifest()
            weights = before.weights if before else InitialWeights(from_step=step)
            manifest = description.manifest(run, self._place.sample, weights if step else None)
            if before:
                write_atomically(run.config_file, config.encode())
                after = check_unchanged(run, before, manifest, allow_change=True)
                manifest = after.model_copy(update={"trainer": manifest.trainer})
            else:
                log.info("determinism: %s (%s)", manifest.determinism.tier, manifest.determinism.reason)
            run.write(Manifest.FILE, manifest)
            seconds = found.checkpoint.train_seconds if found and found.checkpoint else 0.0
            return Attempt(run, step, seconds)
        except BaseException:
            run.release()
            raise

    # -- what happens in it

    @property
    def is_open(self) -> bool:
        """Whether a training is being recorded."""
        return self._attempt is not None

    def metrics(self, step: int, values: Mapping[str, Any]) -> None:
        """What the trainer logs; see `evaluation` for what comes before or after the training."""
        self._record("metrics", step, values)

    def evaluation(self, step: int, values: Mapping[str, Any]) -> None:
        """An evaluation, in the training or after it; one before it is kept until it begins."""
        self._record("evaluation", step, values)

    def _record(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        attempt, last = self._attempt, self._last
        if attempt is not None:
            guarded(lambda: attempt.values(kind, step, values), f"{kind} of step {step}", values)
        elif last is not None:
            guarded(lambda: last.late(kind, values), f"{kind} after run {last.run.id}", values)
        else:
            self._early.append((kind, dict(values)))

    def event(self, step: int, name: str, **detail: Any) -> None:
        attempt = self._attempt
        if attempt is not None:
            guarded(lambda: attempt.event(step, name, **detail), name, detail)

    def commit(self, checkpoint: Saved) -> None:
        """The trainer has written a checkpoint."""
        attempt = self._attempt
        if attempt is not None:
            guarded(lambda: attempt.commit(checkpoint), f"checkpoint {checkpoint.path}")

    def end(self, status: str, ending: Callable[[], Ending], error: str = "") -> None:
        """The training has come to its end; `ending` is called to say how."""
        attempt, self._attempt = self._attempt, None
        _OPEN.discard(self)
        if attempt is not None:
            self._last = attempt
            what = f"the end of run {attempt.run.id}"
            how = guarded(ending, what) or Ending(attempt.last_step, 0.0)
            guarded(lambda: attempt.end(status, how, error), what, {"status": status})
            attempt.run.release()  # whatever happened

    def _abandon(self, reason: str = "the trainer left the training without ending it") -> None:
        """Ends a training that ended without a word: it raised, and its trainer does not tell callbacks so."""
        attempt = self._attempt
        if attempt is None:
            return
        raised = _raised() if _raised() is not self._raised_before else None
        status = "interrupted" if isinstance(raised, KeyboardInterrupt) else "failed"
        error = (
            reason
            if raised is None
            else ""
            if status == "interrupted"
            else f"{type(raised).__name__}: {raised}"
        )
        self.end(status, lambda: Ending(attempt.last_step, 0.0), error)


def _differing(before: Json, now: Json) -> list[str]:
    return [key for key, value in now.items() if before.get(key) != value]


def _trainer(run: RunDir) -> ForeignTrainer | None:
    manifest = run.manifest()
    return manifest.trainer if manifest else None


def _raised() -> BaseException | None:
    """The last exception that nobody caught, in a notebook or at the end of the process."""
    return getattr(sys, "last_value", None)


def _refuse_owned(run: RunDir) -> None:
    """Raises RunLockedError, which says who owns the run."""
    run.acquire()
    run.release()  # its owner has just ended


def guarded(
    action: Callable[[], Result], what: str, values: Mapping[str, Any] | None = None
) -> Result | None:
    """Does it; that it cannot be done ends no training, and what would be lost is in the log."""
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


# Trainings that are being recorded by this process: when it ends, so do they. A process that it forks has no part in
# them: it must not hold their locks when this one is killed, nor end them when it ends itself.
_OPEN: set[Guest] = set()


def _close_all() -> None:
    for guest in list(_OPEN):
        guest._abandon("the process ended before the training did")


def _leave_all() -> None:
    for guest in _OPEN:
        if guest._attempt is not None:
            guest._attempt.run.release()
    _OPEN.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_leave_all)
