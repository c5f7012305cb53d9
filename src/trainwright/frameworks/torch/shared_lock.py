"""A lock that many threads share, or one has alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class SharedLock:
    """Let calls run together, or one of them alone (a readers-writer lock)."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._running = 0

    @contextmanager
    def shared(self, begin: Callable[[], None]) -> Iterator[None]:
        """Hold the lock together with others; the first of them calls `begin`."""
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
    def exclusive(self) -> Iterator[None]:
        """Wait for all others to end, and hold the lock alone; those that come meanwhile wait."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
            yield
