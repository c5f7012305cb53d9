"""CSV files."""

from __future__ import annotations

import codecs
import csv
import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.files import existing_file, paths_by_split, read_bytes
from trainwright.datasets.tables.arrow import SAMPLE, strings
from trainwright.datasets.tables.cells import has_codes, typed_cells
from trainwright.datasets.tables.chunks import CsvChunks, CsvFormat
from trainwright.datasets.tables.encodings import MARKS, UTF8, guess, guess_of_file
from trainwright.datasets.tables.table import Table, kind_of, listed, missing, unique_names
from trainwright.errors import DataError
from trainwright.require import require
from trainwright.types import Array

if TYPE_CHECKING:
    from trainwright.datasets.base import DataBundle, LoadRequest

log = logging.getLogger("trainwright")
MISSING = ("", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL")
_SAMPLE_BYTES = 8 << 20
_HEAD_BYTES = 1 << 20  # which hold the names of the columns
_FOREIGN = {
    b"\x1f\x8b": "is a gzip file; unpack it first",
    b"PK\x03\x04": "is a zip or Excel file; save it as CSV first",
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
    text: Collection[str]


class CsvDataset:
    """CSV files: one file to split, or one file per split. The first line names the columns."""

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

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        from trainwright.datasets.tables.tabular import load_files  # late: a config is checked without it

        return load_files(self._config, self.read, request.form)

    def sources(self) -> list[str]:
        """Return the files that are read; see `KnownSources`."""
        return [*paths_by_split(self._config).values()]

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
        return self._table(path, self._content(path, read_bytes(path)), text)

    def chunks(self, path: str, text: Collection[str] = ()) -> CsvChunks:
        """Return the rows of one file, to be read chunk by chunk; see `read`.

        Raises:
            DataError: The file is not CSV.
        """
        file, params = existing_file(path, mapped=True), self._params
        found = guess_of_file(file) if params.encoding.lower() in UTF8 else None
        encoding = found.encoding if found else params.encoding
        if found:
            self._remarks.append(found.remark(path))
        with file.open("rb") as stream:
            head = self._content(path, _whole_characters(stream.read(_HEAD_BYTES), encoding), encoding)
        names, lines = self._header(path, head)
        for remark in self._taken_remarks():
            log.warning("%s", remark)
        form = CsvFormat(
            names,
            lines,
            params.delimiter,
            encoding,
            self._missing,
            {*params.text, *text} & set(names),
        )
        return CsvChunks(path, file, form, lambda: self.read(path, text))

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
        with existing_file(path).open("rb") as file:
            start = file.read(_SAMPLE_BYTES)
        whole = len(start) < _SAMPLE_BYTES
        if self._params.encoding.lower().startswith(("utf-16", "utf-32")) or start.startswith(MARKS):
            whole, start = True, read_bytes(path)
        table = self._table(path, self._content(path, start if whole else start[: start.rfind(b"\n") + 1]))
        return table.take(np.arange(min(len(table), SAMPLE)))

    def _table(self, path: str, content: bytes, text: Collection[str] = ()) -> Table:
        header, lines_of_header = self._header(path, content)
        if unknown := [name for name in self._params.text if name not in header]:
            raise DataError(
                f"{path}: data.params.text: there is no column {listed(map(repr, unknown))}; there are: "
                f"{listed(header)}"
            )
        declared = {
            name for name, column in self._config.columns.items() if column.type in ("category", "text")
        }
        as_text = {*self._params.text, *text, *declared} & set(header)
        names = _Names(header, lines_of_header, as_text)
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

    def _header(self, path: str, content: bytes) -> tuple[list[str], int]:
        """Return the names of the columns, and the number of lines to their end.

        Raises:
            DataError: They are missing, or not unique.
        """
        if not content.strip():
            raise DataError(f"{path} is empty; its first line must name the columns")
        try:
            reader = self._cells(content)
            names = next(row for row in reader if row)
        except csv.Error as error:
            raise DataError(
                f"{path}: the first line cannot be read as CSV: {error}; is one of its quotes never closed?"
            ) from error
        others = [other for other in ";\t|," if other != self._params.delimiter and other in names[0]]
        if len(names) == 1 and others:
            raise DataError(
                f"{path}: with the delimiter {self._params.delimiter!r} there is only one column, "
                f"{names[0]!r}; try data.params.delimiter: {others[0]!r}"
            )
        unique, remark = unique_names([name or f"column {i + 1}" for i, name in enumerate(names)])
        self._remarks += [f"{path}: {remark}"] if remark else []
        return unique, reader.line_num

    def _cells(self, content: bytes) -> Any:
        return csv.reader(_lines(content), delimiter=self._params.delimiter)

    def _parsed(self, path: str, content: bytes, names: _Names) -> tuple[dict[str, Array], int]:
        """Return the columns, numbers where all cells are numbers and text otherwise, and the number of rows.

        Raises:
            DataError: Rows have more or fewer cells than the header, or a quote is never closed.
        """
        if content.count(b'"') % 2:
            self._refuse_open_quote(path, content)
        columns = self._arrow_columns(path, content, names)
        types = self._arrow.types
        others = [
            name
            for name, column in columns.items()
            if not (types.is_integer(column.type) or types.is_floating(column.type))
            and not (types.is_string(column.type) or types.is_null(column.type))
        ]
        whole = [name for name, column in columns.items() if types.is_integer(column.type)]
        if whole and self._has_codes(content):
            others += whole
        if others:  # dates, times of day, and codes such as 01234 are to be read as they are written
            again = self._arrow_columns(path, content, names._replace(text=others), others)
            columns |= {
                name: _unless_codes(texts, columns[name]) if name in whole else texts
                for name, texts in again.items()
            }
        rows = len(next(iter(columns.values())))
        return {name: self._array(column) for name, column in columns.items()}, rows

    def _has_codes(self, content: bytes) -> bool:
        """Return whether a cell of several digits may begin with a zero."""
        delimiter = re.escape(self._params.delimiter.encode())
        return re.search(rb"[\n" + delimiter + rb']"?0[0-9]', content) is not None

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
                    delimiter=self._params.delimiter, newlines_in_values=b'"' in content
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
            self._refuse_ragged_rows(path, content, len(names.all))
            raise DataError(f"{path} cannot be read as CSV: {str(error).splitlines()[0]}") from error
        return {name: table.column(name) for name in table.column_names}

    def _array(self, column: Any) -> Array:
        types = self._arrow.types
        if types.is_null(column.type):
            return np.full(len(column), np.nan)
        if not types.is_string(column.type):
            return np.asarray(column.to_numpy(zero_copy_only=False))
        return strings(column)

    def _refuse_open_quote(self, path: str, content: bytes) -> None:
        rows = csv.reader(_lines(content), delimiter=self._params.delimiter, strict=True)
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

    def _refuse_ragged_rows(self, path: str, content: bytes, cells: int) -> None:
        reader = self._cells(content)
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
