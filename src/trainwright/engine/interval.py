"""The interval between checkpoints that loses least: a failure loses all training after the last one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

# Mean hours between two failures of a process, if the config does not say. Large trainings have seen 14,000
# (OPT-175B, 992 GPUs, 2022) to 50,000 hours for each GPU (Llama 3, 16,384 GPUs, 2024).
MTBF_HOURS = 10_000.0


class SaveCost(NamedTuple):
    """The cost of a save in seconds: how long training waits for it, and how long writing it takes."""

    blocked: float
    written: float


def best_interval(cost: float, mtbf: float) -> float:
    """Return the seconds of training between two saves that minimize the time lost to saves and failures.

    This is the higher-order estimate of Daly (2006, equation 37). Its first term is that of Young (1974).

    Args:
        cost: Seconds that training waits for a save.
        mtbf: Mean seconds between two failures.
    """
    if cost >= 2 * mtbf:
        return mtbf
    ratio = cost / (2 * mtbf)
    return math.sqrt(2 * cost * mtbf) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost


def chosen_interval(cost: SaveCost, mtbf_hours: float, processes: int) -> dict[str, Any]:
    """Return the detail of the decision on an interval: its minutes, and what they follow from.

    A run fails when one of its processes does. An interval below the time that writing takes would save no
    more often: waiting saves are replaced by newer ones.
    """
    run_hours = mtbf_hours / processes
    seconds = max(best_interval(cost.blocked, 3600 * run_hours), cost.written)
    return {
        "minutes": seconds / 60,
        "save_seconds": cost.blocked,
        "write_seconds": cost.written,
        "mtbf_hours": run_hours,
        "processes": processes,
    }


def interval_in_words(detail: Mapping[str, Any]) -> str:
    """Return the decision as a sentence."""
    processes = detail["processes"]
    count = "1 process fails" if processes == 1 else f"one of {processes} processes fails"
    return (
        f"every {detail['minutes']:.3g} minutes from now on, as training waits "
        f"{detail['save_seconds']:.2g} s for a save, and {count} every {detail['mtbf_hours']:,g} hours"
    )
