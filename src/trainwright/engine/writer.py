"""Write checkpoints, in a thread, while training continues.

Writes happen in the order of submission, so a resume checkpoint is never on disk before the best models that
it needs. A resume checkpoint that still waits is replaced by a newer one: no result depends on which were
written.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from trainwright.errors import CheckpointError, RunGoneError, RunLostError

_MOST_WAITING = 3  # each holds a copy of the state; beyond this, training waits for the disk


class PendingWrite(NamedTuple):
    """A write that waits for the thread.

    Of the waiting ones that are `replaceable`, only the newest is kept. One that `may_wait` is begun together
    with the next one that may not, when the queue is full, or by `drain`.
    """

    step: int
    run: Callable[[], None]
    replaceable: bool
    may_wait: bool = False


class Writer:
    """Write in the background; failures are kept until the loop asks for them.

    The thread is started for the first write that may not wait. Where none has come, `drain` writes.
    """

    def __init__(self) -> None:
        self._waiting: deque[PendingWrite] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._closed = self._draining = False
        self._failures: list[tuple[int, str]] = []
        self._gone: RunGoneError | RunLostError | None = None
        self._thread: threading.Thread | None = None

    def submit(self, write: PendingWrite) -> None:
        """Queue a write; block only if the disk is several writes behind."""
        with self._changed:
            if self._gone is not None:
                return  # `failures` tells the loop
            if write.replaceable:
                self._waiting = deque(waiting for waiting in self._waiting if not waiting.replaceable)
            self._changed.wait_for(lambda: len(self._waiting) < _MOST_WAITING)
            self._waiting.append(write)
            if self._is_due():
                self._begin()

    def drain(self) -> None:
        """Block until all submitted writes have ended, successfully or not."""
        if self._thread is None:  # what waits takes less time than to start one
            while self._waiting:
                self._do(self._waiting.popleft())
            return
        with self._changed:
            self._draining = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._waiting and not self._busy)
            self._draining = False

    def failures(self) -> list[tuple[int, str]]:
        """Return the writes that failed since the last call, as (step, message).

        Raises:
            RunGoneError: The run directory is gone, so that no later write can succeed.
            RunLostError: Another attempt has taken the run over.
        """
        if self._gone is not None:
            raise self._gone
        with self._changed:
            failures, self._failures = self._failures, []
        return failures

    def close(self) -> None:
        """End the thread after its current write.

        Waiting writes are dropped (call `drain` first to keep them).
        """
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _begin(self) -> None:
        """Wake the thread, or start it for the first write."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="trainwright-writer", daemon=True)
            thread.start()  # fails where the system has no room for more; then `drain` writes
            self._thread = thread
        self._changed.notify_all()

    def _work(self) -> None:
        while (write := self._next()) is not None:
            try:
                self._do(write)
            finally:
                del write  # frees the snapshot before the next one is waited for
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    def _do(self, write: PendingWrite) -> None:
        try:
            write.run()
        except (RunGoneError, RunLostError) as error:
            self._give_up(error)
        except (CheckpointError, OSError) as error:
            self._failed(write, str(error))
        except Exception as error:
            self._failed(write, f"{type(error).__name__}: {error}")

    def _give_up(self, error: RunGoneError | RunLostError) -> None:
        """Write nothing more: the run directory is gone, or not ours any more."""
        with self._changed:
            self._gone = error
            self._waiting.clear()

    def _failed(self, write: PendingWrite, message: str) -> None:
        with self._changed:
            self._failures.append((write.step, message))

    def _next(self) -> PendingWrite | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_due() or self._closed)
            if not self._waiting:
                return None
            self._busy = True
            write = self._waiting.popleft()
            self._changed.notify_all()
            return write

    def _is_due(self) -> bool:
        """Return whether a write is to begin now."""
        is_full = len(self._waiting) >= _MOST_WAITING
        return bool(self._waiting) and (
            self._draining or is_full or not all(write.may_wait for write in self._waiting)
        )
