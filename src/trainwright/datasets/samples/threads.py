"""Threads that read and decode files, for one process."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")
S = TypeVar("S")
_SHARES = 2  # of the work for each thread, so that they end at about the same time


class Threads:
    """Threads that are started when they are needed, in each process by itself."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._owner = 0
        self._starting = threading.Lock()

    def map(self, function: Callable[[S], T], values: Iterable[S]) -> list[T]:
        """Return the results of a function that may be called by several threads, in order."""
        listed = list(values)
        if len(listed) < 2 or multiprocessing.parent_process() is not None:  # one of several workers
            return [function(value) for value in listed]
        size = -(-len(listed) // (_SHARES * processors()))
        shares = [listed[start : start + size] for start in range(0, len(listed), size)]
        done = self.pool().map(lambda share: [function(value) for value in share], shares)
        return [result for results in done for result in results]

    def pool(self) -> ThreadPoolExecutor:
        """Return the threads of this process."""
        with self._starting:
            if self._pool is None or self._owner != os.getpid():  # a fork has no threads
                self._pool, self._owner = ThreadPoolExecutor(processors(), "files"), os.getpid()
            return self._pool

    def __getstate__(self) -> dict[str, Any]:
        """Leave the threads behind."""
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin without threads."""
        self.__init__()  # type: ignore[misc]


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


THREADS = Threads()
