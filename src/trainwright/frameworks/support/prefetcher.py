"""Read the samples of a split when they are taken, or ahead of that in worker processes or a thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.datasets.base import Draw, SampleSplit
from trainwright.frameworks.support.workers import Workers
from trainwright.order import SampleOrder
from trainwright.types import Array, Batch, Ids


@dataclass(slots=True, eq=False)
class Samples:
    """Samples that are read together; a slice holds some of them.

    Attributes:
        ids: (n,) their positions.
        epoch: The epoch of the training; None outside of it.
        numbers: (n,) which draws of the epoch they are, if they are drawn with replacement.
    """

    ids: Ids
    epoch: int | None = None
    numbers: Ids | None = None

    @staticmethod
    def of_step(order: SampleOrder, step: int) -> Samples:
        """Return the samples of a step."""
        return Samples(order.batch(step), order.cursor(step).epoch, order.draw_numbers(step))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, some: slice) -> Samples:
        return Samples(self.ids[some], self.epoch, None if self.numbers is None else self.numbers[some])

    def draw(self, seed: int) -> Draw:
        """Return what the random numbers of the samples depend on."""
        return Draw(seed, self.epoch, self.numbers)

    def is_like(self, other: Samples) -> bool:
        """Return whether these are the same samples, with the same random numbers."""
        same = self.epoch == other.epoch and np.array_equal(self.ids, other.ids)
        return same and np.array_equal(self._numbers, other._numbers)

    @property
    def _numbers(self) -> Ids:
        return np.empty(0, np.int64) if self.numbers is None else self.numbers


class Prefetcher:
    """The batches of a split.

    What is taken never depends on what was expected: a batch that no worker has read is read when it is
    taken.

    Args:
        split: The samples.
        seed: The seed of the run.
        copied: Copies the arrays of a batch, whose memory is used again.
    """

    def __init__(self, split: SampleSplit, seed: int, copied: Callable[[Mapping[str, Array]], Any]) -> None:
        self._split = split
        self._seed = seed
        self._copied = copied
        self._workers: Workers | ReaderThread | None = None
        self._upcoming: Iterator[Samples] = iter(())
        self._tickets: deque[tuple[Samples, Any]] = deque()

    @property
    def has_workers(self) -> bool:
        """Return whether worker processes, or a thread, read ahead."""
        return self._split.reading.workers > 0 or self._split.reading.in_thread

    def expect(self, upcoming: Iterator[Samples]) -> None:
        """Have the workers read what will be taken, in this order, instead of what was expected before."""
        if not self.has_workers:
            return
        self._forget()
        self._upcoming = upcoming
        self._submit()

    def take(self, samples: Samples) -> Any:
        """Return the samples, as `copied` copies them.

        Raises:
            DataError: A sample cannot be read.
            TrainingError: A worker has died, or hangs.
        """
        found = next((index for index, (one, _) in enumerate(self._tickets) if one.is_like(samples)), None)
        if found is None:
            return self._copied(self._split.read(samples.ids, samples.draw(self._seed)))
        assert self._workers is not None, "it has given the tickets"
        _, ticket = self._tickets[found]
        del self._tickets[found]
        batch = self._workers.batch(ticket, self._copied)
        self._submit()
        return batch

    def close(self) -> None:
        """End the workers; they are started again if more is expected."""
        self._tickets.clear()
        self._upcoming = iter(())
        if self._workers is not None:
            self._workers.close()
            self._workers = None

    def _forget(self) -> None:
        """Drain batches that were requested but are no longer needed."""
        self._upcoming = iter(())
        while self._tickets and self._workers is not None:
            self._workers.drop(self._tickets.popleft()[1])

    def _submit(self) -> None:
        """Keep the workers busy."""
        for samples in self._upcoming:
            self._workers = self._workers or self._started(samples)
            self._tickets.append((samples, self._workers.submit(samples.ids, samples.draw(self._seed))))
            if len(self._tickets) >= self._workers.depth:
                return

    def _started(self, samples: Samples) -> Workers | ReaderThread:
        """Start what reads ahead; the samples say how much memory a batch takes."""
        if not self._split.reading.workers:
            return ReaderThread(self._split)
        first = self._split.read(samples.ids[:1], samples.draw(self._seed))
        return Workers(self._split, _nbytes(first), len(samples.ids))


def _nbytes(batch: Batch) -> int:
    return sum(array.nbytes for array in batch.values())


class ReaderThread:
    """Read one batch after the other; the methods are those of `workers.Workers`.

    Args:
        split: The samples, which `Reading.in_thread` lets another thread read.
    """

    def __init__(self, split: SampleSplit) -> None:
        self._split = split
        self._thread = ThreadPoolExecutor(1, "samples")

    @property
    def depth(self) -> int:
        """The number of batches that may be asked for before one is taken."""
        return self._split.reading.prefetch

    def submit(self, ids: Ids, draw: Draw) -> Future[Batch]:
        """Ask for a batch."""
        return self._thread.submit(self._split.read, ids, draw)

    def batch(self, ticket: Future[Batch], copied: Callable[[Mapping[str, Array]], Any]) -> Any:
        """Wait for a batch, and return what `copied` makes of it.

        Raises:
            DataError: A sample cannot be read.
        """
        return copied(ticket.result())

    def drop(self, ticket: Future[Batch]) -> None:
        """Forget a batch that was asked for."""
        ticket.cancel()

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)
