"""CSV files."""

from __future__ import annotations

import codecs
import csv
import io
import re
import warnings
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel, Field

from trainyard.config.fields import Section
from trainyard.config.schema import DataConfig
from trainyard.datasets.base import DataBundle
from trainyard.datasets.rows.files import read_bytes
from trainyard.datasets.rows.table import Table, as_table, iso_times, kind_of, listed, missing
from trainyard.datasets.rows.tabular import load_files
from trainyard.errors import DataError
from trainyard.require import require
from trainyard.types import Array

MISSING = ("", "NA", "N/A", "#N/A", "NaN", "nan", "null", "NULL")
_SAMPLE = 1000  # cells that must look like dates before the whole column is parsed
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
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
    text: list[str] = Field(
        [], description="columns to read as text (categories), though they look like numbers or dates"
    )


class CsvDataset:
    """CSV files: one file to split, or one file per split. The first line names the columns."""

    names: ClassVar[Sequence[str]] = ("csv",)
    Params: ClassVar[type[BaseModel]] = CsvParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, CsvParams)
        self._config = config
        self._params = params
        self._pandas: Any = require("pandas", "tabular")

    def load(self) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        return load_files(self._config, self.read)

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
        content = self._decoded(path)
        header = self._header(path, content)
        if unknown := [name for name in self._params.text if name not in header]:
            raise DataError(
                f"{path}: data.params.text: there is no column {listed(map(repr, unknown))}; there are: "
                f"{listed(header)}"
            )
        as_text = {*self._params.text, *text}
        frame = self._parsed(path, content, header, as_text)
        lines = content.count("\n") + (not content.endswith("\n"))
        table = Table(as_table(frame, path).columns, path, first_line=2 if lines == len(frame) + 1 else None)
        if missing(table.column(header[-1])).any():  # rows that are too short lack it
            self._refuse_ragged_rows(path, content, len(header))
        columns = {
            name: values if name in as_text else _dates(values) for name, values in table.columns.items()
        }
        guessed = frozenset(
            name for name, values in columns.items() if kind_of(values) == "text" and name not in as_text
        )
        return Table(columns, path, first_line=table.first_line, guessed=guessed)

    def _decoded(self, path: str) -> str:
        raw = read_bytes(path)
        for magic, what in _FOREIGN.items():
            if raw.startswith(magic):
                raise DataError(f"{path} {what}")
        encoding = (
            "utf-8-sig"
            if self._params.encoding.lower().replace("_", "-") in ("utf-8", "utf8")
            else self._params.encoding
        )
        try:
            content = raw.decode(encoding)
        except LookupError:
            raise DataError(
                f"data.params.encoding: there is no encoding {encoding!r}; for example, give utf-8, latin-1 "
                "or cp1252"
            ) from None
        except UnicodeError as error:
            line = raw.count(b"\n", 0, error.start) + 1 if isinstance(error, UnicodeDecodeError) else 1
            likely = (
                "utf-16" if raw[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "latin-1 (or cp1252)"
            )
            raise DataError(
                f"{path}: line {line} is not {self._params.encoding}; save the file as UTF-8, or give its "
                f"encoding as data.params.encoding: {likely}; for `trainyard init`, with --encoding"
            ) from None
        if "\0" in content:
            raise DataError(
                f"{path} holds zero bytes: it is not a text file, or not in {self._params.encoding}"
            )
        return content if "\n" in content else content.replace("\r", "\n")

    def _header(self, path: str, content: str) -> list[str]:
        if not content.strip():
            raise DataError(f"{path} is empty; its first line must name the columns")
        try:
            names = next(row for row in self._cells(content) if row)
        except csv.Error as error:
            raise DataError(f"{path}: the first line cannot be read as CSV: {error}") from error
        if twice := [name for name, count in Counter(names).items() if count > 1 and name]:
            raise DataError(
                f"{path}: the first line names column {listed(map(repr, twice))} twice; each name must be "
                "unique"
            )
        others = [other for other in ";\t|," if other != self._params.delimiter and other in names[0]]
        if len(names) == 1 and others:
            raise DataError(
                f"{path}: with the delimiter {self._params.delimiter!r} there is only one column, "
                f"{names[0]!r}; try data.params.delimiter: {others[0]!r}"
            )
        return [name or f"column {i + 1}" for i, name in enumerate(names)]

    def _cells(self, content: str) -> Any:
        return csv.reader(_lines(content), delimiter=self._params.delimiter)

    def _parsed(self, path: str, content: str, header: list[str], as_text: Collection[str]) -> Any:
        pandas = self._pandas
        try:
            with warnings.catch_warnings():
                # Rows that are longer than the header are an error.
                warnings.simplefilter("error", pandas.errors.ParserWarning)
                return pandas.read_csv(
                    io.StringIO(content),
                    sep=self._params.delimiter,
                    header=0,
                    names=header,
                    index_col=False,
                    dtype={name: str for name in header if name in as_text},
                    keep_default_na=False,
                    na_values=[*MISSING, *self._params.missing],
                    float_precision="round_trip",
                    low_memory=False,
                )
        except (pandas.errors.ParserError, pandas.errors.ParserWarning) as error:
            if opened := re.search(r"EOF inside string starting at row (\d+)", str(error)):
                raise DataError(f"{path}: row {opened[1]} opens a quote that is never closed") from error
            self._refuse_ragged_rows(path, content, len(header))
            raise DataError(f"{path} cannot be read as CSV: {error}") from error

    def _refuse_ragged_rows(self, path: str, content: str, cells: int) -> None:
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


def _lines(content: str) -> Iterator[str]:
    """Yield the lines; mostly, only the first one is needed."""
    start = 0
    while start < len(content):
        stop = content.find("\n", start) + 1 or len(content)
        yield content[start:stop]
        start = stop


def _dates(values: Array) -> Array:
    """Return a column of text as times if all of it is dates, else unchanged."""
    if kind_of(values) != "text":
        return values
    present = ~missing(values)
    if not all(map(_DATE.match, values[present][:_SAMPLE])):
        return values
    times = iso_times(values)
    return values if (missing(times) & present).any() else times
