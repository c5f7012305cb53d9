"""An all-reduce of gradients whose order of additions does not depend on the number of processes.

PyTorch's DistributedDataParallel sums in an order that depends on the number of processes, and needs the same
backward pass, through every parameter, in each of them. Here the order is that of the binary tree over the
virtual ranks, and a process without samples, or a parameter without a gradient, contributes nothing. As in
DDP, gradients are reduced in buckets, while the backward pass goes on (Li et al., VLDB 2020). Each all-reduce
is a reduce-scatter (an all-to-all, then the tree over one share of the elements) and an all-gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainwright.errors import WorldError
from trainwright.frameworks.torch.parallel.collectives import all_gather
from trainwright.frameworks.torch.parallel.stopwatch import waiting
from trainwright.frameworks.torch.parallel.virtual_ranks import Gradients, GradientTree, tree_sum
from trainwright.frameworks.torch.state.layout import is_dense
from trainwright.world import World

BUCKET_BYTES = 25 << 20
FIRST_BUCKET_BYTES = 1 << 20  # small, so that it is sent early


class Bucket:
    """Some parameters whose gradients are reduced together.

    Args:
        indices: Their positions in the list of all parameters.
        parameters: The parameters, all of one dtype on one device; all are trained, or none is, at the start.
        size: The number of processes.
    """

    def __init__(self, indices: Sequence[int], parameters: Sequence[Tensor], size: int) -> None:
        self.indices = indices
        self.parameters = parameters
        self.is_trained = parameters[0].requires_grad
        self.left = 0  # gradients that are still to come in this step
        self._numels = [parameter.numel() for parameter in parameters]
        self._padding = -(sum(self._numels) + len(parameters)) % size
        self._flat: Tensor | None = None
        self._uses = 0  # of its memory, by this bucket alone
        self._is_complete = False

    def packed(self, gradients: Gradients) -> Tensor:
        """Return the gradients and, for each, whether there is one, as one vector, (elements,).

        A gradient that is missing counts as -0.0, the number that changes no other one by its addition. The
        memory is that of the last step, unless someone else has kept a gradient of it.
        """
        flat = self._memory()
        views, present = self._views(flat), [gradient is not None for gradient in gradients]
        self._is_complete = all(present)
        pairs = [
            (view, gradient) for view, gradient in zip(views, gradients, strict=True) if gradient is not None
        ]
        if pairs:
            torch._foreach_copy_([view for view, _ in pairs], [gradient for _, gradient in pairs])
        flags = flat[sum(self._numels) :][: len(present)]
        if self._is_complete:
            flags.fill_(1.0)
        else:
            flags.copy_(torch.tensor(present))
            for view, gradient in zip(views, gradients, strict=True):
                if gradient is None:
                    view.fill_(-0.0)
        return flat

    def unpacked(self, flat: Tensor) -> Gradients:
        """Return the gradients in the sum of packed vectors; None where no process has one."""
        views: Gradients = list(self._views(flat))
        if self._is_complete:  # reading the flags would wait for the device
            return views
        flags = flat[sum(self._numels) :][: len(views)].tolist()
        return [view if count > 0 else None for view, count in zip(views, flags, strict=True)]

    def _memory(self) -> Tensor:
        """Return a vector for the gradients, the flags and the padding, which is -0.0."""
        if self._flat is None or _uses(self._flat) != self._uses:
            self._flat = self.parameters[0].new_full((self.numel,), -0.0)
            self._uses = _uses(self._flat)
        return self._flat

    def _views(self, flat: Tensor) -> list[Tensor]:
        """Return the parts of a vector as tensors like the parameters, also in memory.

        Optimizers and norms go through the elements in the order of the memory.
        """
        return [
            part.as_strided(parameter.shape, parameter.stride())
            if is_dense(parameter)
            else part.view(parameter.shape)
            for part, parameter in zip(torch.split(flat, self._sizes), self.parameters, strict=False)
        ]

    @property
    def numel(self) -> int:
        """The number of elements in the packed vector."""
        return sum(self._sizes)

    @property
    def _sizes(self) -> list[int]:
        return [*self._numels, len(self.parameters) + self._padding]


class GradientAllReduce:
    """Sum the gradients of the virtual ranks of all processes.

    Args:
        parameters: The parameters that the optimizer updates.
        tree: Holds the sums of the virtual ranks of this process, but for its last one.
        world: The processes; their number is a power of two.
        blocks: What this process holds of the parameters; default: all.
        group: The process group that sums; default: all processes.
        is_exact: Whether the sum is that of the tree; else it is the backend's.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        tree: GradientTree,
        world: World,
        *,
        blocks: Sequence[Tensor] | None = None,
        group: Any = None,
        is_exact: bool = True,
    ) -> None:
        self._parameters = parameters
        self._tree = tree
        self._world = world
        self._group, self._is_exact = group, is_exact
        self._rank: int = world.rank if group is None else group.rank()
        self._size: int = world.size if group is None else group.size()
        self._buckets = _buckets(parameters if blocks is None else blocks, self._size)
        self._bucket_of = {index: bucket for bucket in self._buckets for index in bucket.indices}
        self._is_armed = False
        # Whether buckets may be sent during the backward pass; None until the first step has shown it.
        self._is_eager: bool | None = None
        self._seen: set[int] = set()
        self._repeated = False
        self._sent: list[Future[Tensor]] = []
        self._scratch: dict[torch.dtype, Tensor] = {}
        # One thread for all, so that the collective calls have the same order in every process.
        self._thread = ThreadPoolExecutor(1, "trainwright-all-reduce")
        device = parameters[0].device
        self._stream: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._arrived, index))
            for index, parameter in enumerate(parameters)
            if parameter.requires_grad
        ]

    def close(self) -> None:
        """Remove the hooks, and let the thread end; it may wait for a process that is gone."""
        for hook in self._hooks:
            hook.remove()
        self._thread.shutdown(wait=False)

    def arm(self) -> None:
        """Send gradients as they become ready: the next backward pass is this process's last in the step."""
        self._is_armed = True
        self._seen.clear()
        for bucket in self._buckets:  # what is frozen now may be trained later: it waits for `finish`
            bucket.left = len(bucket.indices) if bucket.is_trained else 1

    def finish(self) -> None:
        """Set the gradients of the parameters to the sum over all virtual ranks.

        Raises:
            WorldError: Another process is gone.
        """
        if self._is_armed and self._is_eager is None:
            # The same in every step to come, or else `_arrived` complains.
            self._is_eager = not self._repeated
        self._is_armed = False
        while len(self._sent) < len(self._buckets):
            self._send(self._buckets[len(self._sent)])
        sent, self._sent = self._sent, []
        try:
            totals = [self._received(future) for future in sent]
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            raise WorldError(f"another process is gone ({error})") from error
        if self._stream is not None:
            torch.cuda.current_stream().wait_stream(self._stream)
        for bucket, total in zip(self._buckets, totals, strict=True):
            if self._stream is not None:
                total.record_stream(torch.cuda.current_stream())
            for parameter, gradient in zip(bucket.parameters, bucket.unpacked(total), strict=True):
                parameter.grad = gradient
        self._tree.clear()

    def _received(self, future: Future[Tensor]) -> Tensor:
        """Wait for a sum."""
        with waiting:
            return future.result()

    def _arrived(self, index: int, _: Tensor) -> None:
        """Record that a parameter has its gradient, and send complete buckets; called by autograd."""
        if not self._is_armed:
            return
        bucket = self._bucket_of[index]
        if index in self._seen:  # activation checkpointing of the reentrant kind adds to it in several passes
            self._repeated = True
            if self._is_eager:
                raise WorldError(
                    "a parameter got its gradient in two parts, but in one part in the first step; use "
                    "torch.utils.checkpoint with use_reentrant=False"
                )
            return
        self._seen.add(index)
        bucket.left -= 1
        while self._is_eager and len(self._sent) < len(self._buckets):
            following = self._buckets[len(self._sent)]
            if following.left:
                break
            self._send(following)

    def _send(self, bucket: Bucket) -> None:
        """Start the all-reduce of a bucket, in the thread for communication."""
        gradients = self._tree.with_last(bucket.indices)
        flat = bucket.packed(gradients)
        for index in bucket.indices:
            self._parameters[index].grad = None
        event = None
        if self._stream is not None:
            event = torch.cuda.Event()
            event.record()
            flat.record_stream(self._stream)
        self._sent.append(self._thread.submit(self._total, flat, event))

    def _total(self, flat: Tensor, event: Any) -> Tensor:
        """Return the sum over the processes, (elements,): a reduce-scatter and an all-gather."""
        stream = nullcontext() if self._stream is None else torch.cuda.stream(self._stream)
        with torch.no_grad(), stream:
            if event is not None:
                self._stream.wait_event(event)
            sent = _sendable(flat)
            if not self._is_exact:
                dist.all_reduce(sent, group=self._group)
                return flat if sent is flat else flat.copy_(sent)
            shares = list(sent.view(self._size, -1))  # each (elements / size,)
            mine = shares[self._rank]
            theirs = list(self._received_shares(sent).view(self._size, -1))
            self._swap(shares, theirs)
            theirs[self._rank] = mine
            tree_sum(theirs, out=mine)
            self._swap([mine] * self._size, shares)
            return flat if sent is flat else flat.copy_(sent)

    def _received_shares(self, flat: Tensor) -> Tensor:
        """Return memory for what the others send, (elements,); buckets of one dtype share it."""
        if (scratch := self._scratch.get(flat.dtype)) is None:
            alike = [bucket for bucket in self._buckets if bucket.parameters[0].dtype == flat.dtype]
            scratch = flat.new_empty(max(bucket.numel for bucket in alike))
            self._scratch[flat.dtype] = scratch
        return scratch[: flat.numel()]

    def _swap(self, mine: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
        """Send one tensor to each other process, and receive one from each."""
        others = [rank for rank in range(self._size) if rank != self._rank]
        sends = [self._transfer(dist.isend, mine[rank], rank) for rank in others]
        receives = [self._transfer(dist.irecv, theirs[rank], rank) for rank in others]
        for work in dist.batch_isend_irecv([*sends, *receives]):
            work.wait()

    def _transfer(self, call: Any, tensor: Tensor, rank: int) -> dist.P2POp:
        """Return a transfer of a tensor from or to a process of the group."""
        return dist.P2POp(call, tensor.view(torch.uint8), group=self._group, group_peer=rank)


def _sendable(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy on the host if it is on a GPU and gloo is to send it, which cannot."""
    return tensor.cpu() if tensor.is_cuda and "cuda:gloo" in dist.get_backend_config() else tensor


def _uses(tensor: Tensor) -> int:
    """Return how many tensors share this one's memory."""
    count: int = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
    return count


def gather_tensor(value: Tensor, world: World) -> list[Tensor]:
    """Return the tensors, of one shape, that the processes pass, by rank.

    Raises:
        WorldError: Another process is gone.
    """
    if world.size == 1:
        return [value]
    sent = _sendable(value).contiguous()
    rows = sent.new_empty((world.size, *sent.shape))
    try:
        all_gather(rows.view(torch.uint8).view(-1), sent.view(torch.uint8).view(-1))
    except RuntimeError as error:
        raise WorldError(f"another process is gone ({error})") from error
    return list(rows.to(value.device))


def _buckets(parameters: Sequence[Tensor], size: int) -> list[Bucket]:
    """Divide the parameters into buckets, in the order in which a backward pass usually comes to them."""
    groups: list[list[int]] = []
    room, kind = 0, None
    order = sorted(range(len(parameters)), key=lambda index: (not parameters[index].requires_grad, -index))
    for index in order:
        parameter = parameters[index]
        if room <= 0 or kind != (parameter.dtype, parameter.device, parameter.requires_grad):
            room = BUCKET_BYTES if groups else FIRST_BUCKET_BYTES
            kind = (parameter.dtype, parameter.device, parameter.requires_grad)
            groups.append([])
        groups[-1].append(index)
        room -= parameter.numel() * parameter.element_size()
    return [Bucket(indices, [parameters[index] for index in indices], size) for indices in groups]
