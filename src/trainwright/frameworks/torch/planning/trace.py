"""A record of the memory that the passes of one microbatch take, from tensors that have none."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

BEFORE, AFTER = -1, 1 << 30  # positions before the first block, and after the last one


class Kind(Enum):
    """A kind of moment."""

    FORWARD = auto()  # a unit, whose parameters FSDP2 gathers together, begins its forward pass
    FORWARD_END = auto()
    BACKWARD = auto()
    BACKWARD_END = auto()
    ENTER = auto()  # a block, with which a stage may begin, begins its forward pass
    RETURN = auto()  # the gradient of its input is complete
    LOSS = auto()  # the backward pass begins
    GRADIENT = auto()  # a parameter has its gradient, which is not counted from then on
    END = auto()


class Moment(NamedTuple):
    """A moment in the passes of a microbatch.

    Attributes:
        kind: What happens.
        number: That of the unit, the block or the parameter.
        peak: The most bytes that were live since the moment before.
        live: The bytes that are live now: activations and temporary tensors, without gradients of parameters.
        work: The floating-point operations so far.
    """

    kind: Kind
    number: int
    peak: float
    live: float
    work: float

    def shifted(self, size: float, work: float, number: int | None = None) -> Moment:
        """Return the moment with more bytes and work before it, and another number if one is given."""
        return Moment(
            self.kind,
            self.number if number is None else number,
            self.peak + size,
            self.live + size,
            self.work + work,
        )


class Trace(NamedTuple):
    """The passes of one microbatch.

    Attributes:
        moments: What happened, in order.
        hidden: The bytes of the input of each block.
        uses: The positions where each parameter is used: the number of a block, `BEFORE` or `AFTER`.
    """

    moments: Sequence[Moment]
    hidden: Sequence[float]
    uses: Sequence[frozenset[int]]

    def at(self, rows: float, here: float, other: Trace, there: float) -> Trace:
        """Return the trace of another number of rows, given those of two numbers: all grows linearly."""
        share = (rows - here) / (there - here)

        def between(one: float, two: float) -> float:
            return one + share * (two - one)

        moments = [
            Moment(one.kind, one.number, *map(between, one[2:], two[2:]))
            for one, two in zip(self.moments, other.moments, strict=True)
        ]
        hidden = [between(one, two) for one, two in zip(self.hidden, other.hidden, strict=True)]
        return Trace(moments, hidden, self.uses)


class Recorder(TorchDispatchMode):
    """Counts the bytes of all tensors that operations make, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self.work = 0.0
        self.known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call an operation, and count what it makes."""
        packet = function._overloadpacket
        if packet in _IN_PLACE:  # of optimizers: not all have a rule for tensors without memory
            return None
        if packet is torch.ops.aten._local_scalar_dense:  # of `item`: a value that is not there
            return 1.0 if args[0].is_floating_point() else 1
        output = function(*args, **(kwargs or {}))
        if packet in flop_registry:
            self.work += flop_registry[packet](*args, **(kwargs or {}), out_val=output)
        for one in output if isinstance(output, tuple | list) else (output,):
            if isinstance(one, Tensor):
                self.add(one)
        return output

    def add(self, tensor: Tensor) -> None:
        """Count the memory of a tensor, if it is not known yet."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.known:
            return
        count = storage.nbytes()
        self.known[key] = (weakref.ref(storage, partial(self._gone, key)), count)
        self.live += count
        self.peak = max(self.peak, self.live)

    def know(self, tensor: Tensor) -> None:
        """Leave a tensor's memory out of the count from now on."""
        storage = tensor.untyped_storage()
        known = self.known.get(storage._cdata)
        if known is not None:
            self.live -= known[1]
        self.known[storage._cdata] = (weakref.ref(storage, partial(self._gone, storage._cdata)), 0)

    def _gone(self, key: int, _: Any) -> None:
        self.live -= self.known.pop(key)[1]


_IN_PLACE = {getattr(torch.ops.aten, f"_fused_{name}_") for name in ("adam", "adamw", "sgd", "adagrad")}


class _Uses(TorchFunctionMode):
    """Notes at which position each parameter is used."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        super().__init__()
        self.position = BEFORE
        self.found: dict[int, set[int]] = {id(one): set() for one in parameters}

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch."""
        for one in pytree.tree_leaves((args, kwargs)):
            if (found := self.found.get(id(one))) is not None:
                found.add(self.position)
        return function(*args, **(kwargs or {}))


def traced(
    state: tuple[Sequence[nn.Parameter], Sequence[Tensor]],
    loss: Callable[[], Tensor],
    units: Sequence[nn.Module],
    blocks: Sequence[tuple[int, nn.Module]],
    count: int,
) -> Trace:
    """Return the trace of the passes of a microbatch.

    Args:
        state: The parameters and the buffers: `FakeTensor`s without gradients.
        loss: Makes the forward pass; returns the loss, ().
        units: The modules whose parameters FSDP2 gathers one at a time.
        blocks: The modules with which stages may begin, with their numbers, in the order of their calls.
        count: The number of blocks, of which some may be left out.
    """
    parameters, buffers = state
    recorder, uses = Recorder(), _Uses(parameters)
    for one in (*parameters, *buffers):
        recorder.know(one)
    moments: list[Moment] = []
    hidden = [0.0] * count

    def note(kind: Kind, index: int = 0) -> None:
        moments.append(Moment(kind, index, recorder.peak, recorder.live, recorder.work))
        recorder.peak = recorder.live

    def arrived(index: int, parameter: Tensor) -> None:
        assert parameter.grad is not None
        recorder.know(parameter.grad)
        note(Kind.GRADIENT, index)

    def entered(index: int, inputs: Sequence[Tensor]) -> None:
        uses.position = index
        hidden[index] = float(sum(one.nbytes for one in inputs))
        note(Kind.ENTER, index)

    def left(index: int) -> None:
        if index == count - 1:
            uses.position = AFTER

    with _hooks() as hooks:
        for index, part in blocks:
            hooks.extend(_around(part, partial(entered, index), partial(left, index)))
            hooks.extend(_backward_end(part, partial(note, Kind.RETURN, index)))
        for index, part in enumerate(units):
            begin, end = partial(note, Kind.FORWARD, index), partial(note, Kind.FORWARD_END, index)
            hooks.extend(_around(part, partial(_ignoring, begin), end))
            hooks.extend(_backward_end(part, partial(note, Kind.BACKWARD_END, index)))
            hooks.extend(_backward_begin(part, partial(note, Kind.BACKWARD, index)))
        for index, parameter in enumerate(parameters):
            if parameter.requires_grad:
                hooks.append(parameter.register_post_accumulate_grad_hook(partial(arrived, index)))
        with recorder:
            with uses:
                value = loss()
            note(Kind.LOSS)
            value.backward()
            del value
            note(Kind.END)
    for parameter in parameters:
        parameter.grad = None
    found = [frozenset(uses.found[id(one)]) for one in parameters]
    return Trace(moments, hidden, found)


@contextmanager
def _hooks() -> Iterator[list[Any]]:
    hooks: list[Any] = []
    try:
        yield hooks
    finally:
        for hook in hooks:
            hook.remove()


def _ignoring(act: Callable[[], None], _: Any) -> None:
    act()


def _differentiable(values: Any) -> list[Tensor]:
    return [one for one in pytree.tree_leaves(values) if isinstance(one, Tensor) and one.requires_grad]


def _around(
    module: nn.Module, begin: Callable[[Sequence[Tensor]], None], end: Callable[[], None]
) -> list[Any]:
    """Call something before and after the forward pass of a module."""

    def before(_: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        begin(_differentiable((args, kwargs)))

    return [
        module.register_forward_pre_hook(before, with_kwargs=True),
        module.register_forward_hook(lambda *_: end()),
    ]


def _backward_end(module: nn.Module, act: Callable[[], None]) -> list[Any]:
    """Call something when the gradients of a module's inputs are complete."""

    def before(_: nn.Module, args: Any, kwargs: Any) -> Any:
        left = len(_differentiable((args, kwargs)))

        def ready(_: Tensor) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                act()

        def hooked(value: Any) -> Any:
            if not (isinstance(value, Tensor) and value.requires_grad):
                return value
            view = value.view_as(value)  # so that hooks of what has made the tensor come later
            view.register_hook(ready)
            return view

        return pytree.tree_map(hooked, (args, kwargs))

    return [module.register_forward_pre_hook(before, with_kwargs=True)]


def _backward_begin(module: nn.Module, act: Callable[[], None]) -> list[Any]:
    """Call something when the first gradient of a module's outputs is there."""

    def after(_: nn.Module, __: Any, output: Any) -> None:
        is_new = True

        def ready(_: Tensor) -> None:
            nonlocal is_new
            if is_new:
                is_new = False
                act()

        for one in _differentiable(output):
            one.register_hook(ready)

    return [module.register_forward_hook(after)]
