"""The step times of the processes of an attempt, as its journal holds them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

EVENT = "step_times"


class StepTimesTotal(NamedTuple):
    """The times of some windows, by rank.

    `sums` adds up, over the windows, the number of steps times their median; `hosts` has pairs of a host and
    its number of consecutive ranks.
    """

    hosts: list[list[Any]]
    steps: int
    sums: list[float]
    longest: list[float]


def of_window(detail: Mapping[str, Any]) -> StepTimesTotal | None:
    """Return the times in a record of the journal; None if it is damaged."""
    try:
        steps, hosts = int(detail["steps"]), [(str(host), int(count)) for host, count in detail["hosts"]]
        medians, longest = ([float(one) for one in detail[key]] for key in ("medians", "longest"))
        sums = [median * steps for median in medians]
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    counts = [count for _, count in hosts]
    if not len(sums) == len(longest) == sum(counts) or min([steps, *counts]) < 1:
        return None
    return StepTimesTotal([[host, count] for host, count in hosts], steps, sums, longest)


def joined(first: StepTimesTotal | None, second: StepTimesTotal | None) -> StepTimesTotal | None:
    """Return the combined times; `second` is newer, and stands alone if its processes are others."""
    if first is None or second is None or first.hosts != second.hosts:
        return first if second is None else second
    sums = [one + other for one, other in zip(first.sums, second.sums, strict=True)]
    longest = [max(pair) for pair in zip(first.longest, second.longest, strict=True)]
    return StepTimesTotal(second.hosts, first.steps + second.steps, sums, longest)
