"""The ranges of the training rows, and rows to predict that are outside of them or have unseen categories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainwright.datasets.tables.encoders.base import Encoder
from trainwright.datasets.tables.encoders.categories import Categories
from trainwright.datasets.tables.table import Table, as_texts, kind_of, missing
from trainwright.numerals import listed
from trainwright.types import Array

Range = Sequence[Any]  # the least and the greatest value; times as text
_NAMED = 5  # columns in a line
_EXAMPLES = 3
_KEPT = 10_000  # different categories of a column


def ranges_of(table: Table, columns: Collection[Encoder]) -> dict[str, Range]:
    """Return the ranges of the columns of numbers and times, in the training rows."""
    found: dict[str, Range] = {}
    for column in columns:
        values = table.columns[column.name]
        if column.reads in ("number", "time") and kind_of(values) in ("number", "time"):
            present = values[~missing(values)]
            if len(present):
                found[column.name] = [_plain(present.min()), _plain(present.max())]
    return found


@dataclass
class _Beyond:
    """The values of a column outside of its range: their number, and how far they reach."""

    known: Range
    rows: int = 0
    low: Any = None
    high: Any = None

    def add(self, values: Array) -> Array:
        """Count values; return the mask, (rows,), of those outside."""
        low, high = (
            np.asarray(end, values.dtype if kind_of(values) == "time" else None) for end in self.known
        )
        outside = (values < low) | (values > high)
        if outside.any():
            self.rows += int(outside.sum())
            least, most = values[outside].min(), values[outside].max()
            self.low = least if self.low is None else min(self.low, least)
            self.high = most if self.high is None else max(self.high, most)
        mask: Array = outside
        return mask

    def words(self, name: str) -> str:
        """Return the column with its range, and how far values are outside of it."""
        low, high = self.known
        parts = []
        if self.low < np.asarray(low, getattr(self.low, "dtype", None)):
            parts.append(f"min {_shown(low)}; down to {_shown(_plain(self.low))}")
        if self.high > np.asarray(high, getattr(self.high, "dtype", None)):
            parts.append(f"max {_shown(high)}; up to {_shown(_plain(self.high))}")
        return f"{name} ({', '.join(parts)})"


@dataclass
class UnusualValues:
    """Counts of the rows to predict that have values unlike those of any training row.

    Attributes:
        ranges: The ranges of the training rows, by column.
        rows: The number of rows.
        outside: The number of those with a value outside of a range.
        unseen: The number of those with a category that no training row has.
    """

    ranges: Mapping[str, Range]
    rows: int = 0
    outside: int = 0
    unseen: int = 0
    _beyond: dict[str, _Beyond] = field(default_factory=dict)
    _categories: dict[str, Counter[str]] = field(default_factory=dict)
    _taken_as: dict[str, str] = field(default_factory=dict)

    def add(self, table: Table, columns: Sequence[Encoder]) -> None:
        """Count rows, whose columns are read as their kinds."""
        self.rows += len(table)
        outside, unseen = np.zeros(len(table), bool), np.zeros(len(table), bool)
        for column in columns:
            if (values := table.columns.get(column.name)) is None:
                continue
            if column.name in self.ranges and kind_of(values) in ("number", "time"):
                if missing(values).all():  # which is read as numbers or texts, whatever it held in training
                    continue
                known = self._beyond.setdefault(column.name, _Beyond(self.ranges[column.name]))
                outside |= known.add(values)
            elif isinstance(column, Categories) and len(new := column.unseen(table)):
                known_counts = self._categories.setdefault(column.name, Counter())
                known_counts.update(new.tolist())
                self._taken_as[column.name] = column.unseen_as
                is_new = set(new.tolist())
                texts = as_texts(values).tolist()
                unseen |= np.fromiter((text in is_new for text in texts), bool, len(texts))
                self._forget(known_counts)
        self.outside += int(outside.sum())
        self.unseen += int(unseen.sum())

    @staticmethod
    def _forget(counts: Counter[str]) -> None:
        """Keep the memory small where nearly every row has a category of its own: only the sum counts."""
        if len(counts) > _KEPT:
            first = dict(list(counts.items())[:_EXAMPLES])
            more = counts.total() - sum(first.values())
            counts.clear()
            counts.update(first)
            counts[next(iter(first))] += more

    def lines(self) -> list[str]:
        """Return what a user should know, in a line each."""
        lines = []
        beyond = {name: one for name, one in self._beyond.items() if one.rows}
        if beyond:
            most = sorted(beyond, key=lambda name: -beyond[name].rows)
            named = ", ".join(beyond[name].words(name) for name in most[:_NAMED])
            more = f" and {len(most) - _NAMED} more" if len(most) > _NAMED else ""
            lines.append(
                f"{self._of(self.outside)} a value outside the range seen in training: {named}{more}"
            )
        if self._categories:
            named = "; ".join(
                f"{name} ({listed(map(repr, values), _EXAMPLES)}), taken as {self._taken_as[name]}"
                for name, values in [*self._categories.items()][:_NAMED]
            )
            others = len(self._categories) - _NAMED
            named += f" and {others} more" if others > 0 else ""
            lines.append(f"{self._of(self.unseen)} a category never seen in training: {named}")
        return lines

    def _of(self, count: int) -> str:
        return f"{count:,} of {self.rows:,} rows {'has' if count == 1 else 'have'}"

    def to_json(self) -> dict[str, Any]:
        """Return the counts for JSON."""
        return {
            "rows": self.rows,
            "outside_range": self.outside,
            "never_seen": self.unseen,
            "columns": {
                **{
                    name: {
                        "rows": one.rows,
                        "range": list(one.known),
                        "found": [_plain(one.low), _plain(one.high)],
                    }
                    for name, one in self._beyond.items()
                    if one.rows
                },
                **{
                    name: {"rows": sum(values.values()), "values": [*values][:_EXAMPLES]}
                    for name, values in self._categories.items()
                },
            },
        }


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, np.datetime64) else value.item()


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value.removesuffix("T00:00:00.000000").removesuffix("T00:00:00.000000000")
    return f"{value:g}" if isinstance(value, float) else str(value)
