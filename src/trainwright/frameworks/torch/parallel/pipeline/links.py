"""Links: tensors on their way between the processes of a pipeline."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from trainwright.errors import WorldError
from trainwright.frameworks.torch.parallel.stopwatch import waiting
from trainwright.frameworks.torch.state.snapshot import DTYPES

_DTYPES = list(DTYPES)
_HEADER = 10  # numbers in a message that says what the next one holds: dtype, dimensions, and up to 8 sizes


class Channel(NamedTuple):
    """A one-way connection; what one process sends into it, the other one receives in the same order.

    Attributes:
        tag: Its number among all channels of a pipeline.
        source: The index of the process that sends.
        target: The index of the one that receives.
    """

    tag: int
    source: int
    target: int


class Links:
    """The channels between the processes of a pipeline.

    Gloo tells channels apart by a tag. NCCL knows no tags, and a process that sends into one channel may wait
    for one that wants to send into another: there each channel is a group of its own.

    Args:
        group: The process group of the pipeline.
        separate: Whether each channel is a group of its own; default: unless the group's backend is gloo.
    """

    def __init__(self, group: Any, *, separate: bool | None = None) -> None:
        self._group = group
        self.index, self.size = dist.get_rank(group), dist.get_world_size(group)
        self._ranks = dist.get_process_group_ranks(group)
        self._separate = dist.get_backend(group) != "gloo" if separate is None else separate
        self._groups: dict[Channel, Any] = {}
        self._sent: deque[tuple[Any, Tensor]] = deque()

    def open(self, channels: Sequence[Channel], device: torch.device) -> None:
        """Connect the processes; a collective call of all pipelines, with the same channels in each.

        NCCL connects the two ends of a channel at the first transfer, and a process waits in it for the other
        one, even in `receive`: a stage that looks ahead would wait for one that needs it first. So one byte
        is sent through each channel, in one order, before any pass.

        Args:
            channels: The channels.
            device: Where the tensors are that go through them.
        """
        if not self._separate:
            return
        everyone: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, self._ranks)
        for ranks in sorted(set(map(tuple, everyone))):
            for channel in channels:
                # All processes make each group: torch names groups by their number.
                group = dist.new_group([ranks[channel.source], ranks[channel.target]])
                if list(ranks) == self._ranks:
                    self._groups[channel] = group
        byte = torch.zeros(1, dtype=torch.uint8, device=device)
        for channel in channels:
            if channel.source == self.index:
                self.send(channel, byte)
                self.finish()
            elif channel.target == self.index:
                self.receive(channel, (1,), byte).wait()

    def send(self, channel: Channel, tensor: Tensor) -> None:
        """Send a contiguous tensor, which must not change until it has arrived."""
        while self._sent and self._sent[0][0].is_completed():
            self._sent.popleft()
        with _gone():
            where = self._where(channel, channel.target)
            self._sent.append((dist.isend(_bytes(tensor), **where), tensor))

    def receive(self, channel: Channel, shape: Sequence[int], like: Tensor) -> Arrival:
        """Begin to receive a tensor of this shape, with the dtype and the device of another one."""
        tensor = like.new_empty(tuple(shape))
        with _gone():
            return Arrival(dist.irecv(_bytes(tensor), **self._where(channel, channel.source)), tensor)

    def tell(self, channel: Channel, tensor: Tensor) -> None:
        """Send the shape and the dtype of a tensor."""
        sizes = [*tensor.shape, *[0] * (_HEADER - 2 - tensor.dim())]
        header = torch.tensor([_DTYPES.index(tensor.dtype), tensor.dim(), *sizes], device=tensor.device)
        self.send(channel, header)

    def told(self, channel: Channel, device: torch.device) -> Tensor:
        """Receive the shape and the dtype of a tensor; return one like it, on the device meta."""
        header = self.receive(channel, (_HEADER,), torch.empty(0, dtype=torch.int64, device=device))
        dtype, dimensions, *sizes = header.wait().tolist()
        return torch.empty(sizes[:dimensions], dtype=_DTYPES[dtype], device="meta")

    def finish(self) -> None:
        """Wait until all that this process has sent has arrived."""
        with _gone(), waiting:
            while self._sent:
                self._sent.popleft()[0].wait()

    def _where(self, channel: Channel, other: int) -> dict[str, Any]:
        peer = {_PEER[other == channel.target]: self._ranks[other]}
        if self._separate:
            return {"group": self._groups[channel], **peer}
        return {"group": self._group, "tag": channel.tag, **peer}


_PEER = {True: "dst", False: "src"}  # torch's name for the other process, if that one receives


class Arrival(NamedTuple):
    """A tensor on its way to this process."""

    work: Any
    tensor: Tensor

    def wait(self) -> Tensor:
        """Return it when it is here."""
        with _gone(), waiting:
            self.work.wait()
        return self.tensor


def _bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a contiguous tensor, (bytes,): no backend knows all dtypes."""
    return tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0, dtype=torch.uint8)


@contextmanager
def _gone() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # torch's DistBackendError is one
        raise WorldError(f"another process is gone ({error})") from error
