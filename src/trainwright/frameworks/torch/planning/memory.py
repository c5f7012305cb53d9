"""The memory of a process in a step, from the trace of a microbatch and the ways of its strategy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from trainwright.frameworks.torch.parallel.all_reduce import BUCKET_BYTES, FIRST_BUCKET_BYTES
from trainwright.frameworks.torch.parallel.blocks import LANES
from trainwright.frameworks.torch.parallel.pipeline.schedule import Action
from trainwright.frameworks.torch.parallel.pipeline.schedule import Kind as Pass
from trainwright.frameworks.torch.planning.model import Shape
from trainwright.frameworks.torch.planning.trace import Kind, Moment
from trainwright.records.mesh_estimate import Memory

_FLOAT = 4  # bytes


class Chunk(NamedTuple):
    """Neighbouring stages of a process.

    Attributes:
        moments: The moments of the two passes of a microbatch.
        kept: The bytes that are kept between these passes.
    """

    moments: Sequence[Moment]
    kept: float


class Share(NamedTuple):
    """The share of a step that one process has.

    Attributes:
        shapes: Its parameters, by their index, before FSDP2 divides them.
        chunks: The moments of a microbatch in each run of neighbouring stages.
        actions: Its passes through these, in order.
        parts: The virtual ranks that it computes.
        passes: The microbatches of each.
        update: The bytes that an update of all parameters takes besides.
        buffers: The bytes of the module's buffers.
    """

    shapes: dict[int, Shape]
    chunks: Sequence[Chunk]
    actions: Sequence[Action]
    parts: int
    passes: int
    update: float
    buffers: float


class Spread(NamedTuple):
    """The way in which the state is spread.

    Attributes:
        copies: The processes that sum the same gradients (the axis `data`).
        shards: The processes that share parameters out (the axis `shard`).
        is_staged: Whether there is a pipeline.
        is_exact: Whether sums over processes are ours, and not the backend's.
        fills: Whether the updates are of blocks that are filled up to whole vectors.
        averages: Whether there is an average of the weights.
        offloads: Whether the optimizer's state and the update are elsewhere.
        reshards: Whether FSDP2 lets go of what it gathered after the forward pass of a unit.
    """

    copies: int
    shards: int
    is_staged: bool
    is_exact: bool
    fills: bool
    averages: bool
    offloads: bool
    reshards: bool


def memory_of(share: Share, spread: Spread) -> Memory:
    """Return the memory of a process at the fullest moment of a step, by kind."""
    process = _Sharded(share, spread) if spread.shards > 1 else _Whole(share, spread)
    return process.run()


class _Process:
    """The memory of a process, as a step goes on."""

    def __init__(self, share: Share, spread: Spread) -> None:
        self.share, self.spread = share, spread
        shapes = share.shapes.values()
        held = sum(self.held(one) for one in shapes)
        self.trained = {index: one for index, one in share.shapes.items() if one.is_trained}
        self.own = sum(self.held(one) for one in self.trained.values())  # gradients that it sums up
        self.parameters: float = held
        self.optimizer: float = sum(
            one.moments * self.held(one) / max(1, one.size) + one.fixed for one in shapes
        )
        self.averages: float = held if spread.averages else 0
        if spread.fills:
            self.optimizer += 2 * sum(
                -(-elements // LANES) * LANES * _FLOAT
                for one in self.trained.values()
                if (elements := self.held(one) // _FLOAT) % LANES
            )
        if spread.offloads:
            self.optimizer = 0
        self.gradients: float = 0
        self.communication: float = 0
        self.activations: float = 0
        self.is_final = False  # whether it is at the last virtual rank
        self.best = Memory()

    def held(self, shape: Shape) -> int:
        """Return the bytes of a parameter that stay in this process."""
        return shape.size

    def note(self, more: float = 0) -> None:
        """Compare this moment, with some more bytes for communication, with the fullest one so far."""
        now = Memory(
            self.parameters,
            self.gradients,
            self.optimizer,
            self.averages,
            self.activations,
            self.communication + more,
            self.share.buffers,
        )
        if now.total > self.best.total:
            self.best = now

    def run(self) -> Memory:
        """Return the fullest moment of the virtual ranks of a step, and of the update after them."""
        share = self.share
        waiting = self._waiting()
        for is_final, sums in sorted({key[:2] for key in waiting}):
            self.gradients = sums * self.own
            self.is_final = is_final
            for number in sorted({0, min(1, share.passes - 1), share.passes - 1}):
                for chunk in reversed(range(len(share.chunks))):
                    self._play(chunk, waiting[is_final, sums, number, chunk], number)
        self.activations = 0
        self.gradients = self.own
        self.finish()
        if not self.spread.offloads:
            trained = sum(one.size for one in self.trained.values())
            self.optimizer += self.share.update * self.own / max(1, trained)
        self.note()
        return self.best

    def _waiting(self) -> dict[tuple[bool, int, int, int], float]:
        """Return the most bytes that other passes keep while a microbatch passes through a chunk.

        The keys are the kinds of microbatches: whether the virtual rank is the last one; the sums of complete
        subtrees that are kept before it, one for each bit of the number of ranks; the microbatch's number in
        it; and the chunk.
        """
        share = self.share
        most: dict[tuple[bool, int, int, int], float] = {}
        live = 0.0
        for kind, chunk, microbatch in share.actions:
            kept = share.chunks[chunk].kept
            part, number = divmod(microbatch, share.passes)
            key = part == share.parts - 1, part.bit_count(), number, chunk
            most[key] = max(most.get(key, 0.0), live if kind is Pass.FORWARD else live - kept)
            if kind is not Pass.INPUT:  # whose activations the gradients of the weights need, too
                live += kept if kind is Pass.FORWARD else -kept
        return most

    def _play(self, chunk: int, waiting: float, number: int) -> None:
        """Go through a microbatch of a virtual rank, while others under way keep so many bytes."""
        for moment in self.share.chunks[chunk].moments:
            self.activations = waiting + moment.peak
            self.note()
            self.activations = waiting + moment.live
            self.moment(moment, is_first=number == 0, is_last=number == self.share.passes - 1)

    def moment(self, moment: Moment, *, is_first: bool, is_last: bool) -> None:
        """Go on to a moment of a microbatch."""
        raise NotImplementedError

    def finish(self) -> None:
        """Sum gradients over the copies."""


class _Whole(_Process):
    """A process that has all parameters of its stages."""

    def __init__(self, share: Share, spread: Spread) -> None:
        super().__init__(share, spread)
        self._buckets = _buckets(self.trained)
        self._left = [set(bucket) for bucket in self._buckets]
        self._sent = 0
        if spread.copies > 1:  # the buckets keep their memory from step to step
            sizes = [sum(self.trained[index].size for index in bucket) for bucket in self._buckets]
            self.communication += sum(sizes)
            if spread.is_exact:  # what is received, and the sums of the tree's lowest level
                self.communication += max(sizes, default=0) * (1.5 if spread.copies > 2 else 1)

    def moment(self, moment: Moment, *, is_first: bool, is_last: bool) -> None:
        """Count a gradient, until its bucket is sent."""
        if moment.kind is not Kind.GRADIENT:
            return
        if is_first:
            self.gradients += self.share.shapes[moment.number].size
        if self.spread.copies == 1 or not (is_last and self.is_final) or self.spread.is_staged:
            return
        for left in self._left:
            left.discard(moment.number)
        while self._sent < len(self._buckets) and not self._left[self._sent]:
            self.note()
            self.gradients -= sum(self.trained[index].size for index in self._buckets[self._sent])
            self._sent += 1

    def finish(self) -> None:
        """Take the gradients as they lie in the buckets."""
        if self.spread.copies > 1:
            self.communication -= self.gradients


class _Sharded(_Process):
    """A process of FSDP2, which gathers the parameters of one unit after the other."""

    def __init__(self, share: Share, spread: Spread) -> None:
        super().__init__(share, spread)
        self._sizes: dict[int, float] = {}  # of the gathered parameters of each unit
        self._reduced: dict[int, float] = {}  # of their gradients
        self._real: dict[int, float] = {}  # without what fills up the last shard
        for one in share.shapes.values():
            whole = self.held(one) * spread.shards
            self._sizes[one.unit] = self._sizes.get(one.unit, 0) + whole
            if one.is_trained:
                self._reduced[one.unit] = self._reduced.get(one.unit, 0) + whole
                self._real[one.unit] = self._real.get(one.unit, 0) + one.size
        self._order: list[int] = []  # in which the forward passes have ended
        self._coming: set[int] = set()  # units whose parameters are gathered ahead
        self._here: set[int] = set()  # units whose parameters are gathered
        self._ended: set[int] = set()
        self._kept: float = 0  # what was received last, in the forward pass
        self._scattered: float = 0  # the input of the last reduce-scatter

    def held(self, shape: Shape) -> int:
        """Return the bytes of the rows of the first process, which has most."""
        if not shape.rows:
            return shape.size
        return -(-shape.rows // self.spread.shards) * (shape.size // shape.rows)

    def moment(self, moment: Moment, *, is_first: bool, is_last: bool) -> None:
        """Gather parameters, and scatter the sums of their gradients."""
        unit, size = moment.number, self._sizes.get(moment.number, 0.0)
        if moment.kind is Kind.FORWARD:
            if unit not in self._here:
                self.communication += size
                self.note()
                self.communication -= self._kept
                self._kept = size
                self._gathered(unit, size)
        elif moment.kind is Kind.FORWARD_END:
            self._order.append(unit)
            if self.spread.reshards:
                self._free(unit)
        elif moment.kind is Kind.LOSS:
            self.communication -= self._kept
            self._kept = 0
        elif moment.kind is Kind.BACKWARD:
            self._begin_backward(unit, size)
        elif moment.kind is Kind.GRADIENT and is_first:
            self.gradients += self.share.shapes[moment.number].size
        elif moment.kind is Kind.BACKWARD_END:
            self._end_backward(unit, is_last=is_last)
        elif moment.kind is Kind.END:
            for late in sorted({*self._order} - self._ended):
                self._end_backward(late, is_last=is_last)
            self.communication -= self._scattered
            self._scattered = 0
            self._order.clear()
            self._ended.clear()

    def _gathered(self, unit: int, size: float) -> None:
        self.parameters += size
        self._here.add(unit)
        self.note()

    def _free(self, unit: int) -> None:
        if unit in self._here:
            self._here.discard(unit)
            self.parameters -= self._sizes.get(unit, 0.0)

    def _begin_backward(self, unit: int, size: float) -> None:
        if unit not in self._here:
            if unit not in self._coming:
                self.communication += size
            self._coming.discard(unit)
            self._gathered(unit, size)
            self.communication -= size
        place = self._order.index(unit) if unit in self._order else 0
        if place > 0 and (ahead := self._order[place - 1]) not in self._coming | self._here | self._ended:
            self._coming.add(ahead)
            self.communication += self._sizes.get(ahead, 0.0)
            self.note()

    def _end_backward(self, unit: int, *, is_last: bool) -> None:
        self._ended.add(unit)
        self._free(unit)
        whole = self._reduced.get(unit, 0.0)
        if not is_last or not whole:
            return
        self.communication += whole - self._scattered
        self._scattered = whole
        self.note()
        self.gradients += whole / self.spread.shards - self._real[unit]
        if self.spread.is_exact:  # what is received, and the sums of the tree's lowest level
            self.note(whole * (1.5 if self.spread.shards > 2 else 1))

    def finish(self) -> None:
        """Sum the gradients of the shards over the copies, bucket by bucket."""
        if self.spread.copies > 1:
            bucket = min(self.own, BUCKET_BYTES)
            # Of a bucket there are what is sent, what is received, and sums of two levels of the tree.
            sums = (0.5 if self.spread.copies == 2 else 0.75) * bucket
            self.note(2 * bucket + sums if self.spread.is_exact else bucket)


def _buckets(shapes: dict[int, Shape]) -> list[list[int]]:
    """Return the buckets in which gradients are summed; see `parallel.all_reduce`."""
    buckets: list[list[int]] = []
    room = 0
    for index in sorted(shapes, reverse=True):
        if room <= 0:
            room = BUCKET_BYTES if buckets else FIRST_BUCKET_BYTES
            buckets.append([])
        buckets[-1].append(index)
        room -= shapes[index].size
    return buckets
