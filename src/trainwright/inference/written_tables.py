"""Files that tables of predictions are written to, by their endings; they need not fit into the memory."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from trainwright.config.file_types import FILE_TYPES, ending_of
from trainwright.errors import DataError, InputError
from trainwright.inference.whole_files import write_whole
from trainwright.require import require
from trainwright.types import Array

SUFFIXES = (".csv", ".csv.gz", ".parquet", ".jsonl", ".xlsx")
_FIRST_WITH_GAPS = 2.0**24  # from here on, float32 does not have all whole numbers
_MOST_IN_EXCEL = (1 << 20) - 1  # rows of a sheet, below the header


class Written(NamedTuple):
    """The table that was written: the number of its rows, and the names of its columns.

    `failed` is the number of rows without a prediction; `unusual` what their values have that no training
    row has, as `UnusualValues.to_json` returns it.
    """

    rows: int
    columns: Sequence[str]
    failed: int = 0
    unusual: Mapping[str, Any] = {}


def check_output(output: Path) -> None:
    """Check the ending of a file for a table.

    Raises:
        InputError: Tables are not written to such files.
    """
    if _kind(output) is None:
        raise InputError(f"{output}: the name must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")


def _kind(output: Path) -> str | None:
    kind = FILE_TYPES.get(ending_of(output.name))
    return kind if kind in _WRITERS and ending_of(output.name) not in (".tsv", ".xlsm") else None


def is_csv(output: Path) -> bool:
    """Return whether a file is one of CSV, compressed or not."""
    return _kind(output) == "csv"


def write_predictions(frames: Iterable[Any], output: Path) -> Written:
    """Write data frames, one below the other, as a file in the format of its ending.

    The file appears only once it is complete; an existing one is replaced.

    Raises:
        InputError: The file cannot be written, or has another ending.
    """
    check_output(output)
    write = _WRITERS[str(_kind(output))]
    written: list[Written] = []
    write_whole(output, lambda made: written.append(write(_unless_unreadable(frames), made)))
    return written[0]


def _unless_unreadable(frames: Iterable[Any]) -> Iterator[Any]:
    """Yield the frames; an error of the file that they are read from is not one of the file to write.

    Raises:
        DataError: A frame cannot be read.
    """
    try:
        yield from frames
    except OSError as error:
        raise DataError(f"the rows cannot be read: {error.strerror or error}") from error


def _write_csv(frames: Iterable[Any], path: Path) -> Written:
    return _write_text(frames, path, lambda frame, is_first: csv_text(frame, header=is_first))


def _write_jsonl(frames: Iterable[Any], path: Path) -> Written:
    return _write_text(frames, path, lambda frame, _: jsonl_text(frame))


def _write_text(frames: Iterable[Any], path: Path, text: Callable[[Any, bool], str]) -> Written:
    written = Written(0, ())
    with _packed(path) as stream:
        for number, frame in enumerate(frames):
            stream.write(text(frame, number == 0).encode())
            written = Written(written.rows + len(frame), list(frame.columns))
    return written


@contextlib.contextmanager
def _packed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing, compressed as its ending says; equal content gives equal files."""
    with contextlib.ExitStack() as stack:
        match path.suffix.lower():
            case ".gz":
                plain = stack.enter_context(path.open("wb"))
                made: Any = gzip.GzipFile("", "wb", fileobj=plain, mtime=0)
                yield stack.enter_context(made)
            case ".bz2":
                yield stack.enter_context(bz2.open(path, "wb"))
            case ".xz":
                yield stack.enter_context(lzma.open(path, "wb"))
            case ".zst":
                arrow: Any = require("pyarrow", "tabular")
                yield stack.enter_context(arrow.CompressedOutputStream(str(path), "zstd"))
            case _:
                yield stack.enter_context(path.open("wb"))


def csv_text(frame: Any, *, header: bool) -> str:
    """Return predictions as CSV.

    Large float32 are written as the whole numbers that they are: the fewest digits that tell such a number
    from its neighbours in float32 are those of another number.
    """
    frame = _with_cells(frame, _text_of)
    large = [
        name
        for name, dtype in frame.dtypes.items()
        if dtype == np.float32 and (frame[name].abs() >= _FIRST_WITH_GAPS).any()
    ]
    exact = frame.astype(dict.fromkeys(large, np.float64)) if large else frame
    text: str = exact.to_csv(index=False, header=header)
    return text


def _with_cells(frame: Any, convert: Callable[[Array], Any]) -> Any:
    """Return predictions whose arrays, in cells of columns, are converted."""
    held = [name for name in frame.columns if len(frame) and isinstance(frame[name].iloc[0], np.ndarray)]
    return frame.assign(**{name: [convert(cell) for cell in frame[name]] for name in held}) if held else frame


def _text_of(cell: Array) -> str:
    """Return an array in full, as JSON."""
    return json.dumps(cell.tolist())


def jsonl_text(frame: Any) -> str:
    """Return predictions as JSON Lines; a missing value is null, and float32 have their fewest digits."""
    names, columns = list(frame.columns), [_plain(frame[name]) for name in frame.columns]
    lines = (
        json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)
        for row in zip(*columns, strict=True)
    )
    return "".join(f"{line}\n" for line in lines)


def _plain(series: Any) -> list[Any]:
    """Return the values of a column as JSON and Excel hold them."""
    absent: Array = series.isna().to_numpy()
    if series.dtype == np.float32:
        values = [
            float(str(value)) if abs(value) < _FIRST_WITH_GAPS else float(value)
            for value in series.to_numpy()
        ]
    else:
        values = series.astype(object).tolist()
    return [
        None if is_absent or (isinstance(value, float) and not np.isfinite(value)) else _json(value)
        for value, is_absent in zip(values, absent, strict=True)
    ]


def _json(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return (
        value.item()
        if isinstance(value, np.generic)
        else value.tolist()
        if isinstance(value, np.ndarray)
        else value
    )


def _write_excel(frames: Iterable[Any], path: Path) -> Written:
    openpyxl: Any = require("openpyxl", "excel")
    written, book = Written(0, ()), openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("predictions")
    for number, frame in enumerate(frames):  # the first one may have no rows
        if number == 0:
            sheet.append([str(name) for name in frame.columns])
        written = Written(written.rows + len(frame), list(frame.columns))
        if written.rows > _MOST_IN_EXCEL:
            raise InputError(
                f"{path.name}: a sheet of Excel holds {_MOST_IN_EXCEL:,} rows; write .csv or .parquet"
            )
        plain = _with_cells(frame, _text_of)
        for row in zip(*(_plain(plain[name]) for name in plain.columns), strict=True):
            sheet.append(row)
    book.save(path)
    return written


def _write_parquet(frames: Iterable[Any], path: Path) -> Written:
    arrow: Any = require("pyarrow", "tabular")
    parquet: Any = require("pyarrow.parquet", "tabular")
    written = Written(0, ())
    with contextlib.ExitStack() as stack:
        writer: Any = None
        for given in frames:
            frame = _with_cells(given, lambda cell: cell.tolist())
            if writer is None:
                schema = _schema(arrow, frame)
                writer = stack.enter_context(parquet.ParquetWriter(str(path), schema))
            writer.write_table(arrow.Table.from_pandas(frame, schema=schema, preserve_index=False))
            written = Written(written.rows + len(frame), list(frame.columns))
    return written


def _schema(arrow: Any, frame: Any) -> Any:
    """Return the schema of a file, given its first rows; a column without values there is one of texts."""
    schema = arrow.Schema.from_pandas(frame, preserve_index=False)
    for i, field in enumerate(schema):
        if arrow.types.is_null(field.type):
            schema = schema.set(i, field.with_type(arrow.string()))
    return schema


_WRITERS: Mapping[str, Callable[[Iterable[Any], Path], Written]] = {
    "csv": _write_csv,
    "jsonl": _write_jsonl,
    "parquet": _write_parquet,
    "excel": _write_excel,
}
