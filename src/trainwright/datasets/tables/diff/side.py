"""One of two tables that are compared."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

from trainwright.config.schema import DataConfig
from trainwright.datasets.tables.chunks import RowChunks
from trainwright.datasets.tables.kinds import judge
from trainwright.datasets.tables.table import Kind, Table, kind_of
from trainwright.datasets.tables.typed import ColumnKind

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

    @cached_property
    def readings(self) -> dict[str, ColumnKind]:
        """The columns of text that training reads as numbers or times, judged by the first rows."""
        texts = [name for name, kind in self.kinds.items() if kind == "text"]
        first = next(self.tables(texts), None) if texts else None
        kinds = {} if first is None else judge(first, texts, DataConfig(), keep="all").kinds
        return {name: kind for name, kind in kinds.items() if kind.kind in ("number", "time")}

    def measured(self, name: str) -> str | None:
        """Return the kind of the values of a column, as training reads it; None if there are none."""
        return self.readings[name].kind if name in self.readings else self.kinds.get(name)

    def tables(self, columns: Collection[str]) -> Iterator[Table]:
        """Yield the rows in chunks."""
        return self.chunks.tables(columns, CHUNK)
