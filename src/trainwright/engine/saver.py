"""The schedule of checkpoints, and the choice of those that are kept."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from trainwright.config.schema import CheckpointConfig
from trainwright.engine.checkpoint import RunCheckpoints
from trainwright.engine.interval import MTBF_HOURS, SaveCost, chosen_interval
from trainwright.engine.recorder import Recorder
from trainwright.engine.state import RunState
from trainwright.engine.writer import PendingWrite, Writer
from trainwright.errors import CheckpointError
from trainwright.frameworks.base import Learner, Plan, Snapshot
from trainwright.process.alarms import Alarm, call_later
from trainwright.records.checkpoint_names import step_of
from trainwright.records.commit import Commit

_FIRST_MINUTES = 1.0  # to the save that `every_n_minutes: auto` measures
_SMALL = 4_000_000  # parameters of a model whose best weights wait in memory for the next save


@dataclass(frozen=True)
class _Pending:
    """A resume checkpoint that may be written; `best` are the steps of the best models that it needs."""

    step: int
    snapshot: Snapshot
    state: dict[str, Any]
    best: frozenset[int]


class Saver:
    """Take snapshots in the loop's thread, and commit them in the writer's."""

    def __init__(
        self,
        config: CheckpointConfig,
        learner: Learner,
        plan: Plan,
        checkpoints: RunCheckpoints,
        recorder: Recorder,
        processes: int = 1,
    ) -> None:
        self._config = config
        self._learner = learner
        self._plan = plan
        self._checkpoints = checkpoints
        self._recorder = recorder
        self._writer = Writer()
        self._clock: Alarm | None = None
        self._wake: Callable[[], None]  # set by `start`, where a clock runs
        self._overdue = False
        self._processes = processes
        self._is_chosen = config.every_n_minutes != "auto"  # whether it is known how often to save
        self._minutes = _FIRST_MINUTES if config.every_n_minutes == "auto" else config.every_n_minutes
        self._blocked: float | None = None  # seconds that training waited for the first save
        self._written: float | None = None  # seconds that writing it took; set by the writer's thread
        self._saved_step = -1
        self._marked: _Pending | None = None  # of the last boundary; None where every step is one
        self._extracted: set[int] = set()  # steps of best models that were taken from a cumulative framework
        self._unwritten: dict[int, Snapshot] = {}  # best models by step; a thread that takes one pops it
        # The steps of the best models that are needed: by the evaluations so far, by each submitted save, and
        # by each checkpoint that is kept, as a resume may start from any of them.
        self._current_best: frozenset[int] = frozenset()
        self._submitted_best: dict[int, frozenset[int]] = {}
        self._needed: dict[str, frozenset[int]] = {}
        self._newest = self._committed = 0  # the steps of the newest save that was submitted, and committed

    def start(self, wake: Callable[[], None]) -> None:
        """Start the clock of `every_n_minutes`.

        It starts again after each save, and calls `wake` in another thread.
        """
        self.stop_clock()
        self._overdue = False
        if self._minutes is None:
            return

        def ring() -> None:
            self._overdue = True
            wake()

        self._wake = wake
        self._clock = call_later(self._minutes * 60, ring)

    def stop_clock(self) -> None:
        """Stop the clock of `every_n_minutes`."""
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def suggested_interval(self) -> dict[str, Any] | None:
        """Return the interval that the cost of the first save suggests, for the loop to decide on.

        None if the config or a decision has set it, or if no save has been measured yet.
        """
        if self._is_chosen or self._blocked is None or self._written is None:
            return None
        cost = SaveCost(self._blocked, self._written)
        return chosen_interval(cost, self._config.mtbf_hours or MTBF_HOURS, self._processes)

    def save_every(self, minutes: float) -> None:
        """Save every `minutes` minutes from now on, as was decided."""
        self._is_chosen, self._minutes = True, minutes
        if self._clock is not None and not self._overdue:  # else the save that is due starts it
            self.start(self._wake)

    @property
    def overdue(self) -> bool:
        """True if the clock asks for a save, and there is something to save before the next boundary."""
        return self._overdue and (self._plan.boundary == 1 or self._has_unsaved_mark())

    @property
    def newest_is_committed(self) -> bool:
        """True if the newest resume checkpoint that was asked for is on disk; call `drain` first."""
        return self._committed >= self._newest

    def _has_unsaved_mark(self) -> bool:
        return self._marked is not None and self._marked.step > self._saved_step

    def wants(self, step: int, *, finished: bool = False) -> bool:
        """Return whether `save` would save something."""
        only_marks = self._plan.boundary > 1 and not finished
        return self._has_unsaved_mark() if only_marks else step > self._saved_step

    def is_due(self, step: int) -> bool:
        """Return whether a resume checkpoint is to be saved after this step."""
        every = self._config.every_n_steps
        return self._overdue or (every is not None and step % every == 0)

    def at_boundary(self, step: int) -> bool:
        """Return whether the state after this step is to be marked."""
        return self._plan.boundary > 1 and step % self._plan.boundary == 0

    def mark(self, state: RunState, best: Collection[int]) -> None:
        """Remember the state at a boundary of the framework.

        A save before the next boundary writes this one.
        """
        self._marked = self._pending(state, best)

    def save(self, state: RunState, best: Collection[int], *, finished: bool = False) -> None:
        """Save a resume checkpoint of this step, or of the last boundary if only boundaries can be resumed.

        A step that is saved already is not saved again. With `finished`, the last step is saved even if
        it is not a boundary: no step follows it, only evaluations.
        """
        began = time.perf_counter()
        if not self.wants(state.step, finished=finished):
            return
        marked = None if self._plan.boundary == 1 or finished else self._marked
        pending = marked or self._pending(state, best)
        self._saved_step = self._newest = pending.step
        self._submitted_best[pending.step] = pending.best
        self._extract_best(pending.best)
        self._recorder.journal.flush()
        may_wait = finished and self._is_small  # for `drain`, which follows
        write = PendingWrite(pending.step, lambda: self._write(pending), replaceable=True, may_wait=may_wait)
        self._writer.submit(write)
        if self._blocked is None:
            self._blocked = time.perf_counter() - began
        self._recorder.saving(pending.step)
        if self._clock is not None:
            self.start(self._wake)

    def store_journal(self, step: int) -> None:
        """Block until the journal of a run in a store is there, with what was decided for a step.

        If the store cannot be reached, the next commit brings it there.
        """
        lease = self._checkpoints.lease
        if lease is not None and lease.is_in_store:  # through the writer: no other thread may use it
            self._writer.submit(PendingWrite(step, lease.renew, replaceable=False))
            self._writer.drain()

    def _pending(self, state: RunState, best: Collection[int]) -> _Pending:
        return _Pending(state.step, self._learner.snapshot(), state.to_json(), frozenset(best))

    def _write(self, pending: _Pending) -> None:
        """Commit a resume checkpoint; called in the writer's thread."""
        began = time.perf_counter()
        try:
            self._recorder.journal.sync()
            self._write_best()  # a resume checkpoint must not exist without the best models that it needs
            commit = self._checkpoints.resume.commit(
                pending.step, pending.snapshot, pending.state, pending.best, self._checkpoints.best
            )
            kept = self._publish(commit)
        except Exception:
            self._forget_submitted(pending.step)
            if self._saved_step == pending.step:  # else a newer one is waiting
                self._saved_step = -1
            raise
        finally:
            if self._plan.boundary == 1:  # else it may be written again
                pending.snapshot.release()
        self._committed = pending.step
        if self._written is None:
            self._written = time.perf_counter() - began
        self._checkpoints.resume.prune(kept)
        self._needed = {name: self._needed.get(name, frozenset()) for name in kept} | {
            commit.name: pending.best
        }
        self._forget_submitted(pending.step)
        self._prune_best()

    def _publish(self, commit: Commit) -> set[str]:
        """Name a new checkpoint in the log, with those that are kept; return all these names.

        If that fails, the checkpoint does not exist, and is deleted: the next save makes another.
        """
        # A checkpoint of a later step was damaged when this attempt began, else the attempt would have
        # resumed from it.
        published = [
            name for name in self._checkpoints.resume.names(published=True) if step_of(name) <= commit.step
        ]
        kept = {commit.name, *published[: self._config.keep_last]}
        try:
            self._checkpoints.publish(kept)
        except Exception:
            self._checkpoints.resume.delete(commit.name)
            raise
        return kept

    def _forget_submitted(self, step: int) -> None:
        """Forget the saves up to a step: they are committed, replaced, or have failed."""
        for submitted in list(self._submitted_best):
            if submitted <= step:
                del self._submitted_best[submitted]

    def keep_best(self, step: int, best: Collection[int]) -> None:
        """Save the weights of this step if it is one of `best`, the steps of the best models from now on."""
        self._current_best = frozenset(best)
        if step in best and not self._plan.cumulative:
            self._submit_best(step, self._learner.snapshot(weights_only=True))

    def _extract_best(self, best: Collection[int]) -> None:
        """Extract best models from the state of a cumulative framework.

        They are extracted only at a save, since most are surpassed before the next one.
        """
        if self._plan.cumulative:
            missing, self._extracted = sorted(set(best) - self._extracted), set(best)
            for step in missing:
                self._submit_best(step, self._learner.snapshot(weights_only=True, step=step))

    def _submit_best(self, step: int, snapshot: Snapshot) -> None:
        """Write a best model; a small one with the next save, which most do not live to see."""
        if self._is_small:
            self._unwritten[step] = snapshot
            for other in self._unwritten.keys() - self._wanted():
                self._release(other)
            return

        def write() -> None:
            self._unwritten[step] = snapshot
            self._write_best()
            self._prune_best()

        self._writer.submit(PendingWrite(step, write, replaceable=False))

    def _release(self, step: int) -> None:
        """Forget a best model that was not written; the other thread may have just taken it."""
        if (snapshot := self._unwritten.pop(step, None)) is not None:
            snapshot.release()

    @cached_property
    def _is_small(self) -> bool:
        """True if copies of the weights may wait in memory for the next save."""
        count = self._learner.model().parameter_count
        return count is not None and count <= _SMALL

    def _write_best(self) -> None:
        """Write the best models that are not on disk yet, including those whose writing failed before."""
        for step in list(self._unwritten):
            snapshot = self._unwritten.pop(step, None)
            if snapshot is None:
                continue  # the other thread has just released it
            try:
                if step in self._wanted():  # else a better one came while it waited
                    self._checkpoints.best.commit(step, snapshot)
            except Exception:
                self._unwritten[step] = snapshot
                raise
            snapshot.release()

    def resume_from(self, state: RunState, best: Collection[int]) -> None:
        """Continue from a commit, and remove the best models of later steps: they will be made again."""
        self._saved_step = state.step if 0 < state.step == state.settled else -1
        minutes = state.decisions.checkpoint_minutes(self._processes)
        if minutes is not None and not self._is_chosen:
            self.save_every(minutes)
        self._current_best = frozenset(best)
        self._needed = {name: self._best_of(name) for name in self._checkpoints.resume.names()}
        self._prune_best()
        if self._plan.cumulative:
            self._extracted = {step_of(name) for name in self._checkpoints.best.names(published=True)}

    def _best_of(self, name: str) -> frozenset[int]:
        """Return the steps of the best models that a checkpoint needs.

        An empty set if its manifest cannot be read.
        """
        try:
            return self._checkpoints.resume.read_manifest(name).best
        except CheckpointError:
            return frozenset()

    def drop_superseded_best(self) -> None:
        """Remove the best models that only earlier checkpoints need: nothing resumes from those any more."""
        self._needed, self._marked = {}, None
        self._prune_best()

    def failures(self) -> list[tuple[int, str]]:
        """Return the saves that failed since the last call, as (step, message); see `Writer.failures`."""
        return self._writer.failures()

    def drain(self) -> None:
        """Block until everything is on disk, or has failed; errors as in `Journal.require_owner`."""
        self._recorder.journal.require_owner()  # a child would write what its parent writes, or wait for ever
        self._writer.drain()

    def close(self) -> None:
        """Stop the clock and the writer; waiting writes are dropped."""
        self.stop_clock()
        self._writer.close()

    def _wanted(self) -> Collection[int]:
        """Return the steps of the best models that are needed now, or by a resume from any commit."""
        marked = self._marked.best if self._marked else frozenset()
        needed = frozenset[int]().union(*self._needed.values())
        submitted = frozenset[int]().union(*list(self._submitted_best.values()))
        return self._current_best | needed | submitted | marked | self._extracted

    def _prune_best(self) -> None:
        self._checkpoints.best.prune_steps(self._wanted())


class FollowerSaver(Saver):
    """Copy a follower's parts of each save: a process that is not the main one commits nothing."""

    overdue = False

    def start(self, wake: Callable[[], None]) -> None:
        """Do nothing."""

    def save_every(self, minutes: float) -> None:
        """Do nothing."""

    def is_due(self, step: int) -> bool:  # noqa: ARG002 - as in `Saver`
        """Return False."""
        return False

    def at_boundary(self, step: int) -> bool:  # noqa: ARG002 - as in `Saver`
        """Return False."""
        return False

    def save(self, state: RunState, best: Collection[int], *, finished: bool = False) -> None:  # noqa: ARG002 - as in `Saver`
        """Copy this process's parts of the state, which it writes when the main process does."""
        self._learner.snapshot()

    def keep_best(self, step: int, best: Collection[int]) -> None:
        """Copy this process's parts of the weights if this step is one of the best."""
        if step in best and not self._plan.cumulative:
            self._learner.snapshot(weights_only=True)

    def resume_from(self, state: RunState, best: Collection[int]) -> None:
        """Do nothing."""

    def drop_superseded_best(self) -> None:
        """Do nothing."""
