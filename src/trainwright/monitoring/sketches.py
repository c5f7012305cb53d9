"""A window of served rows: what they hold, counted in bounded memory; windows of replicas add up."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from trainwright.errors import DataError
from trainwright.monitoring.columns import CategoryColumn, NumberColumn
from trainwright.monitoring.quantiles import Quantiles
from trainwright.monitoring.reference import Reference, watched_outputs
from trainwright.types import Array

_BUFFER = 1024  # rows whose numbers wait to be counted together
_UNSEEN = 100  # different unseen categories of a column that are known by name


class NumberCounts:
    """The numbers of a column in a window: rows in each cell, values beyond the training rows, quantiles."""

    def __init__(self, column: NumberColumn) -> None:
        self.column = column
        self.cells: Array = np.zeros(column.cells, np.int64)
        self.beyond: Array = np.zeros(2, np.int64)  # below and above all training values
        self.quantiles = Quantiles()

    def add(self, numbers: Array) -> None:
        """Count numbers, (n,) float64."""
        self.cells += np.bincount(self.column.cells_of(numbers), minlength=len(self.cells))
        if len(self.column.percentiles):
            low, high = self.column.percentiles[[0, -1]]
            self.beyond += [int((numbers < low).sum()), int((numbers > high).sum())]
        self.quantiles.add(numbers)

    def copy(self) -> NumberCounts:
        """Return the same counts."""
        made = NumberCounts(self.column)
        made.merge(self)
        return made

    def merge(self, other: NumberCounts) -> None:
        """Count the values of another window."""
        self.cells += other.cells
        self.beyond += other.beyond
        self.quantiles.merge(other.quantiles)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "cells": self.cells.tolist(),
            "beyond": self.beyond.tolist(),
            "quantiles": self.quantiles.to_json(),
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Take the values that `to_json` returned."""
        self.cells[:], self.beyond[:] = data["cells"], data["beyond"]
        self.quantiles = Quantiles.from_json(data["quantiles"])


class CategoryCounts:
    """The categories of a column in a window, with the unseen ones, of which the first are known by name."""

    def __init__(self, column: CategoryColumn) -> None:
        self.column = column
        self.counts: Array = np.zeros(len(column.counts), np.int64)
        self.missing = self.unseen = 0
        self.names: Counter[str] = Counter()
        self.hashed: Array = np.zeros(column.cells, np.int64)  # of unseen ones, if others are not known

    def add(self, values: Array) -> None:
        """Count values of any kind, (n,)."""
        codes, unseen = self.column.codes(values)
        found = np.bincount(np.asarray(codes, np.int64) + 2, minlength=len(self.counts) + 2)
        self.unseen += int(found[0])
        self.missing += int(found[1])
        self.counts += found[2:]
        for name in unseen:
            if name in self.names or len(self.names) < _UNSEEN:
                self.names[name] += 1
            if not self.column.knows_all:
                self.hashed[self.column.shared_cell(name)] += 1

    @property
    def cells(self) -> Array:
        """The number of rows in each cell, (cells,)."""
        made = np.bincount(self.column.cell_of_category, self.counts, self.column.cells).astype(np.int64)
        made += self.hashed
        made[0] = self.missing
        made[1] = self.unseen if self.column.knows_all else 0
        return made

    @property
    def beyond(self) -> Array:
        """Zeros: no category is beyond others."""
        return np.zeros(2, np.int64)

    def copy(self) -> CategoryCounts:
        """Return the same counts."""
        made = CategoryCounts(self.column)
        made.merge(self)
        return made

    def merge(self, other: CategoryCounts) -> None:
        """Count the values of another window."""
        self.counts += other.counts
        self.missing += other.missing
        self.unseen += other.unseen
        self.hashed += other.hashed
        self.names = Counter(dict((self.names + other.names).most_common(_UNSEEN)))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        counts = zip(self.column.counts, self.counts.tolist(), strict=True)
        return {
            "counts": {name: count for name, count in counts if count},
            "missing": self.missing,
            "unseen": self.unseen,
            "names": dict(self.names),
            "hashed": self.hashed.tolist() if self.hashed.any() else [],
        }

    def load(self, data: Mapping[str, Any]) -> None:
        """Take the values that `to_json` returned."""
        for name, count in data["counts"].items():
            self.counts[self.column.index[name]] = count
        self.missing, self.unseen = data["missing"], data["unseen"]
        self.names = Counter(data["names"])
        if data["hashed"]:
            self.hashed[:] = data["hashed"]


class Window:
    """A window of served rows, compared with a reference by `drift.compare`; safe from many threads.

    It holds, for each column of numbers, at most 2,048 buckets of quantiles (48 KiB), 150 cells and 1,024
    waiting numbers (8 KiB); for each column of categories a count for each of at most 10,000 categories of
    the training rows (80 KB), and 100 names of unseen ones; whatever the number of rows.

    Args:
        reference: What the training rows were like.
    """

    def __init__(self, reference: Reference) -> None:
        self.reference = reference
        self.rows = 0
        self.requests = 0
        self.start: float | None = None  # seconds since 1970, of the first and the last rows
        self.end: float | None = None
        self.latency = Quantiles()  # seconds of a request
        self._counts: dict[str, NumberCounts | CategoryCounts] = {
            column.name: NumberCounts(column) if isinstance(column, NumberColumn) else CategoryCounts(column)
            for column in reference.columns
        }
        numbers = [name for name, counts in self._counts.items() if isinstance(counts, NumberCounts)]
        self._at = {name: i for i, name in enumerate(numbers)}
        self._waiting = np.full((len(self._at), _BUFFER), np.nan)
        self._filled = np.zeros(len(self._at), np.int64)
        self._seconds: list[float] = []
        self._lock = threading.Lock()

    def add(
        self,
        columns: Mapping[str, Array],
        outputs: Mapping[str, Any],
        seconds: float | Sequence[float] | None = None,
        at: float | Literal["now"] | None = "now",
    ) -> None:
        """Count the rows of a request, or of several.

        Args:
            columns: Its columns, as `Predictor.watched` returns them, (rows,) each; others are ignored.
            outputs: The columns of its predictions, as `Predictor.table` returns them.
            seconds: How long the request took, or each of them.
            at: When it came, in seconds since 1970; None: that is not known.
        """
        given = {**columns, **watched_outputs(outputs)}
        rows = max((len(values) for values in given.values()), default=0)
        moment = time.time() if at == "now" else at
        with self._lock:
            self.rows += rows
            took = [] if seconds is None else [seconds] if isinstance(seconds, float | int) else [*seconds]
            self.requests += max(1, len(took))
            if moment is not None:
                self.start = moment if self.start is None else min(self.start, moment)
                self.end = moment if self.end is None else max(self.end, moment)
            self._seconds += took
            if len(self._seconds) >= _BUFFER:
                self._take_seconds()
            for name, values in given.items():
                if (counts := self._counts.get(name)) is None:
                    continue
                if isinstance(counts, CategoryCounts):
                    counts.add(np.asarray(values))
                else:
                    self._wait(counts, counts.column.read(np.asarray(values)))

    def ended(self, at: float) -> None:
        """Note when the last row came, in seconds since 1970."""
        with self._lock:
            self.end = at if self.end is None else max(self.end, at)

    def took(self, seconds: Array) -> None:
        """Count how long requests took, (n,) seconds."""
        with self._lock:
            self.latency.add(seconds)

    def _wait(self, counts: NumberCounts, numbers: Array) -> None:
        i = self._at[counts.column.name]
        filled = int(self._filled[i])
        if filled + len(numbers) > _BUFFER:
            counts.add(self._waiting[i, :filled])
            filled = self._filled[i] = 0
        if len(numbers) > _BUFFER:
            counts.add(numbers)
            return
        self._waiting[i, filled : filled + len(numbers)] = numbers
        self._filled[i] = filled + len(numbers)

    def _take_seconds(self) -> None:
        self.latency.add(np.array(self._seconds, np.float64))
        self._seconds.clear()

    def _settle(self) -> None:
        """Count what waits."""
        for name, i in self._at.items():
            counts = self._counts[name]
            if self._filled[i] and isinstance(counts, NumberCounts):
                counts.add(self._waiting[i, : self._filled[i]])
        self._filled[:] = 0
        self._take_seconds()

    def counts(self) -> Mapping[str, NumberCounts | CategoryCounts]:
        """Return the counts of each column as they are now."""
        with self._lock:
            self._settle()
            return {name: counts.copy() for name, counts in self._counts.items()}

    def merge(self, other: Window) -> None:
        """Count the rows of another window, such as that of another replica.

        Raises:
            DataError: It has another reference.
        """
        theirs = other.counts()
        if other.reference.id != self.reference.id:
            raise DataError("the windows are of models with other training rows; they do not add up")
        with self._lock:
            self._settle()
            self.rows += other.rows
            self.requests += other.requests
            self.start, self.end = (
                pick([one for one in ends if one is not None], default=None)
                for pick, ends in ((min, (self.start, other.start)), (max, (self.end, other.end)))
            )
            self.latency.merge(other.latency)
            for name, counts in self._counts.items():
                counts.merge(theirs[name])  # type: ignore[arg-type]  # of one column of one reference

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        counts = self.counts()
        with self._lock:
            return {
                "reference": self.reference.id,
                "rows": self.rows,
                "requests": self.requests,
                "start": self.start,
                "end": self.end,
                "latency": self.latency.to_json(),
                "columns": {name: one.to_json() for name, one in counts.items()},
            }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], reference: Reference) -> Window:
        """Restore the window that `to_json` was called on.

        Raises:
            DataError: It has another reference.
        """
        if data["reference"] != reference.id:
            raise DataError("the window is of a model with other training rows")
        made = cls(reference)
        made.rows, made.requests = data["rows"], data["requests"]
        made.start, made.end = data["start"], data["end"]
        made.latency = Quantiles.from_json(data["latency"])
        for name, counts in made._counts.items():
            counts.load(data["columns"][name])
        return made
