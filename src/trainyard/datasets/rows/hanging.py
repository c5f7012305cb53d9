"""End the reading of a sample that hangs, where no worker reads it, which the process would watch.

A timer of the system interrupts the main thread, in whatever call it waits. It is left alone where somebody
else uses it, and in other threads, which no signal interrupts.
"""

from __future__ import annotations

import errno
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from trainyard.datasets.base import Reading, unnoted
from trainyard.errors import DataError

_LONGEST = 1e8  # seconds that a timer takes


class _Hanging(BaseException):
    """Stop the user's code, which catches exceptions of its own."""


@contextmanager
def ended_if_hanging(reading: Reading) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the position of each sample before it is read.

    Args:
        reading: How the samples are read, and for how long at most.

    Raises:
        DataError: A sample took longer than `data.timeout`.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or reading.timeout > _LONGEST or any(signal.getitimer(signal.ITIMER_REAL)):
        yield unnoted
        return
    current: int | None = None

    def begin(position: int) -> None:
        nonlocal current
        current = position
        signal.setitimer(signal.ITIMER_REAL, reading.timeout)

    def expired(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler gets both
        raise _Hanging("" if frame is None else f", at {frame.f_code.co_filename}:{frame.f_lineno}")

    before = signal.signal(signal.SIGALRM, expired)
    try:
        yield begin
    except _Hanging as error:
        raise DataError(
            f"{reading.name}: item {current} hangs: it has been read for {reading.timeout:g} s "
            f"(data.timeout){error}; resume the run, or start it again, with a larger data.timeout if it "
            "only takes long"
        ) from TimeoutError(errno.ETIMEDOUT, "hangs")  # no sample is to blame for it
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
