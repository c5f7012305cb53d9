"""The distribution of a column in two tables: learned chunk by chunk, and how it shifted."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.datasets.tables.diff.canonical import MISSING, Cells, mixed
from trainwright.datasets.tables.table import Kind, kind_of, missing
from trainwright.datasets.tables.typed import ColumnKind, read_each
from trainwright.types import Array

_KEPT = 1 << 17  # values of a column that a sample holds at most
_CATEGORIES = 10_000  # different texts; with more, they are no categories
_SHOWN = 10  # new and vanished categories


@dataclass(frozen=True)
class CategoryShift:
    """The category whose share of the present cells changed most, and its shares in both tables."""

    category: str
    before: float
    after: float


@dataclass(frozen=True)
class ColumnShift:
    """The distribution of a column in the first and in the second table.

    `missing` are the shares of missing cells. Of numbers (and booleans, as 0 and 1), there are `mean` and
    `std` (with n - 1), and the two-sample Kolmogorov-Smirnov statistic `ks`: the largest distance between the
    two empirical distribution functions (Smirnov 1948, "Table for estimating the goodness of fit of empirical
    distributions"). 0: the same distribution; 1: no overlap. It needs no bins, unlike the population
    stability index. Of times, there is `ks` alone. It is exact up to 131,072 rows; beyond that (`sampled`) it
    is that of at least 65,536 random rows, the same positions in both tables.

    Of texts with at most 10,000 different ones, `new` and `vanished` are the most frequent ones of those that
    only one table has, `new_count` and `vanished_count` their numbers, and `largest` the largest change of a
    share.
    """

    column: str
    missing: tuple[float, float]
    mean: tuple[float | None, float | None] | None = None
    std: tuple[float | None, float | None] | None = None
    ks: float | None = None
    sampled: bool = False
    new: tuple[str, ...] = ()
    new_count: int = 0
    vanished: tuple[str, ...] = ()
    vanished_count: int = 0
    largest: CategoryShift | None = None


class ColumnProfile:
    """The distribution of a column, chunk by chunk.

    Args:
        reading: How its texts are read as numbers or times; default: they stay texts.
    """

    def __init__(self, reading: ColumnKind | None = None) -> None:
        self._reading = reading
        self.measured: Kind | None = None  # the kind of the values that `reading` gives
        self.rows = self.missing = self.present = 0
        self.kind: Kind | None = None
        self.whole = True  # all numbers are whole ones
        self.is_integer = False  # by its type
        self.mean = self._squares = 0.0
        self.counts: Counter[str] | None = Counter()
        self._kept: list[tuple[Array, Array]] = []  # values, and the random numbers of their positions
        self._mask = np.uint64(0)

    def add(self, values: Array, cells: Cells, start: int) -> None:
        """Learn from a chunk: its values and cells, (rows,), of the rows from position `start` on."""
        has = cells.tags != MISSING
        self.kind = kind_of(values)
        self.rows, self.missing = self.rows + len(values), self.missing + int((~has).sum())
        if self._reading is not None and self.kind == "text":
            values, _ = read_each(values, self._reading)
            has = ~missing(values)
        self.measured = kind_of(values)
        if self.measured == "text":
            self._add_texts(cells)
            return
        self.is_integer = values.dtype.kind in "iu"
        numbers = values[has]
        if self.measured == "time":
            numbers = numbers.astype("datetime64[us]").view(np.int64)
        numbers = numbers.astype(np.float64)
        if len(numbers):
            self._add_numbers(numbers, np.flatnonzero(has) + start)

    def _add_numbers(self, numbers: Array, positions: Array) -> None:
        self.whole = self.whole and bool((numbers == np.trunc(numbers)).all())
        with np.errstate(invalid="ignore", over="ignore"):  # infinite values
            mean = float(numbers.mean())
            squares = float(((numbers - mean) ** 2).sum())
            total, step = self.present + len(numbers), mean - self.mean
            self._squares += squares + step * step * self.present * len(numbers) / total
            self.mean += step * len(numbers) / total
        self.present = total
        keys = mixed(positions.astype(np.uint64))
        chosen = (keys & self._mask) == 0
        self._kept.append((numbers[chosen], keys[chosen]))
        while sum(len(values) for values, _ in self._kept) > _KEPT:
            self._mask = (self._mask << np.uint64(1)) | np.uint64(1)
            self._kept = [
                (values[keep], keys[keep])
                for values, keys in self._kept
                for keep in [(keys & self._mask) == 0]
            ]

    def _add_texts(self, cells: Cells) -> None:
        if self.counts is None or cells.codes is None or cells.texts is None:
            return
        counts = np.bincount(cells.codes[cells.codes >= 0], minlength=len(cells.texts))
        self.counts.update(dict(zip(cells.texts.tolist(), counts.tolist(), strict=True)))
        if len(self.counts) > _CATEGORIES:
            self.counts = None

    @property
    def std(self) -> float | None:
        """The standard deviation with n - 1; None of fewer than two numbers."""
        return math.sqrt(self._squares / (self.present - 1)) if self.present > 1 else None

    @property
    def mask(self) -> np.uint64:
        """The bits that are 0 in the random numbers of the positions in the sample."""
        return self._mask

    def sample(self, mask: np.uint64) -> Array:
        """Return the values at the positions that a mask chooses, sorted."""
        parts = [values[(keys & mask) == 0] for values, keys in self._kept]
        return np.sort(np.concatenate(parts)) if parts else np.empty(0)


def shift_of(column: str, before: ColumnProfile, after: ColumnProfile) -> ColumnShift:
    """Return how the distribution of a column shifted."""
    both = (before, after)
    absent = (_share(before), _share(after))
    kinds = {one.measured for one in both if one.rows > one.missing}
    if len(kinds) != 1:
        return ColumnShift(column, absent)
    if kinds == {"text"}:
        return _of_categories(column, absent, before, after)
    numeric = kinds <= {"number", "boolean"}
    ks, sampled = _distance(before, after)
    means = tuple(one.mean if one.present else None for one in both)
    return ColumnShift(
        column,
        absent,
        (means[0], means[1]) if numeric else None,
        (before.std, after.std) if numeric else None,
        ks,
        sampled,
    )


def _share(profile: ColumnProfile) -> float:
    return profile.missing / profile.rows if profile.rows else 0.0


def _distance(before: ColumnProfile, after: ColumnProfile) -> tuple[float | None, bool]:
    """Return the Kolmogorov-Smirnov statistic, and whether it is that of a sample."""
    mask = before.mask | after.mask
    one, two = before.sample(mask), after.sample(mask)
    if not len(one) or not len(two):
        return None, bool(mask)
    at = np.concatenate([one, two])
    gaps = np.searchsorted(one, at, "right") / len(one) - np.searchsorted(two, at, "right") / len(two)
    return float(np.abs(gaps).max()), bool(mask)


def _of_categories(
    column: str, missing: tuple[float, float], before: ColumnProfile, after: ColumnProfile
) -> ColumnShift:
    if before.counts is None or after.counts is None:
        return ColumnShift(column, missing)
    ours, theirs = before.counts, after.counts
    new, vanished = _only(theirs, ours), _only(ours, theirs)
    sums = [max(1, counts.total()) for counts in (ours, theirs)]
    shares: dict[str, Any] = {
        text: (ours[text] / sums[0], theirs[text] / sums[1]) for text in sorted({*ours, *theirs})
    }
    most = max(shares, key=lambda text: abs(shares[text][1] - shares[text][0]), default=None)
    largest = (
        None if most is None or shares[most][0] == shares[most][1] else CategoryShift(most, *shares[most])
    )
    return ColumnShift(
        column,
        missing,
        new=tuple(new[:_SHOWN]),
        new_count=len(new),
        vanished=tuple(vanished[:_SHOWN]),
        vanished_count=len(vanished),
        largest=largest,
    )


def _only(counts: Counter[str], others: Counter[str]) -> list[str]:
    """Return the texts that the others lack, the most frequent first."""
    return sorted((text for text in counts if text not in others), key=lambda text: (-counts[text], text))
