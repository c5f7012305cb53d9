"""The body of a worker process, which reads batches of samples for the process that trains."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np

from trainwright.datasets.base import Draw, SampleSplit
from trainwright.types import Array, Ids
from trainwright.world import portable

READ, INLINE, FAILED = "read", "inline", "failed"  # kinds of answers
NO_SAMPLE = -1
_PART_IDS = 256  # with their numbers 4 KiB: a pipe that takes anything takes them at once
_ALIGNED = 64
_PR_SET_PDEATHSIG = 1


class Request(NamedTuple):
    """A batch to read: its number, the slot of shared memory for it, and its samples."""

    number: int
    slot: int
    ids: Ids
    draw: Draw
    goes_on: bool = False  # with another part, which has the next ids

    def parts(self) -> Iterator[Request]:
        """Yield the request in parts that a pipe holds."""
        starts = range(0, max(len(self.ids), 1), _PART_IDS)
        for start in starts:
            part, numbers = slice(start, start + _PART_IDS), self.draw.numbers
            draw = self.draw if numbers is None else self.draw._replace(numbers=numbers[part])
            yield self._replace(ids=self.ids[part], draw=draw, goes_on=start != starts[-1])


def serve(
    split: SampleSplit,
    pipe: Connection,
    others: Connection,
    slots: Sequence[mmap.mmap],
    current: Array,
    stacks: int,
    parent: int,
) -> None:
    """Read batches until the other end of the pipe is closed.

    Args:
        split: The samples.
        pipe: Where requests come from, and answers go to.
        others: The other end of the pipe, which belongs to the parent.
        slots: Memory that is shared with the parent, for one batch each.
        current: (1,) int64, shared: where to write the position of the sample that is being read.
        stacks: The file into which the stacks are written at SIGUSR1.
        parent: The process to which this belongs.
    """
    others.close()
    _settle(stacks, parent)
    with suppress(EOFError, ConnectionError):
        while True:
            request = _received(pipe)
            answer = _answer(split, request, slots[request.slot], current)
            current[0] = NO_SAMPLE
            pipe.send((request.number, *answer))


def _received(pipe: Connection) -> Request:
    """Return the next request, put together from its parts."""
    parts: list[Request] = [pipe.recv()]
    while parts[-1].goes_on:
        parts.append(pipe.recv())
    numbers, draw = [part.draw.numbers for part in parts], parts[0].draw
    if draw.numbers is not None:
        draw = draw._replace(numbers=np.concatenate([some for some in numbers if some is not None]))
    return parts[0]._replace(ids=np.concatenate([part.ids for part in parts]), draw=draw, goes_on=False)


def _settle(stacks: int, parent: int) -> None:
    """Set up the signals and threads of a worker, and make it end with its parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended in between
            os._exit(1)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # the threads of the parent are not here; `Drawing` reads with one, too


def _answer(split: SampleSplit, request: Request, slot: mmap.mmap, current: Array) -> tuple[str, Any]:
    """Read a batch into a slot; return where its arrays are, or these if there is no room, or an error."""

    def note(position: int) -> None:
        current[0] = position

    try:
        return _written(split.read(request.ids, request.draw, note), slot)
    except Exception as error:
        error.add_note("".join(traceback.format_exception(error)))  # an exception travels without its own
        return FAILED, portable(error)


def _written(batch: Mapping[str, Array], slot: mmap.mmap) -> tuple[str, Any]:
    places, start = {}, 0
    for name, array in batch.items():
        places[name] = (start, array.dtype.str, array.shape)
        start += -(-array.nbytes // _ALIGNED) * _ALIGNED
    if start > len(slot) or any(array.dtype.hasobject for array in batch.values()):
        return INLINE, dict(batch)
    for name, (at, dtype, shape) in places.items():
        np.frombuffer(slot, dtype, batch[name].size, at).reshape(shape)[...] = batch[name]
    return READ, places
