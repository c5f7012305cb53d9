"""One of two tables that are compared."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from trainwright.datasets.tables.chunks import RowChunks
from trainwright.datasets.tables.table import Kind, Table, kind_of

CHUNK = 1 << 16  # rows that are looked at together


@dataclass(frozen=True)
class Side:
    """One of the two tables."""

    name: str
    chunks: RowChunks

    @cached_property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.chunks.names)

    @cached_property
    def kinds(self) -> dict[str, Kind]:
        """The kinds of the columns; of a table without rows, none."""
        first = next(self.tables(self.columns), None)
        return {} if first is None else {name: kind_of(one) for name, one in first.columns.items()}

    def tables(self, columns: Collection[str]) -> Iterator[Table]:
        """Yield the rows in chunks."""
        return self.chunks.tables(columns, CHUNK)
