"""Read the samples of a split when they are taken, or ahead of that in worker processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from trainyard.datasets.base import Draw, SampleSplit
from trainyard.frameworks.support.workers import Ticket, Workers
from trainyard.types import Array, Batch, Ids


class Taking(NamedTuple):
    """Samples that are taken together, and the epoch of the training in which they are, if it is one."""

    ids: Ids
    epoch: int | None = None

    def is_like(self, other: Taking) -> bool:
        """Return whether these are the same samples in the same epoch."""
        return self.epoch == other.epoch and np.array_equal(self.ids, other.ids)


class Ahead:
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
        self._workers: Workers | None = None
        self._upcoming: Iterator[Taking] = iter(())
        self._tickets: deque[tuple[Taking, Ticket]] = deque()

    @property
    def has_workers(self) -> bool:
        """Whether worker processes read ahead."""
        return self._split.reading.workers > 0

    def expect(self, upcoming: Iterator[Taking]) -> None:
        """Have the workers read what will be taken, in this order, instead of what was expected before."""
        if not self.has_workers:
            return
        self._forget()
        self._upcoming = upcoming
        self._submit()

    def take(self, taking: Taking) -> Any:
        """Return the samples, as `copied` copies them.

        Raises:
            DataError: A sample cannot be read.
            TrainingError: A worker has died, or hangs.
        """
        found = next((index for index, (one, _) in enumerate(self._tickets) if one.is_like(taking)), None)
        if found is None:
            return self._copied(self._split.read(taking.ids, self._draw(taking)))
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
        """Let the workers finish what nobody will take."""
        self._upcoming = iter(())
        while self._tickets and self._workers is not None:
            self._workers.drop(self._tickets.popleft()[1])

    def _submit(self) -> None:
        """Keep the workers busy."""
        for taking in self._upcoming:
            if self._workers is None:
                first = self._split.read(taking.ids[:1], self._draw(taking))
                self._workers = Workers(self._split, _nbytes(first), len(taking.ids))
            self._tickets.append((taking, self._workers.submit(taking.ids, self._draw(taking))))
            if len(self._tickets) >= self._workers.ahead:
                return

    def _draw(self, taking: Taking) -> Draw:
        return Draw(self._seed, taking.epoch)


def _nbytes(batch: Batch) -> int:
    return sum(array.nbytes for array in batch.values())
