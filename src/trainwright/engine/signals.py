"""SIGTERM and SIGINT: finish the step, commit, exit. A second Ctrl-C ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal

from trainwright.records.status import EXIT_CODES, Ended

STATUS_OF: dict[signal.Signals, Literal["preempted", "interrupted"]] = {
    signal.SIGTERM: "preempted",
    signal.SIGINT: "interrupted",
}


class Stopped(BaseException):
    """A signal asked to stop. It is not an `Exception`, so that no handler of errors catches it."""

    def __init__(self, status: Ended) -> None:
        super().__init__(status)
        self.status = status
        self.run: Any = None  # the folder of the run that can be resumed, once there is one


class Signals:
    """The signal handlers of an attempt; `status` is what a signal asked for, or None before the first.

    While `wake` is None (start-up), there is no step to finish: the handler raises `Stopped` in the main
    thread. A child that is forked meanwhile gets the handlers from before: it has no step to finish either.
    """

    def __init__(self) -> None:
        self.status: Ended | None = None
        self.wake: Callable[[], None] | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():  # Python delivers signals nowhere else
            for signum in STATUS_OF:
                self._previous[signum] = signal.signal(signum, self._handle)
            _entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)
        if self in _entered:
            _entered.remove(self)

    def check(self) -> None:
        """Raise `Stopped` if a signal came; long phases call this where they may end."""
        if self.status is not None:
            raise Stopped(self.status)

    def _handle(self, number: int, _: FrameType | None) -> None:
        signum = signal.Signals(number)
        if self.status is not None:
            if signum == signal.SIGINT:
                os._exit(EXIT_CODES["interrupted"])
            return
        self.status = STATUS_OF[signum]
        if self.wake is None:
            raise Stopped(self.status)
        self.wake()


_entered: list[Signals] = []  # whose handlers are in place, in the main thread


def _leave_in_child() -> None:
    for signals in reversed(_entered[:]):
        signals.__exit__()


os.register_at_fork(after_in_child=_leave_in_child)
