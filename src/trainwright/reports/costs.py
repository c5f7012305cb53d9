"""The table of thresholds of two classes, and which is best by the costs of the two kinds of mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.numerals import number
from trainwright.reports.rundir import Json, part

Section = dict[str, Any]
_RATIOS = (1, 2, 5, 10, 50)  # how many times as much as a false alarm a missed row costs


def section(tables: Json) -> Section | None:
    """Return the rows of the table, and what a script needs for other costs; None without two classes."""
    table = part(tables, "thresholds")
    if not table:
        return None
    values = {name: np.array(table[name], np.float64) for name in ("threshold", "tp", "fp")}
    positive, negative = float(table["positive"]), float(table["negative"])
    missed = positive - values["tp"]
    rows = []
    for ratio in _RATIOS:
        best = int(np.argmin(ratio * missed + values["fp"]))
        rows.append(
            {
                "ratio": str(ratio),
                "threshold": _threshold(float(values["threshold"][best])),
                "found": f"{_whole(values['tp'][best])} of {_whole(positive)}",
                "alarms": f"{_whole(values['fp'][best])} of {_whole(negative)}",
            }
        )
    return {
        "name": str(table["name"]),
        "rows": rows,
        "points": ";".join(
            f"{threshold:.6g},{hits:.6g},{alarms:.6g}"
            for threshold, hits, alarms in zip(*values.values(), strict=True)
        ),
        "positive": f"{positive:.6g}",
        "negative": f"{negative:.6g}",
    }


def _threshold(value: float) -> str:
    return "none" if value > 1 else f"{value:.3f}"


def _whole(value: float) -> str:
    return number(int(value) if float(value).is_integer() else float(value))
