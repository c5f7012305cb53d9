"""The order in which the processes of a pipeline make forward and backward passes.

It changes no bits: each stage takes the microbatches in the same order, forward and backward. GPipe (Huang et
al., 2019) makes all forward passes first; 1F1B (Narayanan et al., 2019) begins with a backward pass as soon
as it can, and so holds the activations of fewer microbatches; interleaved 1F1B (Narayanan et al., 2021) deals
the stages out to the processes in turn, which makes the idle time at both ends shorter. Zero bubble (Qi et
al., 2023) makes a backward pass in two parts: the gradient of a stage's input, for which others wait, and
those of its weights, while the process would wait itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

GPIPE, ONE_F_ONE_B, INTERLEAVED, ZERO_BUBBLE = SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble")
IN_TURN = {INTERLEAVED, ZERO_BUBBLE}  # deal the stages out to the processes one by one


class Kind(Enum):
    """A kind of pass."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT = "input"  # the part of a backward pass that makes the gradient of a stage's input
    WEIGHT = "weight"  # the other part, which makes the gradients of its weights


_TIMES = {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.INPUT: 1, Kind.WEIGHT: 1}


class Action(NamedTuple):
    """A pass of one microbatch through one stage."""

    kind: Kind
    stage: int
    microbatch: int


class Schedule(NamedTuple):
    """The passes of each process, and how long they take.

    Attributes:
        actions: The passes of each process, in order.
        length: The time from the first to the last one, if a forward pass takes the time 1 and a backward
            pass 2, of which each of its parts takes half.
    """

    actions: tuple[tuple[Action, ...], ...]
    length: int

    @property
    def bubble(self) -> float:
        """The share of the time in which a process waits for others."""
        busy = sum(_TIMES[one.kind] for some in self.actions for one in some)
        time = len(self.actions) * self.length
        return (time - busy) / time if time else 0.0


def process_of(stage: int, stages: int, processes: int, name: str) -> int:
    """Return which process of a pipeline owns a stage."""
    return stage % processes if name in IN_TURN else stage * processes // stages


def undivided(name: str, stages: int, processes: int) -> str:
    """Return the schedule to use where a backward pass cannot be made in two parts; stages stay in place."""
    if name != ZERO_BUBBLE:
        return name
    return ONE_F_ONE_B if stages == processes else INTERLEAVED


@lru_cache(maxsize=64)
def schedule(name: str, stages: int, processes: int, microbatches: int) -> Schedule:
    """Return the passes of a step.

    Args:
        name: One of `SCHEDULES`.
        stages: The number of stages.
        processes: The number of processes, which divides it.
        microbatches: How many pass through the stages.
    """
    group = processes if name in IN_TURN else 1
    orders = []
    for process in range(processes):
        owned = [stage for stage in range(stages) if process_of(stage, stages, processes, name) == process]
        ahead = _passes_ahead(process, len(owned), processes, name)
        passes = _passes(owned, ahead, microbatches, group, name)
        # The order is made for groups of the same size.
        orders.append([one for one in passes if one.microbatch < microbatches])
    most = _passes_ahead(0, stages // processes, processes, name)
    made = _Simulation(orders, stages, len(orders[0]) if most is None else most + 1)
    length = made.run()
    return Schedule(tuple(map(tuple, made.actions)), length)


def _passes_ahead(process: int, owned: int, processes: int, name: str) -> int | None:
    """Return how many forward passes come before the first pair of forward and backward pass; None: all."""
    if name == GPIPE:
        return None
    if name == ONE_F_ONE_B:
        return (processes - process - 1) * owned
    steps = 2 if name == INTERLEAVED else 1
    return steps * (processes - process - 1) + (owned - 1) * processes


def _passes(
    owned: Sequence[int], ahead: int | None, microbatches: int, group: int, name: str
) -> list[Action]:
    """Return the passes of a process: forward ones `ahead`, then forward and backward ones in turn.

    Args:
        owned: Its stages.
        ahead: The number of forward passes before the first pair; None: all.
        microbatches: The number of microbatches; the last group is filled up.
        group: How many microbatches pass through one of the stages before its next one has its turn. With
            1, the neighbouring stages of a process are one to the schedule.
        name: The schedule.
    """
    forward = [Action(Kind.FORWARD, *one) for one in _order(owned, microbatches, group)]
    # No stage waits for a gradient of the first one, whose backward pass is made as a whole.
    kinds = {stage: Kind.INPUT if name == ZERO_BUBBLE and stage else Kind.BACKWARD for stage in owned}
    backward = [Action(kinds[one[0]], *one) for one in _order(owned[::-1], microbatches, group)]
    ahead = len(forward) if ahead is None else min(ahead, len(forward))
    together = len(owned) if group == 1 else 1
    passes, forward = forward[:ahead], forward[ahead:]
    while forward or backward:
        passes += forward[:together] + backward[:together]
        forward, backward = forward[together:], backward[together:]
    return passes


def _order(owned: Sequence[int], microbatches: int, group: int) -> list[tuple[int, int]]:
    """Return (stage, microbatch) for all passes of a process in one direction."""
    return [
        (stage, microbatch)
        for start in range(0, microbatches, group)
        for stage in owned
        for microbatch in range(start, start + group)
    ]


class _Simulation:
    """The passes of a step in time, which begins with 0.

    The gradients of weights are made, in the order of the microbatches, while a process would wait, or would
    hold too many activations.

    Args:
        orders: The passes of each process, but for those of the kind `WEIGHT`.
        stages: The number of stages.
        most: The most passes of which a process may hold activations, if it can make room.
    """

    def __init__(self, orders: Sequence[Sequence[Action]], stages: int, most: int) -> None:
        self._stages, self._most = stages, most
        self.actions: list[list[Action]] = [[] for _ in orders]
        self._left = [deque(some) for some in orders]
        self._weights: list[deque[Action]] = [deque() for _ in orders]
        self._held = [0] * len(orders)
        self._ends: dict[tuple[bool, int, int], int] = {}  # by whether it is a forward pass, and its place

    def run(self) -> int:
        """Make all passes; return the time at which the last one ends.

        Raises:
            ValueError: The processes would wait for each other for ever.
        """
        time, free = 0, [0] * len(self._left)
        while any(self._left) or any(self._weights):
            for process in range(len(free)):
                if free[process] <= time and (action := self._next(process, time)) is not None:
                    free[process] = self._make(process, action, time)
            later = [one for one in free if one > time]
            if not later and (any(self._left) or any(self._weights)):
                raise ValueError("the passes of a pipeline wait for each other")
            time = min(later, default=time)
        return max(free)

    def _next(self, process: int, time: int) -> Action | None:
        """Return what a process does at a time; None: it waits."""
        left, weights = self._left[process], self._weights[process]
        is_full = bool(left) and left[0].kind is Kind.FORWARD and self._held[process] >= self._most
        if left and self._is_ready(left[0], time) and not (is_full and weights):
            return left.popleft()
        return weights.popleft() if weights else None

    def _make(self, process: int, action: Action, time: int) -> int:
        """Make a pass; return the time at which it ends."""
        kind, stage, microbatch = action
        self.actions[process].append(action)
        end = time + _TIMES[kind]
        if kind is Kind.INPUT:
            self._weights[process].append(Action(Kind.WEIGHT, stage, microbatch))
        else:
            self._held[process] += 1 if kind is Kind.FORWARD else -1
        if kind is not Kind.WEIGHT:
            self._ends[kind is Kind.FORWARD, stage, microbatch] = end
        return end

    def _is_ready(self, action: Action, time: int) -> bool:
        """Return whether what a pass needs is there."""
        kind, stage, microbatch = action
        if kind is Kind.FORWARD:
            needed = (True, stage - 1, microbatch) if stage else None
        else:
            is_last = stage == self._stages - 1
            needed = (is_last, stage if is_last else stage + 1, microbatch)
        return needed is None or self._ends.get(needed, time + 1) <= time
