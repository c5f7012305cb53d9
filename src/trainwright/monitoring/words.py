"""The change of a column in a line of plain words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

_FACTORS = (60, 100, 1000, 3600, 86_400, 10, 7, 12, 24, 30, 365, 2.54, 1.609344, 0.45359237)
_LARGE = 3.0  # a factor that is a change of unit, where all quantiles share it
_ALIKE = 1.25  # how far the factors of quantiles may be from their median
_MIDDLE, _QUARTERS = 5, (4, 6)  # places in `drift.SHARES`
_COMPARED = (3, 4, 5, 6, 7)
_MOST = 3  # unseen categories that are named


class Facts(NamedTuple):
    """The change of a column, from which its line is made; see `drift.ColumnDrift`."""

    name: str
    role: str
    kind: str
    test: str
    statistics: Mapping[str, Any]
    before: Mapping[str, Any]
    after: Mapping[str, Any]


def sentence(facts: Facts) -> str:
    """Return the change of a column in words: by the test that shows it most."""
    what = {"text": "the length of the text, ", "time": "the time, "}.get(facts.kind, "")
    match facts.test:
        case "missing":
            said = _missing(facts)
        case "unseen":
            said = _unseen(facts)
        case "chi2":
            said = _categories(facts)
        case _:
            said = what + _numbers(facts)
    return f"{facts.name}: {said}"


def _than(facts: Facts) -> str:
    return "in predictions for held-out rows" if facts.role == "output" else "in training"


def _missing(facts: Facts) -> str:
    before, after = facts.statistics["missing"]
    return f"{_percent(after)} of rows have no value, against {_percent(before)} {_than(facts)}"


def _unseen(facts: Facts) -> str:
    before, after = facts.statistics["unseen"]
    names: Mapping[str, float] = facts.after["unseen"]
    no_row = "which no training row has" if facts.role != "output" else "which no held-out row was given"
    if len(names) == 1:
        return f"{_percent(after)} of rows hold {next(iter(names))!r}, {no_row}"
    shown = ", ".join(f"{name!r} ({_percent(share)})" for name, share in list(names.items())[:_MOST])
    more = " and others" if len(names) > _MOST else ""
    usual = f", against {_percent(before)} that are to be expected" if before else ""
    return f"{_percent(after)} of rows hold categories {no_row}: {shown}{more}{usual}"


def _categories(facts: Facts) -> str:
    before, after = facts.before["categories"], facts.after["categories"]
    most = max(before, key=lambda name: abs(after[name] - before[name]), default=None)
    if most is None:
        return "the categories are others"
    return f"{_percent(after[most])} of rows hold {most!r}, against {_percent(before[most])} {_than(facts)}"


def _numbers(facts: Facts) -> str:
    if not facts.before["quantiles"] or not facts.after["quantiles"]:
        return "there are no values to compare"
    before, after = ([float(value) for value in side["quantiles"]] for side in (facts.before, facts.after))
    shown = _date if facts.kind == "time" else _number
    middles = f"median {shown(after[_MIDDLE])} against {shown(before[_MIDDLE])}"
    if facts.kind != "time" and (factor := _factor(before, after)) is not None:
        size = f"{_number(factor)} times larger" if factor > 1 else f"{_number(1 / factor)} times smaller"
        return f"{size}: {middles}"
    if facts.test == "outside":
        share = _percent(facts.statistics["beyond"])
        low, high = before[0], before[-1]
        reach = f"from {shown(after[0])} to {shown(after[-1])}"
        return f"{share} of rows are outside of {shown(low)} to {shown(high)} as {_than(facts)}: {reach}"
    half = [f"{shown(side[_QUARTERS[0]])} to {shown(side[_QUARTERS[1]])}" for side in (after, before)]
    return f"{middles} {_than(facts)}; the middle half is {half[0]}, against {half[1]}"


def _factor(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Return the factor between two distributions of one form, or None."""
    pairs = [(before[i], after[i]) for i in _COMPARED if before[i]]
    ratios = sorted(two / one for one, two in pairs if math.isfinite(two / one) and two / one > 0)
    if len(ratios) < max(3, len(pairs)):
        return None
    middle = ratios[len(ratios) // 2]
    if ratios[-1] > middle * _ALIKE or ratios[0] < middle / _ALIKE or 1 / _LARGE < middle < _LARGE:
        return None
    known = [known for one in _FACTORS for known in (one, 1 / one)]
    near = min(known, key=lambda one: abs(one / middle - 1))
    return near if abs(near / middle - 1) < 0.1 else middle


def _date(seconds: float) -> str:
    """Return seconds since 1970 as a date."""
    return str(np.datetime64(int(seconds), "s").astype("datetime64[D]"))


def _percent(share: float) -> str:
    if 0 < share < 0.0995:
        return f"{100 * share:.2g}%"
    return f"{100 * share:.0f}%"


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{float(f'{value:.4g}'):,.0f}" if abs(value) < 1e15 else f"{value:.4g}"
    return f"{value:.4g}"
