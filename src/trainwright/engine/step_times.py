"""The times of steps in each of several processes, and the process that the others wait for."""

from __future__ import annotations

import logging
import socket
import statistics
import time
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from trainwright.engine.recorder import Recorder
from trainwright.world import World

log = logging.getLogger("trainwright")
_WINDOW = 60.0  # seconds of training that a summary covers, and more where there are many processes:
_WINDOW_PER_PROCESS = 0.1  # so that the summaries of a day fill 10 MB of the journal at most
_SLOW = 1.3  # a process above this multiple of the median is a straggler
_NORMAL = 1.15  # below this, it no longer is
_CHANGE = 1.5  # a straggler is named again when it is slower or faster by this factor
_LEAST_STEPS = 20
_MOST_NAMED = 8  # stragglers that a summary names


class StepTimes(NamedTuple):
    """The step times of a process in a window, in seconds, without the time it waited for others."""

    host: str
    steps: int
    median: float
    longest: float


class StepClock:
    """Collect the step times of this process."""

    def __init__(self) -> None:
        self._seconds: list[float] = []
        self._is_first = True
        self._began = time.perf_counter()

    def add(self, seconds: Sequence[float]) -> None:
        """Add the times of some steps; the first step of an attempt is a warm-up, and is left out."""
        if seconds:
            self._seconds += seconds[1:] if self._is_first else seconds
            self._is_first = False

    def is_due(self, processes: int) -> bool:
        """Return whether a window has ended."""
        return time.perf_counter() - self._began >= max(_WINDOW, _WINDOW_PER_PROCESS * processes)

    def take(self) -> StepTimes:
        """Return the times of the window, and begin the next one."""
        seconds, self._seconds, self._began = self._seconds, [], time.perf_counter()
        return StepTimes(
            socket.gethostname(),
            len(seconds),
            statistics.median_low(seconds) if seconds else 0.0,
            max(seconds, default=0.0),
        )


class Stragglers:
    """Journal the step times of all processes, and warn of those that the others wait for.

    A stage of a pipeline may take longer than others: a process is compared with those of its stage.

    Args:
        recorder: Has the journal, and records the warnings.
        world: The processes.
    """

    def __init__(self, recorder: Recorder, world: World) -> None:
        self._recorder, self._world = recorder, world
        self._named: dict[int, float] = {}  # by rank: the factor that was named last

    def record(self, step: int, times: Sequence[StepTimes]) -> None:
        """Journal the times of a window that ends after a step, by rank, and warn of stragglers."""
        if not min(one.steps for one in times):
            return
        self._recorder.journal.event(
            step,
            "step_times",
            steps=times[0].steps,
            hosts=[[host, len(list(ranks))] for host, ranks in groupby(one.host for one in times)],
            stages=self._world.mesh.pipeline,
            medians=[_rounded(one.median) for one in times],
            longest=[_rounded(one.longest) for one in times],
        )
        if times[0].steps < _LEAST_STEPS:
            return
        stages = [self._world.mesh.coordinates(rank).pipeline for rank in range(len(times))]
        of_stage = {
            stage: statistics.median_low(
                one.median for one, its in zip(times, stages, strict=True) if its == stage
            )
            for stage in set(stages)  # of two processes, the faster one
        }
        middles = [of_stage[stage] for stage in stages]
        factors = {rank: one.median / max(middles[rank], 1e-9) for rank, one in enumerate(times)}
        for rank in [rank for rank in self._named if factors[rank] < _NORMAL]:
            del self._named[rank]
        named = [rank for rank, factor in factors.items() if self._is_news(rank, factor)]
        for rank in sorted(named, key=lambda rank: -factors[rank])[:_MOST_NAMED]:
            self._named[rank] = factors[rank]
            self._warn(step, rank, times[rank], middles[rank])

    def _is_news(self, rank: int, factor: float) -> bool:
        """Return whether a process is a straggler that was not named, or was named with another factor."""
        before = self._named.get(rank)
        return factor > _SLOW and (before is None or max(factor / before, before / factor) > _CHANGE)

    def _warn(self, step: int, rank: int, own: StepTimes, middle: float) -> None:
        factor = own.median / max(middle, 1e-9)
        log.warning(
            "process %d on %s slows down all others: its steps take %.1f times as long as the median%s "
            "(%.3g s, not %.3g s)",
            *(rank, own.host, factor, " of its stage" if self._world.mesh.pipeline > 1 else ""),
            *(own.median, middle),
        )
        self._recorder.event(
            step,
            "straggler",
            rank=rank,
            host=own.host,
            factor=_rounded(factor),
            seconds=_rounded(own.median),
            median=_rounded(middle),
        )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
