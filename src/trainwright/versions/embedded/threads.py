"""Requests to a store that threads make a little ahead, while their results are used in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
S = TypeVar("S")
_THREADS = max(2, min(8, os.cpu_count() or 1))
_AHEAD = 2 * _THREADS  # results that wait to be used, each of a chunk's size at most


def in_order(function: Callable[[S], T], values: Iterable[S]) -> Iterator[tuple[S, T]]:
    """Yield each value with the result of a function, which threads compute a little ahead."""
    with ThreadPoolExecutor(_THREADS) as pool:
        ahead: deque[tuple[S, Future[T]]] = deque()
        try:
            for value in values:
                ahead.append((value, pool.submit(function, value)))
                if len(ahead) > _AHEAD:
                    first, future = ahead.popleft()
                    yield first, future.result()
            while ahead:
                first, future = ahead.popleft()
                yield first, future.result()
        finally:
            pool.shutdown(cancel_futures=True)
