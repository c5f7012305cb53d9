"""Read files of rows chunk by chunk: files for prediction may be larger than the memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trainwright.datasets.tables.arrow import strings
from trainwright.datasets.tables.cells import ColumnFacts
from trainwright.datasets.tables.table import Table, kind_of
from trainwright.errors import DataError
from trainwright.require import require
from trainwright.types import Array

WHOLE_BYTES = 16 << 20  # a CSV file of at most this size is read at once
# Of a CSV file that are parsed together: a row must fit into them, and Arrow reads 32 such blocks ahead.
_BLOCK_BYTES = 2 << 20


class RowChunks(Protocol):
    """The rows of a file, to be read chunk by chunk as often as wanted."""

    @property
    def names(self) -> Sequence[str]:
        """The names of the columns."""

    def tables(self, columns: Collection[str], rows: int) -> Iterator[Table]:
        """Yield the rows in chunks, each of `rows` rows but for the last one.

        The columns have the types that they have where the whole file is read at once.

        Args:
            columns: The columns to read; the others are named as unread.
            rows: The number of rows of a chunk.

        Raises:
            DataError: The file cannot be read.
        """

    def cells(self, columns: Sequence[str], rows: int) -> Iterator[Mapping[str, Array]] | None:
        """Yield the cells of columns as they are written, in the same chunks; None for a file with types."""


@dataclass(frozen=True)
class CsvFormat:
    """The format of a CSV file.

    Attributes:
        names: The names of the columns, which the first `header_lines` lines hold.
        header_lines: The number of these lines.
        delimiter: The character between two cells.
        encoding: The encoding of the file.
        missing: The texts that mean a missing value.
        text: The columns to read as text.
    """

    names: Sequence[str]
    header_lines: int
    delimiter: str
    encoding: str
    missing: Sequence[str]
    text: Collection[str]


class CsvChunks:
    """The rows of a CSV file; see `RowChunks`.

    A small file is read at once. A large one is read twice: first to find what all cells of a column can be
    read as, then for the values.

    Args:
        path: The path or URL as the user gave it, for messages.
        file: The file.
        form: How it is to be parsed.
        read: Reads the whole file.
    """

    def __init__(self, path: str, file: Path, form: CsvFormat, read: Callable[[], Table]) -> None:
        self._path = path
        self._file = file
        self._form = form
        self._read = read
        self._arrow: Any = require("pyarrow", "tabular")
        self._reader: Any = require("pyarrow.csv", "tabular")
        self._compute: Any = require("pyarrow.compute", "tabular")

    @property
    def names(self) -> Sequence[str]:
        """The names of the columns."""
        return self._form.names

    def tables(self, columns: Collection[str], rows: int) -> Iterator[Table]:
        """Yield the rows in chunks; see `RowChunks.tables`."""
        wanted = [name for name in self.names if name in columns]
        unread = [name for name in self.names if name not in columns]
        if self._file.stat().st_size <= WHOLE_BYTES:
            table = self._read()
            yield from _slices(
                {name: table.columns[name] for name in wanted}, len(table), rows, unread, self._path
            )
            return
        facts = {name: ColumnFacts() for name in wanted if name not in self._form.text}
        if facts:
            for block in self._blocks(list(facts)):
                for name, one in facts.items():
                    one.add(self._without_missing(block.column(name)))
        start = 0
        for chunk in _regrouped(self._arrow, self._blocks(wanted), rows):
            values = {
                name: facts[name].read(texts) if name in facts else strings(texts)
                for name in wanted
                for texts in [self._without_missing(chunk.column(name))]
            }
            yield Table(values, self._path, np.arange(start, start + len(chunk)), unread=unread)
            start += len(chunk)

    def cells(self, columns: Sequence[str], rows: int) -> Iterator[Mapping[str, Array]]:
        """Yield the cells of columns as they are written; see `RowChunks.cells`."""
        for chunk in _regrouped(self._arrow, self._blocks(columns), rows):
            yield {name: strings(chunk.column(name)) for name in columns}

    def _without_missing(self, texts: Any) -> Any:
        """Return an Arrow column of strings, null where a text means a missing value."""
        absent = self._compute.is_in(texts, value_set=self._arrow.array(self._form.missing))
        return self._compute.if_else(absent, self._arrow.scalar(None, self._arrow.string()), texts)

    def _blocks(self, columns: Sequence[str]) -> Iterator[Any]:
        """Yield blocks of rows as Arrow tables of strings.

        Raises:
            DataError: The file cannot be read as CSV.
        """
        form, reader = self._form, self._reader
        try:
            with reader.open_csv(
                str(self._file),
                read_options=reader.ReadOptions(
                    column_names=form.names,
                    skip_rows=form.header_lines,
                    block_size=_BLOCK_BYTES,
                    encoding=form.encoding,
                    use_threads=False,  # with threads, blocks are read ahead for each processor
                ),
                parse_options=reader.ParseOptions(delimiter=form.delimiter, newlines_in_values=True),
                convert_options=reader.ConvertOptions(
                    column_types=dict.fromkeys(columns, self._arrow.string()),
                    include_columns=list(columns),
                    strings_can_be_null=False,
                ),
            ) as stream:
                for batch in stream:
                    yield self._arrow.Table.from_batches([batch])
        except (self._arrow.ArrowException, OSError) as error:
            raise DataError(f"{self._path} cannot be read as CSV: {str(error).splitlines()[0]}") from error


class ParquetChunks:
    """The rows of a Parquet file; see `RowChunks`.

    Args:
        path: The path or URL as the user gave it, for messages.
        file: The file.
        convert: Returns the values of an Arrow column, given its name.
    """

    def __init__(self, path: str, file: Path, convert: Callable[[Any, str], Array]) -> None:
        self._path = path
        self._file = file
        self._convert = convert
        self._arrow: Any = require("pyarrow", "tabular")
        self._parquet: Any = require("pyarrow.parquet", "tabular")
        with self._opened() as source:
            self.names: Sequence[str] = source.schema_arrow.names

    def tables(self, columns: Collection[str], rows: int) -> Iterator[Table]:
        """Yield the rows in chunks; see `RowChunks.tables`."""
        wanted = [name for name in self.names if name in columns]
        unread = [name for name in self.names if name not in columns]
        gaps = self._with_gaps(wanted)
        start = 0
        for chunk in _regrouped(self._arrow, self._blocks(wanted, rows), rows):
            values = {name: self._convert(chunk.column(name), name) for name in wanted}
            values = {name: _with_room(one) if name in gaps else one for name, one in values.items()}
            yield Table(values, self._path, np.arange(start, start + len(chunk)), unread=unread)
            start += len(chunk)

    def cells(self, columns: Sequence[str], rows: int) -> None:
        """Return nothing: the file has types."""

    def _opened(self) -> Any:
        try:
            # Without a buffer, a column of a row group is read at once.
            return self._parquet.ParquetFile(str(self._file), buffer_size=1 << 20)
        except (self._arrow.ArrowException, OSError) as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: Exception) -> DataError:
        line = str(error).splitlines()[0]
        return DataError(f"{self._path} cannot be read as Parquet (is it complete?): {line}")

    def _with_gaps(self, columns: Sequence[str]) -> set[str]:
        """Return the columns of whole numbers and booleans in which a value is missing somewhere."""
        types = self._arrow.types
        with self._opened() as source:
            kinds = {name: source.schema_arrow.field(name).type for name in columns}
        names = [name for name, kind in kinds.items() if types.is_integer(kind) or types.is_boolean(kind)]
        gaps: set[str] = set()
        for block in self._blocks(names, 1 << 20) if names else ():
            gaps |= {name for name in names if block.column(name).null_count}
        return gaps

    def _blocks(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        try:
            with self._opened() as source:
                for batch in source.iter_batches(rows, columns=list(columns), use_threads=False):
                    yield self._arrow.Table.from_batches([batch])
        except (self._arrow.ArrowException, OSError) as error:
            raise self._unreadable(error) from error


class TableChunks:
    """The rows of a table that is in memory; see `RowChunks`."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def names(self) -> Sequence[str]:
        """The names of the columns."""
        return list(self._table.columns)

    def tables(self, columns: Collection[str], rows: int) -> Iterator[Table]:
        """Yield the rows in chunks; see `RowChunks.tables`."""
        wanted = {name: values for name, values in self._table.columns.items() if name in columns}
        unread = [name for name in self.names if name not in columns]
        yield from _slices(wanted, len(self._table), rows, unread, self._table.source)

    def cells(self, columns: Sequence[str], rows: int) -> None:
        """Return nothing: the arrays have types."""


def _with_room(values: Array) -> Array:
    """Return values in a dtype that can hold missing ones."""
    return values.astype(np.float64) if kind_of(values) in ("number", "boolean") else values


def _slices(
    columns: Mapping[str, Array], count: int, rows: int, unread: Sequence[str], source: str
) -> Iterator[Table]:
    for start in range(0, count, rows):
        stop = min(start + rows, count)
        part = {name: values[start:stop] for name, values in columns.items()}
        yield Table(part, source, np.arange(start, stop), unread=unread)


def _regrouped(arrow: Any, blocks: Iterable[Any], rows: int) -> Iterator[Any]:
    """Yield Arrow tables of `rows` rows, but for the last one, from those of any number of rows."""
    waiting: list[Any] = []
    count = 0
    for block in blocks:
        waiting.append(block)
        count += len(block)
        if count < rows:
            continue
        table = arrow.concat_tables(waiting)
        full = count - count % rows
        for start in range(0, full, rows):
            yield table.slice(start, rows)
        waiting, count = [table.slice(full)], count - full
    if count:
        yield arrow.concat_tables(waiting)
