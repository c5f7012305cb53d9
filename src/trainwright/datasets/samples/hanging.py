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

from trainwright.datasets.base import Reading, unnoted
from trainwright.errors import DataError

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
    if reading.timeout > _LONGEST or not _is_free():
        yield unnoted
        return
    current: int | None = None
    hanging: _Hanging | None = None

    def begin(position: int) -> None:
        nonlocal current
        raise_if_hanging()
        current = position
        signal.setitimer(signal.ITIMER_REAL, reading.timeout)

    def expired(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler gets both
        nonlocal hanging
        hanging = _Hanging("" if frame is None else f", at {frame.f_code.co_filename}:{frame.f_lineno}")
        raise hanging

    def raise_if_hanging() -> None:
        # Code with a bare `except` caught it, and gave another sample, perhaps: that depends on the time.
        if hanging is not None:
            raise hanging

    before = signal.signal(signal.SIGALRM, expired)
    try:
        yield begin
        raise_if_hanging()
    except _Hanging as error:
        raise DataError(
            f"{reading.name}: item {current} hangs: it has been read for {reading.timeout:g} s "
            f"(data.timeout){error}; resume the run, or start it again, with a larger data.timeout if it "
            "only takes long"
        ) from TimeoutError(errno.ETIMEDOUT, "hangs")  # no sample is to blame for it
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _is_free() -> bool:
    """Return whether this is the main thread, and nobody else uses the timer, or is prepared for it."""
    is_main = threading.current_thread() is threading.main_thread()
    is_set = any(signal.getitimer(signal.ITIMER_REAL))
    return is_main and not is_set and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
