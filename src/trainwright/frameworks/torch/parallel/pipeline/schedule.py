"""The order in which the processes of a pipeline make forward and backward passes.

It changes no bits: each stage takes the microbatches in the same order, forward and backward. GPipe (Huang et
al., 2019) makes all forward passes first; 1F1B (Narayanan et al., 2019) begins with a backward pass as soon
as it can, and so holds the activations of fewer microbatches; interleaved 1F1B (Narayanan et al., 2021) deals
the stages out to the processes in turn, which makes the idle time at both ends shorter.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

GPIPE, ONE_F_ONE_B, INTERLEAVED = SCHEDULES = ("gpipe", "1f1b", "interleaved")


class Action(NamedTuple):
    """A pass of one microbatch through one stage."""

    is_forward: bool
    stage: int
    microbatch: int


class Schedule(NamedTuple):
    """The passes of each process, and how long they take if each takes the time 1.

    Attributes:
        actions: The passes of each process, in order.
        length: The time from the first to the last one.
    """

    actions: tuple[tuple[Action, ...], ...]
    length: int


def process_of(stage: int, stages: int, processes: int, name: str) -> int:
    """Return which process of a pipeline owns a stage."""
    return stage % processes if name == INTERLEAVED else stage * processes // stages


@lru_cache(maxsize=64)
def schedule(name: str, stages: int, processes: int, microbatches: int) -> Schedule:
    """Return the passes of a step.

    Args:
        name: One of `SCHEDULES`.
        stages: The number of stages.
        processes: The number of processes, which divides it.
        microbatches: How many pass through the stages.
    """
    group = processes if name == INTERLEAVED else 1
    actions = []
    for process in range(processes):
        owned = [stage for stage in range(stages) if process_of(stage, stages, processes, name) == process]
        ahead = _passes_ahead(process, len(owned), processes, name)
        passes = _passes(owned, ahead, microbatches, group)
        # The order is made for groups of the same size.
        actions.append(tuple(one for one in passes if one.microbatch < microbatches))
    return Schedule(tuple(actions), _length(actions, stages))


def _passes_ahead(process: int, owned: int, processes: int, name: str) -> int | None:
    """Return how many forward passes come before the first pair of forward and backward pass; None: all."""
    if name == GPIPE:
        return None
    if name == ONE_F_ONE_B:
        return (processes - process - 1) * owned
    return 2 * (processes - process - 1) + (owned - 1) * processes


def _passes(owned: Sequence[int], ahead: int | None, microbatches: int, group: int) -> list[Action]:
    """Return the passes of a process: forward ones `ahead`, then forward and backward ones in turn.

    Args:
        owned: Its stages.
        ahead: The number of forward passes before the first pair; None: all.
        microbatches: The number of microbatches; the last group is filled up.
        group: How many microbatches pass through one of the stages before its next one has its turn. With
            1, the neighbouring stages of a process are one to the schedule.
    """
    forward = [Action(True, *one) for one in _order(owned, microbatches, group)]
    backward = [Action(False, *one) for one in _order(owned[::-1], microbatches, group)]
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


def _length(actions: Sequence[Sequence[Action]], stages: int) -> int:
    """Return the time that the processes need, each pass taking the time 1.

    Raises:
        ValueError: The processes would wait for each other for ever.
    """
    done: set[Action] = set()
    positions, time = [0] * len(actions), 0
    while any(at < len(some) for at, some in zip(positions, actions, strict=True)):
        heads = [some[at] if at < len(some) else None for at, some in zip(positions, actions, strict=True)]
        ready = [one for one in heads if one is not None and _is_ready(one, done, stages)]
        if not ready:
            raise ValueError("the passes of a pipeline wait for each other")
        positions = [at + (head in ready) for at, head in zip(positions, heads, strict=True)]
        done.update(ready)
        time += 1
    return time


def _is_ready(action: Action, done: set[Action], stages: int) -> bool:
    is_forward, stage, microbatch = action
    if is_forward:
        return stage == 0 or Action(True, stage - 1, microbatch) in done
    if stage == stages - 1:
        return Action(True, stage, microbatch) in done
    return Action(False, stage + 1, microbatch) in done
