"""Read files of rows chunk by chunk: files for prediction may be larger than memory."""

from __future__ import annotations

import csv
import io
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from trainwright.config.file_types import COMPRESSIONS
from trainwright.datasets.samples.compression import compression_of, unpacked
from trainwright.datasets.tables.arrow import strings
from trainwright.datasets.tables.cells import ColumnFacts
from trainwright.datasets.tables.encodings import UTF8
from trainwright.datasets.tables.sources import TableFile
from trainwright.datasets.tables.table import Table, kind_of
from trainwright.errors import DataError
from trainwright.require import require
from trainwright.types import Array

T = TypeVar("T")
ROW_ERROR = "row error of trainwright"  # a column of what is wrong with rows that cannot be parsed
WHOLE_BYTES = 16 << 20  # a CSV file of at most this size is read at once
# Of a CSV file that are parsed together: a row must fit into them, and Arrow reads 32 such blocks ahead.
_BLOCK_BYTES = 2 << 20
_PACKED = 10  # times, at most, that most texts are larger than what they are packed into
_MANY = 16  # files
_WHOLE = re.compile(r"0|-?[1-9][0-9]{0,17}")


def errors_in(table: Table) -> dict[int, str]:
    """Return what is wrong with rows of a chunk that could not be parsed, by position."""
    texts = table.columns.get(ROW_ERROR)
    return {} if texts is None else {i: text for i, text in enumerate(texts.tolist()) if text is not None}


def without_errors(table: Table) -> Table:
    """Return a chunk without what is wrong with its rows."""
    if ROW_ERROR not in table.columns:
        return table
    return replace(table, columns={name: one for name, one in table.columns.items() if name != ROW_ERROR})


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


class CsvPart(NamedTuple):
    """A file of a table in CSV files, and its format."""

    source: TableFile
    form: CsvFormat

    @property
    def columns(self) -> Sequence[str]:
        """The names of the columns, with those of its folders."""
        return [*self.form.names, *self.source.partition]

    @property
    def is_small(self) -> bool:
        """True if it can be read at once."""
        packed = compression_of(self.source.file) is not None
        return self.source.file.stat().st_size * (_PACKED if packed else 1) <= WHOLE_BYTES


class CsvChunks:
    """The rows of one or several CSV files; see `RowChunks`.

    A small file is read at once. A large one is read twice: first to find what all cells of a column can be
    read as, then for the values.

    Args:
        path: The path or URL as the user gave it, for messages.
        parts: The files, and how they are to be parsed.
        read: Reads all of them.
    """

    def __init__(self, path: str, parts: Sequence[CsvPart], read: Callable[[], Table]) -> None:
        self._path = path
        self._parts = parts
        self._form = parts[0].form
        self._read = read
        self._mends = False  # keeps rows of other numbers of cells
        self._mended: tempfile.TemporaryDirectory[str] | None = None
        self._known: dict[str, ColumnFacts] = {}
        self._arrow: Any = require("pyarrow", "tabular")
        self._reader: Any = require("pyarrow.csv", "tabular")
        self._compute: Any = require("pyarrow.compute", "tabular")

    @property
    def names(self) -> Sequence[str]:
        """The names of the columns."""
        return [name for name in self._parts[0].columns if name != ROW_ERROR]

    def mend(self) -> None:
        """Keep rows with more or fewer cells than the header, and say so in a column `ROW_ERROR`.

        Without that they are an error. A file with such rows is copied, row by row.
        """
        self._mends = True

    def tables(self, columns: Collection[str], rows: int) -> Iterator[Table]:
        """Yield the rows in chunks; see `RowChunks.tables`."""
        wanted = [name for name in self.names if name in columns]
        unread = [name for name in self.names if name not in columns]
        if self._mended is None and len(self._parts) < _MANY and all(part.is_small for part in self._parts):
            table = self._unless_ragged(self._read)
            if table is not None:
                own = {name: table.columns[name] for name in wanted}
                yield from _slices(own, len(table), rows, unread, self._path)
                return
        facts = self._unless_ragged(lambda: self._facts(wanted))
        if facts is None:
            facts = self._facts(wanted)
        wanted += [ROW_ERROR] if self._mended is not None else []
        start = 0
        for chunk in _regrouped(self._arrow, self._blocks(wanted), rows):
            values = {
                name: facts[name].read(texts) if name in facts else strings(texts)
                for name in wanted
                for texts in [self._without_missing(chunk.column(name))]
            }
            yield Table(values, self._path, np.arange(start, start + len(chunk)), unread=unread)
            start += len(chunk)

    def _facts(self, wanted: Sequence[str]) -> dict[str, ColumnFacts]:
        """Return what all cells of columns can be read as; of those that are text, nothing."""
        asked = [name for name in wanted if name not in self._form.text]
        facts = {name: ColumnFacts() for name in asked if name not in self._known}
        read = list(facts) if facts or self._known or not self._mends else self.names[:1]
        for block in self._blocks(read) if read else ():
            for name, one in facts.items():
                one.add(self._without_missing(block.column(name)))
        self._known |= facts
        return {name: self._known[name] for name in asked}

    def _unless_ragged(self, read: Callable[[], T]) -> T | None:
        """Return what a function reads; None if it cannot, and the files have been copied and mended.

        Raises:
            DataError: The files cannot be read, or are not to be mended.
        """
        try:
            return read()
        except DataError as error:
            if not self._mends or self._mended is not None:
                raise
            self._mended = tempfile.TemporaryDirectory(prefix="trainwright-rows-")
            folder = Path(self._mended.name)
            try:
                self._parts = [mended(part, folder / f"{i}.csv") for i, part in enumerate(self._parts)]
            except DataError:
                raise error from None
            self._form = self._parts[0].form
            self._known = {}
            return None

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
        for part in self._parts:
            yield from self._blocks_of(part, columns)

    def _blocks_of(self, part: CsvPart, columns: Sequence[str]) -> Iterator[Any]:
        form, reader, source = part.form, self._reader, part.source
        own = [name for name in columns if name not in source.partition]
        try:
            with (
                _for_arrow(source) as content,
                reader.open_csv(
                    content,
                    read_options=reader.ReadOptions(
                        column_names=form.names,
                        skip_rows=form.header_lines,
                        block_size=_BLOCK_BYTES,
                        encoding=form.encoding,
                        use_threads=False,  # with threads, blocks are read ahead for each processor
                    ),
                    parse_options=reader.ParseOptions(delimiter=form.delimiter, newlines_in_values=True),
                    convert_options=reader.ConvertOptions(
                        column_types=dict.fromkeys(own, self._arrow.string()),
                        include_columns=own or form.names[:1],
                        strings_can_be_null=False,
                    ),
                ) as stream,
            ):
                for batch in stream:
                    texts = {name: batch.column(name) for name in own}
                    for name in set(columns) - set(own):
                        texts[name] = self._arrow.repeat(source.partition[name], len(batch))
                    yield self._arrow.table({name: texts[name] for name in columns})
        except (self._arrow.ArrowException, OSError) as error:
            if "Empty CSV" in str(error) and len(self._parts) > 1:
                return  # it has a header alone
            raise DataError(f"{source.name} cannot be read as CSV: {str(error).splitlines()[0]}") from error


def _for_arrow(source: TableFile) -> AbstractContextManager[Any]:
    """Return what Arrow reads a file from: its path, unless it is to be unpacked."""
    is_plain = compression_of(source.file) is None and source.file.suffix.lower() not in COMPRESSIONS
    return nullcontext(str(source.file)) if is_plain else unpacked(source.name, source.file)


def mended(part: CsvPart, copy: Path) -> CsvPart:
    """Copy a CSV file, with as many cells in each row as the header has, and what was wrong in one more.

    Raises:
        DataError: The file cannot be read as CSV, or in its encoding.
    """
    form, source, cells = part.form, part.source, len(part.form.names)
    try:
        with unpacked(source.name, source.file) as raw, copy.open("w", encoding="utf-8", newline="") as out:
            encoding = "utf-8-sig" if form.encoding.lower() in UTF8 else form.encoding
            text = io.TextIOWrapper(raw, encoding=encoding, newline="")
            reader = csv.reader(text, delimiter=form.delimiter, strict=True)
            writer = csv.writer(out, delimiter=form.delimiter, lineterminator="\n")
            for row in reader:
                if row and reader.line_num > form.header_lines:
                    wrong = "" if len(row) == cells else f"{len(row)} cells, where the header has {cells}"
                    writer.writerow([*row[:cells], *[""] * (cells - len(row)), wrong])
            text.detach()
    except (csv.Error, UnicodeError) as error:
        raise DataError(f"{source.name} cannot be read as CSV: {error}") from error
    whole = replace(
        form, names=[*form.names, ROW_ERROR], header_lines=0, encoding="utf-8", text={*form.text, ROW_ERROR}
    )
    return CsvPart(source._replace(file=copy), whole)


class ParquetChunks:
    """The rows of a Parquet file; see `RowChunks`.

    Args:
        path: The path or URL as the user gave it, for messages.
        files: The files.
        convert: Returns the values of an Arrow column, given its name.
    """

    def __init__(self, path: str, files: Sequence[TableFile], convert: Callable[[Any, str], Array]) -> None:
        self._path = path
        self._files = files
        self._convert = convert
        self._arrow: Any = require("pyarrow", "tabular")
        self._parquet: Any = require("pyarrow.parquet", "tabular")
        schemas = []
        for one in files:
            with self._opened(one) as source:
                schemas.append(source.schema_arrow)
        self._schema = common_schema(self._arrow, files, schemas)
        self.names: Sequence[str] = self._schema.names
        self._nested: Collection[str] = ()  # columns whose cells are given as texts

    @property
    def types(self) -> Mapping[str, str]:
        """The names of the columns' types, which do not tell how strings are stored."""
        kinds = {field.name: field.type for field in self._schema}
        plain = {
            name: kind.value_type if self._arrow.types.is_dictionary(kind) else kind
            for name, kind in kinds.items()
        }
        return {name: str(kind).removeprefix("large_") for name, kind in plain.items()}

    def keep_nested(self) -> None:
        """Give lists and structures as texts; without that, they are an error."""
        is_nested = self._arrow.types.is_nested
        self._nested = {field.name for field in self._schema if is_nested(field.type)}

    def tables(self, columns: Collection[str], rows: int) -> Iterator[Table]:
        """Yield the rows in chunks; see `RowChunks.tables`."""
        wanted = [name for name in self.names if name in columns]
        unread = [name for name in self.names if name not in columns]
        gaps = self._with_gaps(wanted)
        start = 0
        for chunk in _regrouped(self._arrow, self._blocks(wanted, rows), rows):
            values = {name: self._values(chunk.column(name), name) for name in wanted}
            values = {name: _with_room(one) if name in gaps else one for name, one in values.items()}
            yield Table(values, self._path, np.arange(start, start + len(chunk)), unread=unread)
            start += len(chunk)

    def _values(self, column: Any, name: str) -> Array:
        if name not in self._nested:
            return self._convert(column, name)
        texts = np.empty(len(column), dtype=object)
        texts[:] = [None if cell is None else repr(cell) for cell in column.to_pylist()]
        return texts

    def cells(self, columns: Sequence[str], rows: int) -> None:
        """Return nothing: the file has types."""

    def _opened(self, one: TableFile) -> Any:
        try:
            # Without a buffer, a column of a row group is read at once.
            return self._parquet.ParquetFile(str(one.file), buffer_size=1 << 20)
        except (self._arrow.ArrowException, OSError) as error:
            raise self._unreadable(one, error) from error

    def _unreadable(self, one: TableFile, error: Exception) -> DataError:
        line = str(error).splitlines()[0]
        return DataError(f"{one.name} cannot be read as Parquet (is it complete?): {line}")

    def _with_gaps(self, columns: Sequence[str]) -> set[str]:
        """Return the columns of whole numbers and booleans in which a value is missing somewhere."""
        types = self._arrow.types
        kinds = {name: self._schema.field(name).type for name in columns}
        names = [name for name, kind in kinds.items() if types.is_integer(kind) or types.is_boolean(kind)]
        gaps: set[str] = set()
        for block in self._blocks(names, 1 << 20) if names else ():
            gaps |= {name for name in names if block.column(name).null_count}
        return gaps

    def _blocks(self, columns: Sequence[str], rows: int) -> Iterator[Any]:
        schema = self._arrow.schema([self._schema.field(name) for name in columns])
        for one in self._files:
            own = [name for name in columns if name not in one.partition]
            try:
                with self._opened(one) as source:
                    for batch in source.iter_batches(rows, columns=own, use_threads=False):
                        table = self._arrow.Table.from_batches([batch])
                        yield in_schema(self._arrow, table, one, schema)
            except (self._arrow.ArrowException, OSError) as error:
                raise self._unreadable(one, error) from error


def common_schema(arrow: Any, files: Sequence[TableFile], schemas: Sequence[Any]) -> Any:
    """Return the schema of several files, in which each column has a type that holds the values of all.

    The columns that folders name come last: whole numbers where all are, else texts.

    Raises:
        DataError: A column is missing in one of the files, or has types that do not go together.
    """
    if len(files) == 1 and not files[0].partition:
        return schemas[0]
    for one, schema in zip(files, schemas, strict=True):
        if odd := sorted(set(schemas[0].names) ^ set(schema.names)):
            here = "has" if odd[0] in schema.names else "lacks"
            raise DataError(
                f"{one.name} {here} the column {odd[0]!r}, unlike {files[0].name}; give files with the same "
                "columns"
            )
    try:
        common = arrow.unify_schemas(
            [schema.remove_metadata() for schema in schemas], promote_options="permissive"
        )
    except arrow.ArrowException as error:
        raise DataError(f"{files[0].name} and others: {str(error).splitlines()[0]}") from error
    for key in files[0].partition:
        is_whole = all(_WHOLE.fullmatch(one.partition[key]) for one in files)
        if key not in common.names:
            common = common.append(arrow.field(key, arrow.int64() if is_whole else arrow.string()))
    return common


def in_schema(arrow: Any, table: Any, one: TableFile, schema: Any) -> Any:
    """Return rows of a file in the schema of all files, with the columns that its folders name."""
    columns = []
    for field in schema:
        if field.name in table.column_names:
            column = table.column(field.name)
        else:
            text = one.partition[field.name]
            column = arrow.nulls(len(table)) if text == "" else arrow.repeat(text, len(table))
        columns.append(column if column.type == field.type else column.cast(field.type))
    return arrow.table(columns, schema=schema)


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
