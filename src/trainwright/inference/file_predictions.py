"""Predictions for the rows of files, chunk by chunk: neither file needs to fit into the memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainwright.datasets.samples.arrays import rows_from
from trainwright.datasets.samples.files import as_text
from trainwright.datasets.tables.chunks import RowChunks
from trainwright.datasets.tables.preparation import FilePreparation
from trainwright.datasets.tables.raw import frame_of
from trainwright.datasets.tables.table import Table, nearest
from trainwright.errors import DataError, InputError
from trainwright.inference.intervals import Intervals
from trainwright.inference.predictor import Predictor
from trainwright.inference.samples import outputs_for
from trainwright.inference.whole_files import write_whole
from trainwright.require import require
from trainwright.types import Array

SUFFIXES = (".csv", ".parquet")
_FIRST_WITH_GAPS = 2.0**24  # from here on, float32 does not have all whole numbers


@dataclass(frozen=True)
class PredictionColumns:
    """The columns of a table of predictions.

    Attributes:
        keep: Columns of the input to carry over.
        threshold: As in `Predictor.predict`.
        proba: Whether there are probabilities; None: where the task has them.
        intervals: The intervals whose ends are added; None for none.
    """

    keep: Sequence[str] = ()
    threshold: float | None = None
    proba: bool | None = None
    intervals: Intervals | None = None


class Written(NamedTuple):
    """The table that was written: the number of its rows, and the names of its columns."""

    rows: int
    columns: Sequence[str]


def predicted_chunks(
    predictor: Predictor, path: Path | str, columns: PredictionColumns, *, as_written: bool = False
) -> Iterator[Any]:
    """Yield data frames of the predictions for a file, one for each chunk of its rows.

    Args:
        predictor: The model.
        path: A CSV, Parquet or npz file, or one at a URL; for a model of texts a text, whose rows are
            windows.
        columns: The columns of the frames: those carried over first.
        as_written: Carry over cells of a CSV file as they are written, and not as numbers or times.

    Raises:
        DataError: The file cannot be read, or lacks a column of the training data.
        InputError: A column to carry over is not there, or an option does not fit the task.
    """
    if columns.proba:
        predictor.check_probabilities()
        if predictor.gives_masks:
            raise InputError(
                "the probabilities of pixels do not fit into a table: call "
                "trainwright.load(run).predict_proba(images) from Python"
            )
    for kind in (_of_samples, _of_arrays, _of_files):
        if (frames := kind(predictor, path, columns)) is not None:
            yield from frames
            return
    yield from _of_rows(predictor, path, columns, as_written=as_written)


def _of_samples(predictor: Predictor, path: Path | str, columns: PredictionColumns) -> Iterator[Any] | None:
    """Return the frames of predictions for the samples of a file; None if it has rows."""
    if (samples := predictor.files.samples(path)) is None:
        return None
    if columns.keep:
        raise InputError(f"{path} has no columns to keep: its rows are samples of the run's length")
    outputs = outputs_for(predictor.model, samples, predictor.chunk_rows)
    return (_frame({}, _columns(predictor, some, columns)) for some in outputs)


def _of_arrays(predictor: Predictor, path: Path | str, columns: PredictionColumns) -> Iterator[Any] | None:
    """Return the frames of predictions for the arrays of a file; None if it has the rows of a table."""
    if (arrays := predictor.files.arrays(path)) is None:
        return None
    if columns.keep:
        raise InputError(f"{path} has no columns to keep: it holds arrays")
    step, count = predictor.chunk_rows, len(next(iter(arrays.values())))
    outputs = (predictor.outputs(rows_from(arrays, start, step)) for start in range(0, count, step))
    return (_frame({}, _columns(predictor, some, columns)) for some in outputs)


def _of_rows(
    predictor: Predictor, path: Path | str, columns: PredictionColumns, *, as_written: bool
) -> Iterator[Any]:
    """Yield data frames of the predictions for the rows of a file; see `predicted_chunks`."""
    chunks, rows = predictor.files.chunks(path), predictor.chunk_rows
    if missing := [name for name in columns.keep if name not in chunks.names]:
        raise InputError(
            f"{path}: there is no column {missing[0]!r} to keep; {nearest(missing[0], chunks.names)}"
        )
    needed = predictor.files.columns_of(chunks.names)
    empty = True
    for table, kept in _with_kept(chunks, needed, columns.keep, rows, as_written=as_written):
        empty = False
        some = predictor.files.rows_of(table)
        yield _frame(kept, _columns(predictor, predictor.outputs(some), columns, some))
    if empty:
        raise DataError(f"{path}: there are columns, but no rows")


def _of_files(predictor: Predictor, path: Path | str, columns: PredictionColumns) -> Iterator[Any] | None:
    """Return the frames of predictions for images or texts in files; None if the path is a file of rows."""
    preparation = predictor.preparation
    if not isinstance(preparation, FilePreparation) or (files := preparation.files_at(path)) is None:
        return None
    return _of_each_file(predictor, preparation, files, columns)


def _of_each_file(
    predictor: Predictor, preparation: FilePreparation, files: Sequence[Path], columns: PredictionColumns
) -> Iterator[Any]:
    """Yield data frames of the predictions for files, with their paths in the first column.

    Those that cannot be decoded are left out, if the run has left out such ones.
    """
    name, rows, data = preparation.path_column, predictor.chunk_rows, predictor.config.data
    if columns.keep:
        raise InputError(
            f"{preparation.noun} in a folder have no columns to keep; their paths are kept as {name!r}"
        )
    if data is not None and data.on_corrupt == "skip":
        files = preparation.readable(files)
    for start in range(0, len(files), rows):
        some = files[start : start + rows]
        outputs = predictor.outputs(preparation.rows_of_files(some))
        paths = np.array([as_text(file) for file in some], dtype=object)
        yield _frame({name: paths}, _columns(predictor, outputs, columns))


def _with_kept(
    chunks: RowChunks, needed: Sequence[str], keep: Sequence[str], rows: int, *, as_written: bool
) -> Iterator[tuple[Table, Mapping[str, Array]]]:
    """Yield the chunks of the columns that are needed, with the columns to carry over."""
    cells = chunks.cells(keep, rows) if as_written and keep else None
    if cells is not None:
        yield from zip(chunks.tables(needed, rows), cells, strict=True)
        return
    for table in chunks.tables({*needed, *keep}, rows):
        own = {name: table.columns[name] for name in needed}
        unread = [name for name in chunks.names if name not in own]
        kept = {name: table.columns[name] for name in keep}
        yield Table(own, table.source, table.numbers, unread=unread), kept


def _columns(
    predictor: Predictor, outputs: Array, columns: PredictionColumns, rows: Any = None
) -> dict[str, Any]:
    table = (
        predictor.table(outputs, columns.threshold)
        if rows is None
        else predictor.table_of(rows, outputs, columns.threshold)
    )
    if columns.proba is False:
        table = {name: values for name, values in table.items() if not name.startswith("probability_")}
    return {**table, **(columns.intervals.columns(outputs) if columns.intervals is not None else {})}


def _frame(kept: Mapping[str, Array], predictions: Mapping[str, Any]) -> Any:
    """Return columns carried over and those of predictions as one data frame.

    Raises:
        InputError: Two have the same name.
    """
    if both := [name for name in kept if name in predictions]:
        raise InputError(
            f"column {both[0]!r} cannot be kept: the predictions have one of this name; rename it"
        )
    pandas: Any = require("pandas", "tabular")
    predicted = pandas.DataFrame(dict(predictions))
    return pandas.concat([frame_of(dict(kept)), predicted], axis=1) if kept else predicted


def write_predictions(frames: Iterable[Any], output: Path) -> Written:
    """Write data frames, one below the other, as a CSV or Parquet file, by its suffix.

    The file is there when it is whole; one of this name is replaced.

    Raises:
        InputError: The file cannot be written, or has another suffix.
    """
    if output.suffix not in SUFFIXES:
        raise InputError(f"{output}: the name must end in {' or '.join(SUFFIXES)}")
    write = _write_csv if output.suffix == ".csv" else _write_parquet
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
    written = Written(0, ())
    with path.open("w", encoding="utf-8", newline="") as stream:
        for frame in frames:
            stream.write(csv_text(frame, header=not written.rows))
            written = Written(written.rows + len(frame), list(frame.columns))
    return written


def csv_text(frame: Any, *, header: bool) -> str:
    """Return predictions as CSV.

    Large float32 are written as the whole numbers that they are: the fewest digits that tell such a number
    from its neighbours in float32 are those of another number.
    """
    large = [
        name
        for name, dtype in frame.dtypes.items()
        if dtype == np.float32 and (frame[name].abs() >= _FIRST_WITH_GAPS).any()
    ]
    exact = frame.astype(dict.fromkeys(large, np.float64)) if large else frame
    text: str = exact.to_csv(index=False, header=header)
    return text


def _write_parquet(frames: Iterable[Any], path: Path) -> Written:
    arrow: Any = require("pyarrow", "tabular")
    parquet: Any = require("pyarrow.parquet", "tabular")
    written, schema = Written(0, ()), None
    with contextlib.ExitStack() as stack:
        writer: Any = None
        for frame in frames:
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
