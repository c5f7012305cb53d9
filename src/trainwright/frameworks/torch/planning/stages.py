"""The moments of a microbatch in the stages of one process of a pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from trainwright.frameworks.torch.parallel.pipeline.schedule import IN_TURN
from trainwright.frameworks.torch.parallel.pipeline.split import Stages
from trainwright.frameworks.torch.planning.memory import Chunk
from trainwright.frameworks.torch.planning.model import Shape, Sliced
from trainwright.frameworks.torch.planning.trace import AFTER, BEFORE, Kind, Moment, Trace


class Place(NamedTuple):
    """Neighbouring stages of one process.

    Attributes:
        first: Their first block.
        end: The block after the last one; the number of blocks in the last stage.
        is_last: Whether it has the last stage.
    """

    first: int
    end: int
    is_last: bool

    def has(self, position: int) -> bool:
        """Return whether it computes at a position of the forward pass; see `Trace.uses`."""
        if position == BEFORE:
            return self.first == 0
        if position == AFTER:
            return self.is_last
        return self.first <= position < self.end


def places_of(stages: Stages, processes: int, schedule: str) -> list[list[Place]]:
    """Return the places of the processes of a pipeline, which divide its stages evenly."""
    each = 1 if schedule in IN_TURN else stages.count // processes  # one to the schedule
    edges = [*stages.firsts[::each], len(stages.blocks)]
    runs = [Place(first, end, end == edges[-1]) for first, end in pairwise(edges)]
    return [runs[process::processes] for process in range(processes)]


def shapes_at(places: Sequence[Place], model: Sliced, trace: Trace) -> dict[int, Shape]:
    """Return the parameters that the stages of a process use, by their index."""
    return {
        index: shape
        for index, shape in enumerate(model.shapes)
        if any(place.has(position) for place in places for position in trace.uses[index] or {BEFORE})
    }


def chunk_at(place: Place, trace: Trace) -> Chunk:
    """Return the moments in some stages of a process, and the bytes that it keeps for a microbatch.

    What other stages hold is not counted, but the hidden states that pass between them are.
    """
    at: Mapping[tuple[Kind, int], int] = {
        (one.kind, one.number): number for number, one in enumerate(trace.moments)
    }
    hidden = trace.hidden[place.first] if place.first else 0.0
    start = at[Kind.ENTER, place.first] if place.first else -1
    before = trace.moments[start].live if place.first else 0.0
    stop = at[Kind.RETURN, place.first] if place.first else len(trace.moments) - 1
    loss = at[Kind.LOSS, 0]
    if place.is_last:
        shift = hidden - before
        forward = _shifted(trace.moments[start + 1 : loss], shift)
        backward = _shifted(trace.moments[loss : stop + 1], shift)
        kept = trace.moments[loss].live + shift
    else:
        end, back = at[Kind.ENTER, place.end], at[Kind.RETURN, place.end]
        forward = _shifted(trace.moments[start + 1 : end + 1], hidden - before)
        kept = trace.moments[end].live + hidden - before
        coming = trace.hidden[place.end]  # the gradient of its output
        backward = _shifted(trace.moments[back + 1 : stop + 1], kept + coming - trace.moments[back].live)
    return Chunk(_around(forward, backward, _root(trace)), kept)


def _shifted(moments: Sequence[Moment], count: float) -> list[Moment]:
    return [one.shifted(count, 0) for one in moments]


def _root(trace: Trace) -> int:
    """Return the number of the unit that is the whole model."""
    return max(one.number for one in trace.moments if one.kind is Kind.FORWARD)


def _around(forward: Sequence[Moment], backward: Sequence[Moment], root: int) -> list[Moment]:
    """Return the moments with the passes of the whole model around them, which run in each stage."""
    whole = {(kind, root) for kind in (Kind.FORWARD, Kind.FORWARD_END, Kind.BACKWARD)}
    own = {Kind.LOSS, Kind.END}

    def edge(kind: Kind, like: Moment, index: int = root) -> Moment:
        return Moment(kind, index, like.live, like.live, like.work)

    def inner(moments: Sequence[Moment]) -> list[Moment]:
        return [one for one in moments if (one.kind, one.number) not in whole and one.kind not in own]

    ahead, after = forward[-1], backward[-1]
    return [
        edge(Kind.FORWARD, forward[0]._replace(live=0.0)),
        *inner(forward),
        edge(Kind.FORWARD_END, ahead),
        Moment(Kind.LOSS, 0, *(backward[0] if backward[0].kind is Kind.LOSS else ahead)[2:]),
        edge(Kind.BACKWARD, ahead),
        *inner(backward),
        edge(Kind.END, after, 0),
    ]
