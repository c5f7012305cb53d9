"""The table of the processes of an attempt, with their step times."""

from __future__ import annotations

import statistics
from typing import Any

from trainwright.reports.rundir import RunFiles

_MOST_ROWS = 16
_SLOW = 1.3  # times of the median, from which a row is marked


def section(run: RunFiles) -> dict[str, Any] | None:
    """Return the table for the newest attempt with several processes, cut to the slowest 16 of them."""
    times = run.history.step_times
    if times is None or len(times.sums) < 2:
        return None
    hosts = [host for host, count in times.hosts for _ in range(count)]
    medians = [total / times.steps for total in times.sums]
    middle = statistics.median_low(medians)
    ranks = sorted(range(len(medians)), key=lambda rank: -medians[rank])[:_MOST_ROWS]
    return {
        "rows": [
            {
                "rank": rank,
                "host": hosts[rank],
                "median": _duration(medians[rank]),
                "longest": _duration(times.longest[rank]),
                "factor": f"{medians[rank] / max(middle, 1e-9):.2f}",
                "slow": medians[rank] > _SLOW * middle,
            }
            for rank in sorted(ranks)
        ],
        "count": len(medians),
        "steps": times.steps,
        "middle": _duration(middle),
    }


def _duration(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"
