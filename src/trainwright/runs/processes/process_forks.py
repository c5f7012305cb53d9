"""Children that the user's code forks and lets return into our frames."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_owner(phase: Callable[[], T]) -> T:
    """Run a phase of an attempt; a forked child that comes out of it, however it does, ends here.

    The run belongs to the parent. A child must not write to it, and cannot wait for threads that only its
    parent has.
    """
    owner = os.getpid()
    try:
        return phase()
    finally:
        if os.getpid() != owner:
            _end_child(sys.exc_info()[1])


def _end_child(error: BaseException | None) -> None:
    """End this process as Python would, but run no handlers of its parent."""
    code = 0
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif error is not None:
        traceback.print_exception(error)
        code = 1
    sys.stderr.flush()
    os._exit(code)
