"""CSV files."""

from __future__ import annotations

import codecs
import csv
import io
import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.config.file_types import ending_of
from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.compression import read_unpacked, unpacked
from trainwright.datasets.samples.files import paths_by_split
from trainwright.datasets.tables.arrow import SAMPLE, strings
from trainwright.datasets.tables.cells import MISSING, has_codes, typed_cells
from trainwright.datasets.tables.chunks import CsvChunks, CsvFormat, CsvPart
from trainwright.datasets.tables.encodings import MARKS, UTF8, find_delimiter, guess
from trainwright.datasets.tables.sources import TableFile, guess_of_file, table_files
from trainwright.datasets.tables.table import Table, kind_of, missing, unique_names
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.require import require
from trainwright.types import Array

if TYPE_CHECKING:
    from trainwright.datasets.base import DataBundle, LoadRequest

log = logging.getLogger("trainwright")
_SAMPLE_BYTES = 8 << 20
_HEAD_BYTES = 1 << 20  # which hold the names of the columns
_FOREIGN = {
    b"PK\x03\x04": "is a zip or Excel file; unpack it, or give data.type: excel",
    b"\xd0\xcf\x11\xe0": "is an old Excel file (.xls); save it as .xlsx or CSV first",
    b"PAR1": "is a Parquet file; give data.type: parquet",
}


class CsvParams(Section):
    """The format of the file."""

    delimiter: str = Field(",", min_length=1, max_length=1, description="the character between two cells")
    encoding: str = Field("utf-8", description="utf-8, latin-1, cp1252, utf-16 ...")
    missing: list[str] = Field(
        [],
        description=f"texts that mean a missing value, like empty cells and {', '.join(MISSING[1:])}",
    )
    keep_default_na: bool = Field(
        True,
        description="false: only empty cells and the texts under `missing` mean a missing value, so that NA "
        "may be a category",
    )
    text: list[str] = Field(
        [], description="columns to read as text (categories), though they look like numbers or dates"
    )


class _Names(NamedTuple):
    """The names of `all` columns, in the first `lines` of the file, and of those to read as text."""

    all: list[str]
    lines: int
    delimiter: str
    text: Collection[str] = ()


class CsvDataset:
    """CSV files: one file (or folder, or pattern) to split, or one per split.

    The first line names the columns. Files may be compressed. Those of a folder are read one after the other,
    as if they were one file.
    """

    names: ClassVar[Sequence[str]] = ("csv",)
    Params: ClassVar[type[BaseModel]] = CsvParams
    has_tokens: ClassVar[bool] = False

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, CsvParams)
        self._config = config
        self._params = params
        self._arrow: Any = require("pyarrow", "tabular")
        self._reader: Any = require("pyarrow.csv", "tabular")
        self._remarks: list[str] = []  # what a user should know of the file that is read
        self.finds: Collection[str] = ()  # options that need not fit the file; see `read_table`

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        from trainwright.datasets.tables.tabular import load_files  # late: a config is checked without it

        return load_files(self._config, self.read, request)

    def sources(self) -> list[str]:
        """Return the files that are read; see `KnownSources`."""
        return [one.name for path in paths_by_split(self._config).values() for one in _files(path)]

    def read(self, path: str, text: Collection[str] = ()) -> Table:
        """Return all rows of one file.

        Numbers are read to the nearest float64. Columns whose texts are all dates (2026-01-31, with or
        without a time of day) become times.

        Args:
            path: The file.
            text: Columns to read as text, in addition to those in the options.

        Raises:
            DataError: The file cannot be read as CSV; names the line.
        """
        return self._table(path, self._whole(path), text)

    def chunks(self, path: str, text: Collection[str] = ()) -> CsvChunks:
        """Return the rows of one file, to be read chunk by chunk; see `read`.

        Raises:
            DataError: The file is not CSV.
        """
        parts = [CsvPart(one, self._form(one, text)) for one in self._with_content(path, mapped=True)]
        first = parts[0].columns
        for part in parts[1:]:
            _require_same_columns(first, part.columns, parts[0].source.name, part.source.name)
        for remark in self._taken_remarks():
            log.warning("%s", remark)
        return CsvChunks(path, parts, lambda: self.read(path, text))

    def _form(self, source: TableFile, text: Collection[str]) -> CsvFormat:
        """Return the format of a file, by its first lines."""
        path, params = source.name, self._params
        given = self._encoding(source) or params.encoding
        found = guess_of_file(path, source.file) if given.lower() in UTF8 else None
        encoding = found.encoding if found else given
        if found:
            self._remarks.append(found.remark(path))
        with unpacked(path, source.file) as stream:
            head = self._content(path, _whole_characters(stream.read(_HEAD_BYTES), encoding), encoding)
        names, lines, delimiter, _ = self._header(path, head)
        as_text = {*params.text, *text} & {*names, *source.partition}
        return CsvFormat(names, lines, delimiter, encoding, self._missing, as_text)

    def _encoding(self, source: TableFile) -> str | None:
        """Return UTF-8 if a file is in it, unlike the options say, and that may be so; else None."""
        given = self._params.encoding.lower()
        if "encoding" not in self.finds or given in UTF8 or given.startswith(("utf-16", "utf-32")):
            return None
        return "utf-8" if guess_of_file(source.name, source.file) is None else None

    def _with_content(self, path: str, *, mapped: bool = False) -> list[TableFile]:
        """Return the files of a path; of several, those that hold something."""
        files = _files(path, mapped=mapped)
        return [one for one in files if one.file.stat().st_size] or files[:1]

    def _whole(self, path: str) -> bytes:
        """Return all rows of the files of a path as one text in UTF-8, below one header."""
        files = self._with_content(path)
        contents = [
            self._content(one.name, read_unpacked(one.name, one.file), self._encoding(one)) for one in files
        ]
        if len(files) == 1 and not files[0].partition:
            return contents.pop()
        headers = [self._header(one.name, content) for one, content in zip(files, contents, strict=True)]
        columns = [*headers[0].all, *files[0].partition]
        pieces = []
        for i, (one, header) in enumerate(zip(files, headers, strict=True)):
            content, contents[i] = contents[i], b""
            own = [*header.all, *one.partition]
            _require_same_columns(columns, own, files[0].name, one.name)
            if one.partition or header[:3:2] != headers[0][:3:2]:
                pieces.append(self._rewritten(one, content, header, columns, headers[0].delimiter))
            else:
                pieces.append(content if not pieces else _without_lines(content, header.lines))
            if i == 0 and one.partition:
                pieces.insert(0, _line(columns, header.delimiter))
        return b"".join(piece if piece.endswith(b"\n") or not piece else piece + b"\n" for piece in pieces)

    def _rewritten(
        self, one: TableFile, content: bytes, header: _Names, columns: Sequence[str], delimiter: str
    ) -> bytes:
        """Return the rows of a file with its columns in another order, and those of its folders."""
        texts = self._arrow_columns(one.name, content, header._replace(text=header.all), nulls=[])
        rows = len(next(iter(texts.values())))
        values = {key: self._arrow.repeat(value, rows) for key, value in one.partition.items()}
        table = self._arrow.table({name: {**texts, **values}[name] for name in columns})
        stream = self._arrow.BufferOutputStream()
        options = self._reader.WriteOptions(include_header=False, delimiter=delimiter)
        self._reader.write_csv(table, stream, options)
        return bytes(stream.getvalue())

    def _taken_remarks(self) -> tuple[str, ...]:
        """Return what a user should know of the last file, and forget it."""
        remarks, self._remarks = tuple(dict.fromkeys(self._remarks)), []
        return remarks

    def sample(self) -> Table:
        """Return the first training rows.

        Raises:
            DataError: The file cannot be read as CSV.
        """
        path = paths_by_split(self._config)["train"]
        files = self._with_content(path)
        with unpacked(path, files[0].file) as file:
            start = file.read(_SAMPLE_BYTES)
        whole = len(start) < _SAMPLE_BYTES
        is_wide = self._params.encoding.lower().startswith(("utf-16", "utf-32")) or start.startswith(MARKS)
        if is_wide or len(files) > 1 or files[0].partition:
            content = self._whole(path)
        else:
            content = self._content(path, start if whole else start[: start.rfind(b"\n") + 1])
        table = self._table(path, content)
        return table.take(np.arange(min(len(table), SAMPLE)))

    def _table(self, path: str, content: bytes, text: Collection[str] = ()) -> Table:
        named = self._header(path, content)
        header = named.all
        if unknown := [name for name in self._params.text if name not in header]:
            raise DataError(
                f"{path}: data.params.text: there is no column {listed(map(repr, unknown))}; there are: "
                f"{listed(header)}"
            )
        declared = {
            name for name, column in self._config.columns.items() if column.type in ("category", "text")
        }
        as_text = {*self._params.text, *text, *declared} & set(header)
        names = named._replace(text=as_text)
        columns, rows = self._parsed(path, content, names)
        columns = {
            name: values if name in as_text else typed_cells(values) for name, values in columns.items()
        }
        guessed = {name for name, values in columns.items() if kind_of(values) == "text"} - as_text
        lines = content.count(b"\n") + (not content.endswith(b"\n"))
        return Table(
            columns,
            path,
            first_line=2 if lines == rows + 1 else None,
            guessed=frozenset(guessed),
            missing_words=self._missing_words(path, content, names, columns),
            remarks=self._taken_remarks(),
        )

    @property
    def _missing(self) -> list[str]:
        """The texts that mean a missing value."""
        return [*(MISSING if self._params.keep_default_na else MISSING[:1]), *self._params.missing]

    def _missing_words(
        self, path: str, content: bytes, names: _Names, columns: Mapping[str, Array]
    ) -> dict[str, Mapping[str, int]]:
        """Return the words of columns of text that were read as missing unasked, with their numbers."""
        words = [word for word in self._missing[1:] if word not in self._params.missing]
        texts = (name for name, values in columns.items() if kind_of(values) == "text")
        if not words or not (gaps := [name for name in texts if missing(columns[name]).any()]):
            return {}
        whole = self._arrow_columns(path, content, names._replace(text=gaps), gaps, nulls=MISSING[:1])
        compute, known = require("pyarrow.compute", "tabular"), self._arrow.array(words)
        found: dict[str, Mapping[str, int]] = {}
        for name, column in whole.items():
            counts = column.filter(compute.is_in(column, value_set=known)).value_counts()
            found[name] = {one["values"]: one["counts"] for one in counts.to_pylist()}
        return found

    def _content(self, path: str, raw: bytes, encoding: str | None = None) -> bytes:
        """Return the text in UTF-8, without a mark of the byte order.

        Args:
            path: The file, for messages.
            raw: What it holds.
            encoding: Its encoding; default: that of the options, or what the bytes tell.

        Raises:
            DataError: It is not text in the encoding of the options.
        """
        for magic, what in _FOREIGN.items():
            if raw.startswith(magic):
                raise DataError(f"{path} {what}")
        encoding = (encoding or self._params.encoding).lower().replace("_", "-")
        is_utf8 = encoding in UTF8
        try:
            decoded = raw.decode("utf-8" if is_utf8 else encoding)
        except LookupError:
            raise DataError(
                f"data.params.encoding: there is no encoding {self._params.encoding!r}; for example, "
                "give utf-8, latin-1 or cp1252"
            ) from None
        except UnicodeError as error:
            found = guess(raw) if is_utf8 else None
            if found is None:
                line = raw.count(b"\n", 0, error.start) + 1 if isinstance(error, UnicodeDecodeError) else 1
                raise DataError(
                    f"{path}: line {line} is not {encoding}; save the file as UTF-8, or give its encoding as "
                    "data.params.encoding: latin-1 (or cp1252, shift_jis ...); for `trainwright init`, with "
                    "--encoding"
                ) from None
            self._remarks.append(found.remark(path))
            decoded, is_utf8 = raw.decode(found.encoding), False
        content = raw.removeprefix(codecs.BOM_UTF8) if is_utf8 else decoded.encode()
        if b"\0" in content:
            raise DataError(
                f"{path} holds zero bytes: it is not a text file, or not in "
                f"{self._params.encoding}; give a text file, or its encoding as data.params.encoding"
            )
        return content if b"\n" in content else content.replace(b"\r", b"\n")

    def _header(self, path: str, content: bytes) -> _Names:
        """Return the names of the columns, the number of lines to their end, and the delimiter.

        Raises:
            DataError: They are missing, or not unique.
        """
        if not content.strip():
            raise DataError(f"{path} is empty; its first line must name the columns")
        delimiter = self._delimiter(path, content)
        try:
            reader = _cells(content, delimiter)
            names = next(row for row in reader if row)
        except csv.Error as error:
            raise DataError(
                f"{path}: the first line cannot be read as CSV: {error}; is one of its quotes never closed?"
            ) from error
        others = [other for other in ";\t|," if other != delimiter and other in names[0]]
        if len(names) == 1 and others:
            other = json.dumps(others[0])
            raise DataError(
                f"{path}: with the delimiter {delimiter!r} there is only one column, {names[0]!r}; try "
                f"data.params.delimiter: {other} (on the command line 'data.params.delimiter={other}')"
            )
        unique, remark = unique_names([name or f"column {i + 1}" for i, name in enumerate(names)])
        self._remarks += [f"{path}: {remark}"] if remark else []
        return _Names(unique, reader.line_num, delimiter)

    def _delimiter(self, path: str, content: bytes) -> str:
        """Return the delimiter of the options, or the one that is found; that of `.tsv` is a tab."""
        given = self._params.delimiter
        if given == "," and ending_of(path) == ".tsv":
            return "\t"
        return (find_delimiter(content, given) or given) if "delimiter" in self.finds else given

    def _parsed(self, path: str, content: bytes, names: _Names) -> tuple[dict[str, Array], int]:
        """Return the columns, numbers where all cells are numbers and text otherwise, and the number of rows.

        Raises:
            DataError: Rows have more or fewer cells than the header, or a quote is never closed.
        """
        if content.count(b'"') % 2:
            _refuse_open_quote(path, content, names.delimiter)
        columns = self._arrow_columns(path, content, names)
        types = self._arrow.types
        others = [
            name
            for name, column in columns.items()
            if not (types.is_integer(column.type) or types.is_floating(column.type))
            and not (types.is_string(column.type) or types.is_null(column.type))
        ]
        whole = [name for name, column in columns.items() if types.is_integer(column.type)]
        if whole and _has_codes(content, names.delimiter):
            others += whole
        if others:  # dates, times of day, and codes such as 01234 are to be read as they are written
            again = self._arrow_columns(path, content, names._replace(text=others), others)
            columns |= {
                name: _unless_codes(texts, columns[name]) if name in whole else texts
                for name, texts in again.items()
            }
        rows = len(next(iter(columns.values())))
        return {name: self._array(column) for name, column in columns.items()}, rows

    def _arrow_columns(
        self,
        path: str,
        content: bytes,
        names: _Names,
        only: Sequence[str] | None = None,
        nulls: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        arrow, reader = self._arrow, self._reader
        try:
            table = reader.read_csv(
                arrow.py_buffer(content),
                read_options=reader.ReadOptions(column_names=names.all, skip_rows=names.lines),
                parse_options=reader.ParseOptions(
                    delimiter=names.delimiter, newlines_in_values=b'"' in content
                ),
                convert_options=reader.ConvertOptions(
                    column_types={name: arrow.string() for name in names.text},
                    include_columns=only,
                    null_values=self._missing if nulls is None else nulls,
                    true_values=[],
                    false_values=[],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=True,
                ),
            )
        except arrow.ArrowException as error:
            _refuse_ragged_rows(path, content, len(names.all), names.delimiter)
            raise DataError(f"{path} cannot be read as CSV: {str(error).splitlines()[0]}") from error
        return {name: table.column(name) for name in table.column_names}

    def _array(self, column: Any) -> Array:
        types = self._arrow.types
        if types.is_null(column.type):
            return np.full(len(column), np.nan)
        if not types.is_string(column.type):
            return np.asarray(column.to_numpy(zero_copy_only=False))
        return strings(column)


def _refuse_open_quote(path: str, content: bytes, delimiter: str) -> None:
    rows = csv.reader(_lines(content), delimiter=delimiter, strict=True)
    count = 0
    try:
        for row in rows:
            count += bool(row)
    except csv.Error as error:
        if "end of data" in str(error):
            raise DataError(
                f"{path}: row {count} opens a quote that is never closed; close it, or double a "
                "quote that belongs to the text"
            ) from error


def _refuse_ragged_rows(path: str, content: bytes, cells: int, delimiter: str) -> None:
    reader = _cells(content, delimiter)
    try:
        for number, row in enumerate(row for row in reader if row):
            if len(row) != cells:
                raise DataError(
                    f"{path}: row {number} (line {reader.line_num} of the file) has {len(row)} cells, "
                    f"the header {cells}; is there a delimiter too many or too few, or a text that "
                    "needs quotes?"
                )
    except csv.Error as error:
        raise DataError(f"{path}: line {reader.line_num}: {error}") from error


def _files(path: str, *, mapped: bool = False) -> list[TableFile]:
    return table_files(path, "csv", mapped=mapped)


def _require_same_columns(columns: Sequence[str], others: Sequence[str], file: str, other: str) -> None:
    """Refuse a file with other columns than the first one.

    Raises:
        DataError: A column is missing in one of them.
    """
    if lacking := [name for name in columns if name not in others]:
        raise DataError(
            f"{other}: there is no column {lacking[0]!r}, which {file} has; give files with the same columns"
        )
    if more := [name for name in others if name not in columns]:
        raise DataError(f"{other}: the column {more[0]!r} is not in {file}; give files with the same columns")


def _without_lines(content: bytes, lines: int) -> bytes:
    """Return a text without its first lines."""
    start = 0
    for _ in range(lines):
        start = content.find(b"\n", start) + 1 or len(content)
    return content[start:]


def _line(cells: Sequence[str], delimiter: str) -> bytes:
    """Return a line of CSV."""
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter=delimiter, lineterminator="\n").writerow(cells)
    return stream.getvalue().encode()


def _cells(content: bytes, delimiter: str) -> Any:
    return csv.reader(_lines(content), delimiter=delimiter)


def _has_codes(content: bytes, delimiter: str) -> bool:
    """Return whether a cell of several digits may begin with a zero."""
    return re.search(rb"[\n" + re.escape(delimiter.encode()) + rb']"?0[0-9]', content) is not None


def _whole_characters(raw: bytes, encoding: str) -> bytes:
    """Return the start of a file without a character that is cut at its end."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(raw).encode(encoding)
    except (LookupError, UnicodeError):
        return raw  # `_content` says what is wrong


def _lines(content: bytes) -> Iterator[str]:
    """Yield the lines; mostly, only the first one is needed."""
    start = 0
    while start < len(content):
        stop = content.find(b"\n", start) + 1 or len(content)
        yield content[start:stop].decode()
        start = stop


def _unless_codes(texts: Any, numbers: Any) -> Any:
    """Return the numbers that a column holds, or its texts if they are codes such as 01234."""
    return texts if has_codes(texts) else numbers
