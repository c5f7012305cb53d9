"""Calls of one model by many threads, side by side or alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Calls:
    """Let calls run beside each other, or one of them alone."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._running = 0

    @contextmanager
    def beside(self, begin: Callable[[], None]) -> Iterator[None]:
        """Run a call beside others; `begin` is called first if there are none."""
        with self._changed:
            if not self._running:
                begin()
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run a call when all others have ended; those that come meanwhile wait."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
            yield
