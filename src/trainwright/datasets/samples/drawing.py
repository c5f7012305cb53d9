"""Read samples whose reading draws random numbers, each from a stream of its own.

Data sets of the user's draw from the global generators of Python, NumPy and torch, to augment samples. The
generators are seeded for each sample, and restored afterwards, so that reading has no effect on anything
else. Most data sets draw nothing, which their unchanged states show; these are read without any of this.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from trainwright.datasets.base import Draw

S = TypeVar("S")
T = TypeVar("T")
_LOCK = threading.RLock()  # the generators are those of the process


class Drawing:
    """Read the samples of one data set, and remember whether they draw random numbers."""

    def __init__(self) -> None:
        self.draws = False

    def read(
        self,
        positions: Sequence[int],
        draw: Draw,
        together: Callable[[Sequence[int]], list[T]],
        single: Callable[[int], T],
    ) -> list[T]:
        """Return the samples at some positions.

        Args:
            positions: The positions.
            draw: What their random numbers depend on.
            together: Reads several samples at once.
            single: Reads one sample.
        """
        with _LOCK, preserved() as before:
            if not self.draws:
                samples = together(positions)
                if _same(before, _states()):
                    return samples
                self.draws = True  # these were drawn from whatever the state was
            return [_seeded(single, one, draw.of(one, index)) for index, one in enumerate(positions)]

    def call(self, function: Callable[[S], T], samples: S, draw: Draw | None, position: int) -> T:
        """Return what a function makes of samples; the first one's position seeds its random numbers."""
        if draw is None:
            return function(samples)
        with _LOCK, preserved():
            _seed(draw.of(position))
            return function(samples)


def _seeded(single: Callable[[int], T], position: int, seed: int) -> T:
    _seed(seed)
    return single(position)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32])
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(seed & 0xFFFFFFFF)  # it takes no more bits


def _states() -> list[Any]:
    states: list[Any] = [random.getstate(), np.random.get_state()]
    if (torch := sys.modules.get("torch")) is not None:
        states.append(torch.default_generator.get_state())
    return states


def _same(before: Sequence[Any], after: Sequence[Any]) -> bool:
    of_python, of_numpy = before[0] == after[0], all(map(np.array_equal, before[1], after[1]))
    return of_python and of_numpy and len(before) == len(after) and all(map(_equal, before[2:], after[2:]))


def _equal(before: Any, after: Any) -> bool:
    return bool(before.equal(after))


@contextmanager
def preserved() -> Iterator[list[Any]]:
    """Restore the generators, and torch's number of threads: one thread reads, as in a worker process."""
    before, torch = _states(), sys.modules.get("torch")
    threads = 1 if torch is None else torch.get_num_threads()
    if torch is not None and threads != 1:
        torch.set_num_threads(1)
    try:
        yield before
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        if torch is not None:
            if len(before) > 2:
                torch.default_generator.set_state(before[2])
            if threads != 1:
                torch.set_num_threads(threads)
