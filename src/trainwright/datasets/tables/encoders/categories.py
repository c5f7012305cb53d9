"""Categories: one feature each (`onehot`), or their codes (`ordinal`, `category`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from trainwright.datasets.tables.encoders.base import Encoder, TrainingRows, as_texts, no_value
from trainwright.datasets.tables.table import Kind, Table, missing
from trainwright.types import Array

UNSEEN, MISSING = -1, -2  # stand for no category


@dataclass(frozen=True)
class Categories(Encoder):
    """Text that names categories, which are in alphabetical order.

    `fill` replaces missing values; without it they are an error, or no category with `keep`.
    """

    reads: ClassVar[Kind] = "text"
    categories: Sequence[str]
    fill: str | None = None
    keep: bool = False

    @property
    def accepts_missing(self) -> bool:
        """True where values may be missing: they are replaced, or left to the model."""
        return self.keep or self.fill is not None

    def unseen(self, table: Table) -> Array:
        """Return the values that no training row has, (n,) str, row by row; missing ones are left out."""
        values = as_texts(table, self.name)
        unseen: Array = values[self._positions(values) == UNSEEN]
        return unseen

    @property
    def content(self) -> str:
        """The content of the column, in words."""
        return f"category (of {len(self.categories)})"

    @property
    def example(self) -> str | float:
        """The category that replaces missing values, or the first."""
        return self.fill or next(iter(self.categories))

    def indices(self, table: Table) -> Array:
        """Return the index of each row's category, (rows,) int64: that of `fill`, UNSEEN or MISSING if none.

        Raises:
            DataError: Values are missing, and may not be.
        """
        values = as_texts(table, self.name)
        absent = missing(values)
        if absent.any() and not self.keep:
            if self.fill is None:
                raise no_value(table, self.name, absent)
            values = np.where(absent, self.fill, values)
        return self._positions(values)

    def _positions(self, values: Array) -> Array:
        return np.fromiter(map(self._index.__getitem__, values), dtype=np.int64, count=len(values))

    @cached_property
    def _index(self) -> _Index:
        index = _Index({category: i for i, category in enumerate(self.categories)})
        index[None] = MISSING
        return index


class _Index(dict[str | None, int]):
    """The positions of categories; as a dictionary of its own kind it needs no Python code for each row."""

    def __missing__(self, value: str | None) -> int:
        return UNSEEN


@dataclass(frozen=True)
class CategoryColumn(Categories):
    """Categories that have one feature each, or whose codes are the feature.

    `native`: the codes are for a model that takes categories.
    """

    kind: ClassVar[str] = "category"
    onehot: bool = True
    native: bool = False

    @classmethod
    def fit(cls, name: str, rows: TrainingRows) -> Self:
        """Fit an encoder on a column of text."""
        encode = rows.encode_of(name)
        onehot, native = encode in ("onehot", "auto"), encode == "category"
        return cls(**fitted_categories(name, rows), onehot=onehot, native=native)

    @property
    def outputs(self) -> Sequence[str]:
        """The names of its features."""
        return [f"{self.name}={category}" for category in self.categories] if self.onehot else [self.name]

    @property
    def codes(self) -> int:
        """The number of categories if its feature holds their codes, for models that accept them; else 0."""
        return len(self.categories) if self.native else 0

    @property
    def unseen_as(self) -> str:
        """The replacement of the values that `unseen` returns, in words."""
        return "no category (all zeros)" if self.onehot else "missing" if self.native else "-1"

    @property
    def shown_categories(self) -> Sequence[str]:
        """All categories."""
        return self.categories

    @property
    def is_onehot(self) -> bool:
        """True where each category has a feature of its own."""
        return self.onehot

    @property
    def shown_scaling(self) -> tuple[float, float]:
        """The mean and scale of codes, which stand as they are."""
        return 0.0, 1.0

    def encode(self, table: Table, out: Array) -> None:
        """Write the features into `out`, (rows, categories) or (rows, 1)."""
        codes = np.maximum(self.indices(table), -1)
        if not self.onehot:
            out[:, 0] = np.where(codes < 0, np.nan, codes) if self.native else codes
            return
        out[:] = 0
        seen = np.flatnonzero(codes >= 0)
        out[seen, codes[seen]] = 1


def fitted_categories(name: str, rows: TrainingRows) -> dict[str, Any]:
    """Return the fields that each encoder of categories has."""
    values = as_texts(rows.table, name)
    counts = Counter(values[~missing(values)])
    fill = min(counts, key=lambda category: (-counts[category], category)) if rows.fills else None
    return {"name": name, "categories": sorted(counts), "fill": fill, "keep": rows.keeps}
