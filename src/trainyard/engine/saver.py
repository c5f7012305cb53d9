"""When to save, and what to keep."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from trainyard.config.schema import CheckpointConfig
from trainyard.engine.checkpoint import Checkpoints, step_of
from trainyard.engine.recorder import Recorder
from trainyard.engine.state import RunState
from trainyard.engine.writer import PendingWrite, Writer
from trainyard.frameworks.base import Framework, Plan, Snapshot


@dataclass(frozen=True)
class RunCheckpoints:
    """Where checkpoints are kept: those to resume from, and the best models."""

    resume: Checkpoints
    best: Checkpoints


@dataclass(frozen=True)
class _Pending:
    """A resume checkpoint that may be written; `best` are the steps of the best models that it knows of."""

    step: int
    snapshot: Snapshot
    state: dict[str, Any]
    best: frozenset[int]


class Saver:
    """Takes the snapshots in the loop's thread and has the writer commit them.

    `wake` is called from another thread when the clock says that a save is due.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        framework: Framework,
        plan: Plan,
        checkpoints: RunCheckpoints,
        recorder: Recorder,
    ) -> None:
        self._config = config
        self._framework = framework
        self._plan = plan
        self._checkpoints = checkpoints
        self._recorder = recorder
        self._writer = Writer()
        self._timer: threading.Timer | None = None
        self._overdue = False
        self._saved_step = -1
        self._marked: _Pending | None = None  # of the last boundary; None where every step is one
        self._cut: set[int] = set()  # best models of a cumulative framework that were taken already
        self._owed: dict[int, Snapshot] = {}  # best models by step; only the writer's thread looks at them
        self._current_best: frozenset[int] = frozenset()  # by the loop's evaluations
        self._submitted_best: frozenset[int] = frozenset()  # by the newest save that was asked for
        self._durable_best: frozenset[int] = frozenset()  # by the newest commit: a resume may need them again
        self.newest = 0  # the step of that save

    def start(self, wake: Callable[[], None]) -> None:
        """Starts the clock of `every_n_minutes`, anew after each save."""
        self.stop_clock()
        self._overdue = False
        if self._config.every_n_minutes is None:
            return

        def ring() -> None:
            self._overdue = True
            wake()

        self._timer = threading.Timer(self._config.every_n_minutes * 60, ring)
        self._timer.daemon = True
        self._timer.start()
        self._wake = wake

    def stop_clock(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def overdue(self) -> bool:
        """Whether the clock asks for a save, and there is something to save before the next boundary."""
        return self._overdue and (self._plan.boundary == 1 or self._has_unsaved_mark())

    def _has_unsaved_mark(self) -> bool:
        return self._marked is not None and self._marked.step > self._saved_step

    def is_due(self, step: int) -> bool:
        """Whether a resume checkpoint is to be saved after this step."""
        every = self._config.every_n_steps
        return self._overdue or (every is not None and step % every == 0)

    def at_boundary(self, step: int) -> bool:
        """Whether the state after this step is to be marked."""
        return self._plan.boundary > 1 and step % self._plan.boundary == 0

    def mark(self, state: RunState, best: Collection[int]) -> None:
        """Remembers the state at a boundary of the framework: what is saved before the next one falls back to it."""
        self._marked = self._pending(state, best)

    def save(self, state: RunState, best: Collection[int], *, finished: bool = False) -> None:
        """Saves a resume checkpoint: of this step or, where the framework cannot go on exactly from here, of its last boundary.

        One that is saved already is not saved again. A `finished` run does not go on, so that any step will do.
        """
        if self._plan.boundary > 1 and not finished:
            pending = self._marked
        else:
            pending = self._pending(state, best) if state.step > self._saved_step else None
        if pending is None or pending.step <= self._saved_step:
            return
        self._saved_step = self.newest = pending.step
        self._submitted_best = pending.best
        self._cut_best(pending.best)
        self._recorder.journal.flush()
        self._writer.submit(PendingWrite(pending.step, lambda: self._write(pending), replaceable=True))
        self._recorder.saving(pending.step)
        if self._timer is not None:
            self.start(self._wake)

    def _pending(self, state: RunState, best: Collection[int]) -> _Pending:
        return _Pending(state.step, self._framework.snapshot(), state.to_json(), frozenset(best))

    def _write(self, pending: _Pending) -> None:
        """Commits a resume checkpoint; in the writer's thread."""
        try:
            self._recorder.journal.sync()
            self._write_owed()  # no resume checkpoint without the best models that it knows of
            commit = self._checkpoints.resume.commit(pending.step, pending.snapshot, pending.state)
        except Exception:
            if self._saved_step == pending.step:  # else a newer one is waiting
                self._saved_step = -1
            raise
        finally:
            if self._plan.boundary == 1:  # else it may be asked for again
                pending.snapshot.release()
        self._durable_best = pending.best
        self._prune_best()
        # What bears a later step was damaged when this attempt began, else it would have gone on from there.
        whole = [name for name in self._checkpoints.resume.names(whole=True) if step_of(name) <= pending.step]
        self._checkpoints.resume.prune({commit.name, *whole[: self._config.keep_last]})

    def keep_best(self, step: int, best: Collection[int]) -> None:
        """Saves the weights of this step if it is among the steps `best`, and lets go of those that are not any more."""
        self._current_best = frozenset(best)
        if step in best and not self._plan.cumulative:
            self._submit_best(step, self._framework.snapshot(weights_only=True))

    def _cut_best(self, best: Collection[int]) -> None:
        """Takes the best models out of a later one, where it holds them: most are surpassed before anyone needs them."""
        if self._plan.cumulative:
            missing, self._cut = sorted(set(best) - self._cut), set(best)
            for step in missing:
                self._submit_best(step, self._framework.snapshot(weights_only=True, step=step))

    def _submit_best(self, step: int, snapshot: Snapshot) -> None:
        def write() -> None:
            self._owed[step] = snapshot
            self._write_owed()
            self._prune_best()

        self._writer.submit(PendingWrite(step, write, replaceable=False))

    def _write_owed(self) -> None:
        """Writes the best models that are not on disk yet, those whose writing failed before among them."""
        for step, snapshot in list(self._owed.items()):
            if step in self._wanted():  # else it was surpassed while it waited
                self._checkpoints.best.commit(step, snapshot)
            snapshot.release()
            del self._owed[step]

    def resumed(self, state: RunState, best: Collection[int]) -> None:
        """Takes up where a commit left off: best models of later steps, and what a crash left of them, will be made again."""
        self._saved_step = state.step if 0 < state.step == state.settled else -1
        self._current_best = self._durable_best = frozenset(best)
        self._prune_best()
        self._cut = {step_of(name) for name in self._checkpoints.best.names(whole=True)}

    def failures(self) -> list[tuple[int, str]]:
        """The saves that failed since the last call, as (step, message)."""
        return self._writer.failures()

    def drain(self) -> None:
        """Returns when everything is on disk, or has failed."""
        self._writer.drain()

    def close(self) -> None:
        self.stop_clock()
        self._writer.close()

    def _wanted(self) -> Collection[int]:
        """The steps of the best models that are, or that a resume from some commit, done or to come, will need."""
        marked = self._marked.best if self._marked else frozenset()
        return self._current_best | self._durable_best | self._submitted_best | marked | self._cut

    def _prune_best(self) -> None:
        wanted = self._wanted()
        self._checkpoints.best.prune(
            {name for name in self._checkpoints.best.names() if step_of(name) in wanted}
        )
