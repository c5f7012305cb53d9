"""A thread that reads batches of samples ahead of the training, where there are no worker processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from trainwright.datasets.base import Draw, SampleSplit
from trainwright.types import Array, Batch, Ids


class ReaderThread:
    """Read one batch after the other; the methods are those of `workers.Workers`.

    Args:
        split: The samples, which `Reading.in_thread` lets another thread read.
    """

    def __init__(self, split: SampleSplit) -> None:
        self._split = split
        self._thread = ThreadPoolExecutor(1, "samples")

    @property
    def ahead(self) -> int:
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
