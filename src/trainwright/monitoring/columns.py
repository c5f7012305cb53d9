"""The columns of the training rows, as windows of served rows are compared with them: cells and counts."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from trainwright.datasets.tables.table import iso_times
from trainwright.records.journal import finite
from trainwright.types import Array

BINS = 50  # of numbers, with equal shares of the training rows
CELLS = 50  # of categories; of more, several share a cell
KEPT = 10_000  # different categories that are known by name
LONGEST = 80  # characters of a category
_GROUPS = 10  # of cells, for the measures that are usual with ten
PERCENTS = 101

Role: TypeAlias = Literal["input", "target", "output"]
NumberKind: TypeAlias = Literal["number", "time", "text"]  # of a text, the length is compared


@dataclass(frozen=True)
class NumberColumn:
    """A column of numbers in the training rows: bins with equal shares of them, and its quantiles.

    `edges` are the first values of all bins but the lowest; `counts` (bins,) the training rows in each.
    `percentiles` (101,) are of the present values. Infinite values are numbers like others.
    """

    name: str
    kind: NumberKind
    role: Role
    edges: Array
    counts: Array
    percentiles: Array
    missing: int = 0

    tests: ClassVar[Sequence[str]] = ("ks", "missing", "outside")

    @property
    def cells(self) -> int:
        """The number of cells: one for missing values, then the bins."""
        return len(self.counts) + 1

    @property
    def rows(self) -> int:
        """The number of training rows."""
        return int(self.counts.sum()) + self.missing

    @property
    def in_cells(self) -> Array:
        """The number of training rows in each cell, (cells,)."""
        return np.concatenate([[self.missing], self.counts])

    @cached_property
    def groups(self) -> Array:
        """The group of each bin, (bins,): up to ten, with about equal shares of the training rows."""
        before = np.cumsum(self.counts) - self.counts
        groups: Array = (before + self.counts / 2) * _GROUPS // max(1, self.counts.sum())
        return np.unique(groups, return_inverse=True)[1]

    @property
    def decides(self) -> bool:
        """True where a shift is a drift: the times of later rows are later."""
        return self.kind != "time"

    def cells_of(self, numbers: Array) -> Array:
        """Return the cell of each number, (rows,) int64."""
        cells = np.searchsorted(self.edges, numbers, "right") + 1
        cells[np.isnan(numbers)] = 0
        return cells

    def read(self, values: Array) -> Array:
        """Return values of such a column as numbers, (rows,) float64."""
        return as_numbers(values, self.kind)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        return {
            "name": self.name,
            "kind": self.kind,
            "role": self.role,
            "edges": [finite(edge) for edge in self.edges.tolist()],
            "counts": self.counts.tolist(),
            "missing": self.missing,
            "percentiles": [finite(value) for value in self.percentiles.tolist()],
        }


@dataclass(frozen=True)
class CategoryColumn:
    """A column of categories in the training rows, with their counts.

    `counts` are those of the most frequent categories, by name, and `others` of all others together; where
    there are others, no category of a served row counts as unseen. `once` and `twice` are the numbers of
    categories that one and two training rows have: the share of new rows with an unseen category is about
    `once / rows` (Good 1953).
    """

    name: str
    role: Role
    counts: Mapping[str, int]
    others: int
    missing: int
    once: int = 0
    twice: int = 0

    kind: ClassVar[str] = "category"
    decides: ClassVar[bool] = True
    tests: ClassVar[Sequence[str]] = ("chi2", "missing", "unseen")
    index: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "index", {name: i for i, name in enumerate(self.counts)})

    @property
    def rows(self) -> int:
        """The number of training rows."""
        return sum(self.counts.values()) + self.others + self.missing

    @property
    def cells(self) -> int:
        """The number of cells: missing, unseen, and those of the categories."""
        return 2 + (CELLS if self._share_cells else max(1, len(self.counts)))

    @property
    def _share_cells(self) -> bool:
        return len(self.counts) > CELLS

    @property
    def knows_all(self) -> bool:
        """True if each category of the training rows is known by name."""
        return self.others == 0

    @cached_property
    def cell_of_category(self) -> Array:
        """The cell of each category, (categories,): by a hash of its name where they share cells.

        The hash does not depend on the counts: what is pooled because it is rare would be rarer in training
        than in new rows.
        """
        if not self._share_cells:
            return np.arange(len(self.counts)) + 2
        return np.array([self.shared_cell(name) for name in self.counts], np.int64)

    def shared_cell(self, name: str) -> int:
        """Return the cell of a category, where they share cells."""
        return 2 + zlib.crc32(name.encode("utf-8", "surrogatepass")) % CELLS

    @cached_property
    def in_cells(self) -> Array:
        """The number of training rows in each cell, (cells,).

        A category that no other row has counts as unseen, as it would be for the others: so the shares are
        those that new rows have on average.
        """
        made = np.zeros(self.cells, np.int64)
        counts = np.fromiter(self.counts.values(), np.int64, len(self.counts))
        cells = np.where((counts == 1) & self.knows_all, 1, self.cell_of_category)
        np.add.at(made, cells, counts)
        made[0] = self.missing
        if self.others:  # their names are forgotten: in equal parts, as hashes would put them
            made[2:] += np.bincount(np.arange(self.others) % CELLS, minlength=CELLS)
        return made

    def codes(self, values: Array) -> tuple[list[int], list[str]]:
        """Return the number of each value's category, -1 if missing, -2 if unseen; and the unseen ones."""
        index, codes, unseen = self.index, [], []
        texts = as_texts(values)
        if index.keys() <= {"True", "False"}:  # booleans, which may be sent as numbers
            texts = [text if text is None else _BOOLEANS.get(text, text) for text in texts]
        for text in texts:
            if text is None:
                codes.append(-1)
            elif (code := index.get(text)) is None and (code := index.get(text[:LONGEST])) is None:
                codes.append(-2)
                unseen.append(text[:LONGEST])
            else:
                codes.append(code)
        return codes, unseen

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        return {
            "name": self.name,
            "kind": self.kind,
            "role": self.role,
            "counts": dict(self.counts),
            "others": self.others,
            "missing": self.missing,
            "once": self.once,
            "twice": self.twice,
        }


_BOOLEANS = {"1": "True", "0": "False"}

Column: TypeAlias = NumberColumn | CategoryColumn


def column_from_json(data: Mapping[str, Any]) -> Column:
    """Restore the column that `to_json` was called on."""
    values = dict(data)
    if values.pop("kind") == "category":
        return CategoryColumn(**values)
    for name in ("edges", "percentiles"):
        values[name] = np.array([float(value) for value in values[name]], np.float64)
    values["counts"] = np.array(values["counts"], np.int64)
    return NumberColumn(**values, kind=data["kind"])


def fit(name: str, values: Array, role: Role) -> tuple[Column, Array] | None:
    """Return a column of the training rows, and the cell of each, (rows,); None of lists and arrays."""
    kind = _kind_of(values)
    if (
        kind == "number"
        and role != "input"
        and values.dtype.kind != "f"
        and len(set(values.tolist())) <= CELLS
    ):
        kind = "category"  # numbers of classes
    if kind is None:
        return None
    if kind == "category":
        return _fit_categories(name, values, role)
    return _fit_numbers(name, as_numbers(values, kind), kind, role)


_KINDS: dict[str, NumberKind | Literal["category"]] = {
    "M": "time",
    **dict.fromkeys("iuf", "number"),
    **dict.fromkeys("bU", "category"),
}


def _kind_of(values: Array) -> NumberKind | Literal["category"] | None:
    if values.ndim != 1:
        return None
    if values.dtype.kind != "O":
        return _KINDS.get(values.dtype.kind)
    present = [value for value in values.tolist() if value is not None]
    if not all(isinstance(value, str | bool | int | float) for value in present):
        return None
    different = len(set(present))
    return "text" if different > CELLS and 2 * different > len(present) else "category"


def _fit_numbers(name: str, numbers: Array, kind: NumberKind, role: Role) -> tuple[NumberColumn, Array]:
    present = np.sort(numbers[~np.isnan(numbers)])
    count = len(present)
    chosen = present[np.arange(1, BINS) * count // BINS] if count else present
    edges, repeats = np.unique(chosen, return_counts=True)
    edges = np.unique(np.concatenate([edges, np.nextafter(edges[repeats > 1], np.inf)]))
    edges = edges[edges > present[0]] if count else edges
    counts = np.bincount(np.searchsorted(edges, present, "right"), minlength=len(edges) + 1)
    at = np.minimum(np.arange(PERCENTS) * count // (PERCENTS - 1), count - 1)
    column = NumberColumn(
        name, kind, role, edges, counts, present[at] if count else present, len(numbers) - count
    )
    return column, column.cells_of(numbers)


def _fit_categories(name: str, values: Array, role: Role) -> tuple[CategoryColumn, Array]:
    texts = [None if text is None else text[:LONGEST] for text in as_texts(values)]
    names, of, counts = np.unique(
        np.array(["" if text is None else text for text in texts], dtype=object).astype(object),
        return_inverse=True,
        return_counts=True,
    )
    absent = np.array([text is None for text in texts], bool)
    counts = np.bincount(of[~absent], minlength=len(names))
    order = np.argsort(-counts, kind="stable")
    order = order[counts[order] > 0]
    kept = {str(names[i]): int(counts[i]) for i in order[:KEPT]}
    others = int(counts[order[KEPT:]].sum())
    column = CategoryColumn(
        name, role, kept, others, int(absent.sum()), int((counts == 1).sum()), int((counts == 2).sum())
    )
    cell = np.ones(len(names), np.int64)
    cell[order[:KEPT]] = np.where((counts[order[:KEPT]] == 1) & column.knows_all, 1, column.cell_of_category)
    for i in order[KEPT:]:
        cell[i] = column.shared_cell(str(names[i]))
    cells = cell[of]
    cells[absent] = 0
    return column, cells


def as_texts(values: Array) -> list[str | None]:
    """Return values as texts, None where they are missing; whole numbers have no decimal point."""
    values = np.asarray(values)
    if values.dtype.kind == "U":
        return [str(text) for text in values.tolist()]
    return [_text(value) for value in values.tolist()]


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def as_numbers(values: Array, kind: NumberKind = "number") -> Array:
    """Return values as numbers, (rows,) float64: times as seconds since 1970, of texts the lengths.

    What is no number is missing.
    """
    values = np.asarray(values)
    if kind == "text":
        return np.array([np.nan if text is None else len(text) for text in as_texts(values)], np.float64)
    if values.dtype.kind == "M":
        micro = values.astype("datetime64[us]")
        return np.where(np.isnat(micro), np.nan, micro.view(np.int64) / 1e6)
    if values.dtype.kind in "biuf":
        return values.astype(np.float64)
    if kind == "time":
        return as_numbers(iso_times(np.array(as_texts(values), object)))
    return np.array([_number(value) for value in values.tolist()], np.float64)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")
