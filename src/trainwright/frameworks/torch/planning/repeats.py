"""Blocks that are alike have like passes: a trace of some of them stands for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

from torch import nn

from trainwright.frameworks.torch.parallel.pipeline.seams import Places, Seam, skip
from trainwright.frameworks.torch.planning.trace import Kind, Moment, Trace

_LEAST = 5  # blocks in a row that are worth it: three of them are traced


class Repeats(NamedTuple):
    """A run of blocks that are alike; those between its second one and its last one are not traced.

    Attributes:
        blocks: The names of all blocks of the model.
        second: The index of the block that stands for those after it.
        last: The index of the last block of the run.
    """

    blocks: Sequence[str]
    second: int
    last: int

    @property
    def missing(self) -> range:
        """The indices of the blocks that are not traced."""
        return range(self.second + 1, self.last)


def repeats_of(module: nn.Module, blocks: Sequence[str]) -> Repeats | None:
    """Return the longest run of blocks that are alike, if it is long enough."""
    parts = [module.get_submodule(name) for name in blocks]
    seen: set[int] = set()
    for part in parts:
        ids = {id(one) for one in part.parameters()}
        if ids & seen:
            return None  # of parameters that several blocks have, one alone has the gradient
        seen |= ids
    edges = [
        0,
        *(at for at, (one, two) in enumerate(pairwise(map(_form, parts)), 1) if one != two),
        len(parts),
    ]
    first, end = max(pairwise(edges), key=lambda run: run[1] - run[0])
    return Repeats(blocks, first + 1, end - 1) if end - first >= _LEAST else None


def _form(block: nn.Module) -> Any:
    """Return what the passes of a block depend on: its parts, their shapes, and their plain attributes."""
    plain = [
        sorted(
            (key, value)
            for key, value in vars(part).items()
            if isinstance(value, str | bool | float | int) and not key.endswith("idx")
        )
        for part in block.modules()
    ]
    shapes = [(name, one.shape, one.dtype, one.requires_grad) for name, one in block.named_parameters()]
    return repr(block), plain, shapes


@contextmanager
def left_out(module: nn.Module, repeats: Repeats | None) -> Iterator[None]:
    """Let the blocks that are not traced pass on what they get."""
    if repeats is None:
        yield
        return
    places = Places(module, [repeats.blocks[index] for index in repeats.missing])
    items = 0

    def count(_: nn.Module, __: Any, output: Any) -> None:
        nonlocal items
        items = len(output) if isinstance(output, tuple) else 0

    def act(block: nn.Module, *inputs: Any, **named: Any) -> Any:
        return skip(items)(block, *inputs, **named)

    hook = module.get_submodule(repeats.blocks[repeats.second]).register_forward_hook(count)
    try:
        with places.replaced({index: Seam(places[index], act) for index in range(len(places))}):
            yield
    finally:
        hook.remove()


def completed(
    trace: Trace, repeats: Repeats | None, parameters: Mapping[str, int], units: Mapping[str, int]
) -> Trace:
    """Return a trace with the moments of the blocks that were left out.

    Args:
        trace: The trace without them.
        repeats: The run of blocks.
        parameters: The indices of the parameters, by name.
        units: The indices of the units, by name.
    """
    if repeats is None:
        return trace
    moments, second, missing = list(trace.moments), repeats.second, repeats.missing
    indices = {
        block: _same(repeats, block, {Kind.GRADIENT: parameters, Kind.FORWARD: units}) for block in missing
    }
    at = {(one.kind, one.number): place for place, one in enumerate(moments)}
    # Forward, from the beginning of the second block to that of the last one; backward, the other way.
    start, end = at[Kind.ENTER, second], at[Kind.ENTER, repeats.last]
    back, returned = at[Kind.RETURN, repeats.last], at[Kind.RETURN, second]
    forward = _Shift.between(moments[start], moments[end])
    backward = _Shift.between(moments[back], moments[returned])
    made = moments[:end]
    for number, block in enumerate(missing, 1):
        made += map(partial(_moved, forward.times(number), indices[block]), moments[start:end])
    over = forward.times(len(missing))
    made += map(partial(_moved, over, {}), moments[end : back + 1])
    for number, block in enumerate(reversed(missing)):
        shift = over.plus(backward.times(number))
        made += map(partial(_moved, shift, indices[block]), moments[back + 1 : returned + 1])
    rest = over.plus(backward.times(len(missing)))
    made += map(partial(_moved, rest, {}), moments[back + 1 :])
    hidden = [trace.hidden[second] if index in missing else one for index, one in enumerate(trace.hidden)]
    uses = [one | frozenset(missing) if second in one else one for one in trace.uses]
    for block, changed in indices.items():
        for (kind, before), after in changed.items():
            if kind is Kind.GRADIENT:
                uses[before], uses[after] = trace.uses[before], frozenset({block})
    return Trace(made, hidden, uses)


class _Shift(NamedTuple):
    """The bytes and the work by which moments differ from those of another block."""

    size: float
    work: float

    @staticmethod
    def between(one: Moment, other: Moment) -> _Shift:
        return _Shift(other.live - one.live, other.work - one.work)

    def times(self, number: int) -> _Shift:
        return _Shift(self.size * number, self.work * number)

    def plus(self, other: _Shift) -> _Shift:
        return _Shift(self.size + other.size, self.work + other.work)


_OF_UNITS = (Kind.FORWARD, Kind.FORWARD_END, Kind.BACKWARD, Kind.BACKWARD_END)
_Indices = Mapping[tuple[Kind, int], int]


def _moved(shift: _Shift, indices: _Indices, one: Moment) -> Moment:
    kind = Kind.FORWARD if one.kind in _OF_UNITS else Kind.ENTER if one.kind is Kind.RETURN else one.kind
    return one.shifted(shift.size, shift.work, indices.get((kind, one.number)))


def _same(
    repeats: Repeats, block: int, names: Mapping[Kind, Mapping[str, int]]
) -> dict[tuple[Kind, int], int]:
    """Return the indices that a block has where the second one has others."""
    old, new = repeats.blocks[repeats.second], repeats.blocks[block]
    changed = {(Kind.ENTER, repeats.second): block}
    for kind, known in names.items():
        for name, index in known.items():
            if f"{name}.".startswith(f"{old}."):
                changed[kind, index] = known[new + name[len(old) :]]
    return changed
