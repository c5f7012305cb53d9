"""The brackets of a study with rungs: how many trials trained how far, and what came of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainwright.numerals import number
from trainwright.records.trials import LoggedTrial
from trainwright.records.tuning_result import BracketSizes, TuningResult

_MOST = 30  # rows of the table


def section(trials: Sequence[LoggedTrial], result: TuningResult, mode: str) -> dict[str, Any] | None:
    """Return the table of the brackets; None for a study without, or before its end."""
    brackets = [one for one in result.brackets if one.first < len(trials)]  # those that began
    if not brackets:
        return None
    rows = [_row(index, one, trials, mode) for index, one in enumerate(brackets[:_MOST])]
    return {"unit": result.unit, "rows": rows, "more": len(brackets) - len(rows)}


def _row(index: int, bracket: BracketSizes, trials: Sequence[LoggedTrial], mode: str) -> list[str]:
    sizes, resources = bracket.sizes, bracket.resources
    members = trials[bracket.first : bracket.first + sizes[0]]
    reached = [sum(len(trial.stints) > rung for trial in members) for rung in range(len(sizes))]
    rungs = " → ".join(f"{count} to {length}" for count, length in zip(reached, resources, strict=True))
    valued = [
        (trial.ending.value, trial.number)
        for trial in members
        if trial.ending is not None and trial.ending.value is not None
    ]
    if not valued:
        return [str(index + 1), rungs, "", ""]
    best = min(valued) if mode == "min" else max(valued, key=lambda one: (one[0], -one[1]))
    return [str(index + 1), rungs, number(best[0]), str(best[1])]
