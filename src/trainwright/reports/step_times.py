"""The step times of the processes of an attempt, as its journal holds them."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median_low
from typing import Any, NamedTuple

EVENT = "step_times"


class StepTimesTotal(NamedTuple):
    """The times of some windows, by rank.

    `sums` adds up, over the windows, the number of steps times their median; `hosts` has pairs of a host and
    its number of consecutive ranks; each of the `stages` of a pipeline has as many consecutive ranks.
    """

    hosts: list[list[Any]]
    stages: int
    steps: int
    sums: list[float]
    longest: list[float]

    def stage(self, rank: int) -> int:
        """Return the stage of a process, counted from 0."""
        return rank * self.stages // len(self.sums)

    def medians(self) -> list[float]:
        """Return the mean of the medians of each process, in seconds."""
        return [total / self.steps for total in self.sums]

    def middles(self) -> list[float]:
        """Return the median of the processes of each stage, in seconds: processes compare with their own."""
        medians = self.medians()
        return [
            median_low(one for rank, one in enumerate(medians) if self.stage(rank) == stage)
            for stage in range(self.stages)
        ]


def of_window(detail: Mapping[str, Any]) -> StepTimesTotal | None:
    """Return the times in a record of the journal; None if it is damaged."""
    try:
        steps, hosts = int(detail["steps"]), [(str(host), int(count)) for host, count in detail["hosts"]]
        stages = int(detail["stages"])
        medians, longest = ([float(one) for one in detail[key]] for key in ("medians", "longest"))
        sums = [median * steps for median in medians]
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    counts = [count for _, count in hosts]
    if (
        not len(sums) == len(longest) == sum(counts)
        or min([steps, stages, *counts]) < 1
        or len(sums) % stages
    ):
        return None
    return StepTimesTotal([[host, count] for host, count in hosts], stages, steps, sums, longest)


def joined(first: StepTimesTotal | None, second: StepTimesTotal | None) -> StepTimesTotal | None:
    """Return the combined times; `second` is newer, and stands alone if its processes are others."""
    if first is None or second is None or first[:2] != second[:2]:
        return first if second is None else second
    sums = [one + other for one, other in zip(first.sums, second.sums, strict=True)]
    longest = [max(pair) for pair in zip(first.longest, second.longest, strict=True)]
    return StepTimesTotal(second.hosts, second.stages, first.steps + second.steps, sums, longest)
