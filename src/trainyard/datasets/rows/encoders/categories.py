"""Categories: one feature each (`onehot`), or their codes (`ordinal`, `category`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from trainyard.datasets.rows.encoders.base import Encoder, TrainingRows, as_texts, no_value
from trainyard.datasets.rows.table import Table, missing
from trainyard.types import Array


@dataclass(frozen=True)
class CategoryColumn(Encoder):
    """Text that names categories.

    `fill` replaces missing values; without it they are an error, or no category with `keep`. `native`: the
    codes are for a model that takes categories.
    """

    kind: ClassVar[str] = "category"
    reads_text: ClassVar[bool] = True
    categories: Sequence[str]
    onehot: bool = True
    fill: str | None = None
    keep: bool = False
    native: bool = False

    @classmethod
    def fit(cls, name: str, rows: TrainingRows) -> Self:
        """Fit an encoder on a column of text; the categories are in alphabetical order."""
        values = as_texts(rows.table, name)
        counts = Counter(values[~missing(values)])
        fill = min(counts, key=lambda category: (-counts[category], category)) if rows.fills else None
        encode = rows.config.encode
        return cls(name, sorted(counts), encode == "onehot", fill, rows.keeps, encode == "category")

    @property
    def outputs(self) -> Sequence[str]:
        """The names of its features."""
        return [f"{self.name}={category}" for category in self.categories] if self.onehot else [self.name]

    @property
    def codes(self) -> int:
        """The number of categories if its feature holds their codes, for models that accept them; else 0."""
        return len(self.categories) if self.native else 0

    def unseen(self, table: Table) -> Array:
        """Return the values that no training row has, (n,) str, row by row; missing ones are left out."""
        values = as_texts(table, self.name)
        known = set(self.categories)
        unseen: Array = values[
            ~missing(values) & np.array([value not in known for value in values], dtype=bool)
        ]
        return unseen

    def encode(self, table: Table, out: Array) -> None:
        """Write the features into `out`, (rows, categories) or (rows, 1)."""
        values = as_texts(table, self.name)
        absent = missing(values)
        if absent.any() and not self.keep:
            if self.fill is None:
                raise no_value(table, self.name, absent)
            values = np.where(absent, self.fill, values)
        index = {category: i for i, category in enumerate(self.categories)}
        codes = np.fromiter((index.get(value, -1) for value in values), dtype=np.int64, count=len(values))
        if not self.onehot:
            out[:, 0] = np.where(codes < 0, np.nan, codes) if self.native else codes
            return
        out[:] = 0
        seen = np.flatnonzero(codes >= 0)
        out[seen, codes[seen]] = 1
