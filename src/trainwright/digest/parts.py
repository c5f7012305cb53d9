"""The geometry of parts: which bytes of a tensor, in row-major order, a block of it holds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainwright.types import Block

Offsets = npt.NDArray[np.int64]


class Piece(NamedTuple):
    """The bytes of a block that lie in one chunk of its tensor: `start` to `stop` of the block's buffer."""

    chunk: int
    start: int
    stop: int


@dataclass(frozen=True)
class Runs:
    """The bytes of a block, as runs that lie together in the tensor, in row-major order.

    Args:
        starts: Where each run begins in the tensor, in bytes, (runs,) ascending.
        length: The number of bytes of each run.
        size: The number of bytes of the tensor.
    """

    starts: Offsets
    length: int
    size: int

    @staticmethod
    def of(shape: Sequence[int], block: Block, item_bytes: int) -> Runs:
        """Return the runs of a block.

        Args:
            shape: The shape of the block.
            block: Its place.
            item_bytes: The number of bytes of an element.

        Raises:
            ValueError: The block does not lie in the tensor.
        """
        whole, offset = block.whole, block.offset
        if not (len(shape) == len(whole) == len(offset)) or any(
            first < 0 or first + count > size for first, count, size in zip(offset, shape, whole, strict=True)
        ):
            raise ValueError(f"a block of shape {tuple(shape)} at {offset} is not in a tensor of {whole}")
        cut = [axis for axis, (count, size) in enumerate(zip(shape, whole, strict=True)) if count != size]
        last = cut[-1] if cut else 0
        steps = [math.prod(whole[axis + 1 :]) * item_bytes for axis in range(len(whole))] or [item_bytes]
        starts = np.zeros(1, np.int64)
        for axis in range(last):
            along = (offset[axis] + np.arange(shape[axis])) * steps[axis]
            starts = (starts[:, None] + along).reshape(-1)
        size = math.prod(whole) * item_bytes
        if not cut:
            return Runs(starts, size, size)
        return Runs(starts + offset[last] * steps[last], shape[last] * steps[last], size)

    def pieces(self, chunk_bytes: int) -> Iterator[Piece]:
        """Yield the pieces of the block, in the order of its bytes."""
        stops = self.starts + self.length
        firsts, lasts = self.starts // chunk_bytes, (stops - 1) // chunk_bytes
        if not self.length or not len(self.starts):
            return
        spans = (
            [firsts, lasts]
            if self.length <= chunk_bytes
            else [np.arange(first, last + 1) for first, last in zip(firsts, lasts, strict=True)]
        )
        for chunk in np.unique(np.concatenate(spans)).tolist():
            low, high = chunk * chunk_bytes, (chunk + 1) * chunk_bytes
            first = int(np.searchsorted(stops, low, "right"))
            last = int(np.searchsorted(self.starts, high, "left")) - 1
            start = first * self.length + max(0, low - int(self.starts[first]))
            stop = last * self.length + min(self.length, high - int(self.starts[last]))
            yield Piece(chunk, start, stop)

    def positions(self, chunk: int, chunk_bytes: int) -> Offsets:
        """Return where the bytes of the piece in a chunk lie in that chunk, (bytes,)."""
        low = chunk * chunk_bytes
        begins = np.maximum(self.starts, low) - low
        ends = np.minimum(self.starts + self.length, low + chunk_bytes) - low
        inside = ends > begins
        begins, counts = begins[inside], (ends - begins)[inside]
        before = np.concatenate([[0], np.cumsum(counts)[:-1]])
        return np.repeat(begins - before, counts) + np.arange(counts.sum())

    def chunk_size(self, chunk: int, chunk_bytes: int) -> int:
        """Return the number of bytes of a chunk of the tensor."""
        return min(chunk_bytes, self.size - chunk * chunk_bytes)
