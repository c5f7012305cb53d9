"""Drift: a window of served rows compared with the training rows, column by column, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from trainwright.errors import InputError
from trainwright.monitoring.calibration import SIZES, Threshold
from trainwright.monitoring.columns import CategoryColumn, Column, NumberColumn, Role
from trainwright.monitoring.reference import Reference
from trainwright.monitoring.sketches import CategoryCounts, NumberCounts, Window
from trainwright.monitoring.statistics import (
    chi_square,
    jensen_shannon,
    kolmogorov_smirnov,
    psi,
    scores,
    shares_of,
)
from trainwright.monitoring.words import Facts, sentence
from trainwright.records.journal import finite

ALARM_RATE = 0.01
FEWEST = SIZES[0]  # rows of a window that is judged
SHARES = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
Verdict: TypeAlias = Literal["drift", "no drift", "too few rows"]
_NAMED = 20  # categories of a column in the report
_RATES = (1e-6, 0.5)


@dataclass(frozen=True)
class ColumnDrift:
    """A column of a window, beside the training rows.

    Attributes:
        name: Its name.
        role: `input`, `target` or `output`; outputs are compared with those for rows held out of training.
        kind: `number`, `time`, `text` (whose length is compared) or `category`.
        drifted: Whether the column makes the verdict.
        decides: Whether it may: times do not.
        score: The decision statistic, as a multiple of its threshold: a drift above 1. It is the largest
            -log10 p of the column's tests, each scaled to the same tail by the resampling.
        p: The probability that the largest score of all columns is as large without drift.
        test: The test that gave the score.
        statistics: `ks` or `chi2` (with `freedom`), `psi`, `js`; `missing`, `unseen` (shares of both) and
            `beyond` (the share of values beyond the training rows).
        before: The training rows: `rows`, `quantiles` at `SHARES`, or `categories` (shares).
        after: The same of the window.
        line: The change in words.
    """

    name: str
    role: Role
    kind: str
    drifted: bool
    decides: bool
    score: float = 0.0
    p: float = 1.0
    test: str = ""
    statistics: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)
    line: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the column for JSON."""
        return {**vars(self), "score": finite(round(self.score, 6))}


@dataclass(frozen=True)
class Drift:
    """The comparison of a window with the training rows.

    Attributes:
        run: The id of the run.
        rows: The number of rows of the window.
        training_rows: Those of the training split.
        held_out: Those whose predictions the predictions of the window are compared with.
        alarm_rate: The probability of a drift in a window that has none.
        verdict: `drift`, `no drift`, or `too few rows` (below 50).
        columns: The columns, those with the largest scores first.
        window: `start`, `end` (seconds since 1970), `requests`, and quantiles of `latency` in seconds.
        notes: What a reader should know of the comparison.
    """

    run: str
    rows: int
    training_rows: int
    held_out: int
    alarm_rate: float
    verdict: Verdict
    columns: Sequence[ColumnDrift] = ()
    window: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def drifted(self) -> list[ColumnDrift]:
        """The columns that make the verdict."""
        return [column for column in self.columns if column.drifted]

    @property
    def lines(self) -> list[str]:
        """The drift in words, a line for each column."""
        return [column.line for column in self.drifted]

    def to_json(self) -> dict[str, Any]:
        """Return the document that `/drift` and `drift --json` give."""
        return {
            **vars(self),
            "columns": [column.to_json() for column in self.columns],
            "window": dict(self.window),
            "notes": list(self.notes),
            "lines": self.lines,
        }


@dataclass(frozen=True)
class DriftReport:
    """The comparison of windows, in their order, with the training rows of a run."""

    run: str
    windows: Sequence[Drift]

    @property
    def drifted(self) -> bool:
        """True if a window has drifted."""
        return any(one.verdict == "drift" for one in self.windows)

    @property
    def lines(self) -> list[str]:
        """The drift in words: a line for each window, and for each of its columns."""
        return [line for i in range(len(self.windows)) for line in self._of_window(i)]

    def _of_window(self, i: int) -> list[str]:
        one = self.windows[i]
        before = sum(window.rows for window in self.windows[:i])
        where = (
            f"rows {before + 1:,} to {before + one.rows:,}" if len(self.windows) > 1 else f"{one.rows:,} rows"
        )
        return [f"{where}: {one.verdict}", *(f"  {line}" for line in one.lines)]

    def to_json(self) -> dict[str, Any]:
        """Return the document that `/drift` and `drift --json` give."""
        windows = [one.to_json() for one in self.windows]
        return {"run": self.run, "drifted": self.drifted, "windows": windows}


def check_alarm_rate(rate: float) -> None:
    """Check a rate of alarms.

    Raises:
        InputError: It cannot be kept.
    """
    if not _RATES[0] <= rate <= _RATES[1]:
        raise InputError(f"an alarm rate of {rate:g} given; give one from {_RATES[0]:g} to {_RATES[1]:g}")


def compare(window: Window, alarm_rate: float = ALARM_RATE) -> Drift:
    """Compare a window with its reference.

    Args:
        window: The window.
        alarm_rate: The probability of a drift in a window of the training rows themselves, over all columns.

    Raises:
        InputError: The alarm rate is none.
    """
    check_alarm_rate(alarm_rate)
    reference, counts = window.reference, window.counts()
    threshold = reference.thresholds.for_rows(window.rows)
    judged = window.rows >= FEWEST
    found = [
        _column(column, counts[column.name], threshold, alarm_rate, judged=judged)
        for column in reference.columns
        if counts[column.name].cells.any()
    ]
    found.sort(key=lambda one: (-one.decides, -one.score))
    verdict: Verdict = "too few rows"
    if judged:
        verdict = "drift" if any(one.drifted for one in found) else "no drift"
    return Drift(
        reference.run,
        window.rows,
        reference.rows,
        reference.held_out,
        alarm_rate,
        verdict,
        found,
        _described(window),
        _notes(reference, found),
    )


def _described(window: Window) -> dict[str, Any]:
    seconds = [None if value is None else finite(value) for value in window.latency.at((0.5, 0.9, 0.99))]
    latency = dict(zip(("p50", "p90", "p99"), seconds, strict=True))
    return {"start": window.start, "end": window.end, "requests": window.requests, "latency": latency}


def _notes(reference: Reference, found: Sequence[ColumnDrift]) -> list[str]:
    notes = []
    if not reference.held_out:
        notes.append("the run has no held-out rows to speak of, so its predictions are not compared")
    if times := [one.name for one in found if not one.decides]:
        notes.append(f"times are later than in training anyway, and make no drift: {', '.join(times)}")
    return notes


def _column(
    column: Column,
    counts: NumberCounts | CategoryCounts,
    threshold: Threshold,
    alarm_rate: float,
    *,
    judged: bool,
) -> ColumnDrift:
    first, second, beyond = column.in_cells, counts.cells, counts.beyond
    scale = threshold.scales.get(column.name, np.ones(len(column.tests)))
    each = scores(column, first, second, beyond) / scale
    score, test = float(each.max()), column.tests[int(each.argmax())]
    relative = score / threshold.score_at(alarm_rate)
    statistics, before, after = _statistics(column, counts)
    drifted = judged and column.decides and relative > 1
    facts = Facts(column.name, column.role, column.kind, test, statistics, before, after)
    return ColumnDrift(
        column.name, column.role, column.kind, drifted, column.decides, relative, threshold.rate_at(score),
        test, statistics, before, after, sentence(facts),
    )  # fmt: skip


def _statistics(
    column: Column, counts: NumberCounts | CategoryCounts
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the statistics of a column, and the description of both sides."""
    first, second = column.in_cells, counts.cells
    rows = int(second.sum())
    found: dict[str, Any] = {"missing": [first[0] / max(1, column.rows), second[0] / max(1, rows)]}
    before: dict[str, Any] = {"rows": column.rows}
    after: dict[str, Any] = {"rows": rows}
    if isinstance(column, NumberColumn) and isinstance(counts, NumberCounts):
        groups = [np.bincount(column.groups, cells[1:]) for cells in (first, second)]
        shares = [
            shares_of(np.concatenate([[cells[0]], of]))
            for cells, of in zip((first, second), groups, strict=True)
        ]
        found["ks"] = (
            float(kolmogorov_smirnov(first[1:], second[1:])) if first[1:].any() and second[1:].any() else None
        )
        found["beyond"] = int(counts.beyond.sum()) / max(1, rows)
        known = len(column.percentiles) - 1
        before["quantiles"] = (
            [finite(float(column.percentiles[round(share * known)])) for share in SHARES]
            if known > 0
            else None
        )
        numbers = counts.quantiles.at(SHARES)
        after["quantiles"] = None if numbers[0] is None else [finite(value or 0.0) for value in numbers]
    elif isinstance(column, CategoryColumn) and isinstance(counts, CategoryCounts):
        statistic, freedom = chi_square(first[2:], second[2:])
        shares = [shares_of(first), shares_of(second)]
        found["chi2"], found["freedom"] = float(statistic), int(freedom)
        found["unseen"] = [first[1] / max(1, column.rows), counts.unseen / max(1, rows)]
        after["unseen"] = {name: count / max(1, rows) for name, count in counts.names.most_common(_NAMED)}
        before["categories"], after["categories"] = _shares(column, counts, rows)
    found["psi"], found["js"] = psi(*shares), jensen_shannon(*shares)
    return found, before, after


def _shares(
    column: CategoryColumn, counts: CategoryCounts, rows: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Return the shares of the categories that changed most, in both."""
    names = list(column.counts)
    one = np.array([*column.counts.values()]) / max(1, column.rows)
    two = counts.counts / max(1, rows)
    order = np.argsort(-np.maximum(one, two) - 10 * np.abs(one - two), kind="stable")[:_NAMED]
    return {names[i]: float(one[i]) for i in order}, {names[i]: float(two[i]) for i in order}
