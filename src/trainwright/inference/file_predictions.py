"""Predictions for the rows of files, chunk by chunk: neither file needs to fit into the memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.datasets.samples.arrays import rows_from
from trainwright.datasets.samples.files import as_text
from trainwright.datasets.tables.chunks import ROW_ERROR, RowChunks, errors_in, without_errors
from trainwright.datasets.tables.preparation import FilePreparation
from trainwright.datasets.tables.ranges import UnusualValues
from trainwright.datasets.tables.table import Table, frame_of, nearest
from trainwright.errors import DataError, InputError
from trainwright.inference.bad_rows import ERROR, Failures, OnError, count_of, take, with_errors
from trainwright.inference.intervals import Intervals
from trainwright.inference.predictor import Predictor
from trainwright.inference.samples import outputs_for
from trainwright.require import require
from trainwright.types import Array

log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class PredictionColumns:
    """The columns of a table of predictions.

    Attributes:
        keep: Columns of the input to carry over.
        threshold: As in `Predictor.predict`.
        proba: Whether there are probabilities; None: where the task has them.
        intervals: The intervals whose ends are added; None for none.
        on_error: What becomes of a row that cannot be predicted; see `Predictor.predict`.
        with_error: Whether there is a column `error` anyway; else there is one if a row has an error.
        restarts: Whether the caller begins again with that column if the first error comes late.
    """

    keep: Sequence[str] = ()
    threshold: float | None = None
    proba: bool | None = None
    intervals: Intervals | None = None
    on_error: OnError = "null"
    with_error: bool = False
    restarts: bool = True


@dataclass
class Tally:
    """The count of the rows of a file that could not be predicted, and of those with unusual values."""

    failures: Failures
    unusual: UnusualValues
    has_error_column: bool = False
    started: bool = field(default=False, repr=False)

    def say(self) -> None:
        """Warn of what was counted."""
        self.failures.warn()
        for line in self.unusual.lines():
            log.warning("%s", line)


class LateError(Exception):
    """The first row that cannot be predicted comes after chunks without a column `error`."""


def predicted_chunks(
    predictor: Predictor,
    path: Path | str,
    columns: PredictionColumns,
    tally: Tally,
    *,
    as_written: bool = False,
) -> Iterator[Any]:
    """Yield data frames of the predictions for a file, one for each chunk of its rows.

    Args:
        predictor: The model.
        path: A CSV, Parquet or npz file, or one at a URL; for a model of texts a text, whose rows are
            windows.
        columns: The columns of the frames: those carried over first.
        tally: What is counted.
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
    for kind in (_of_samples, _of_arrays):
        if (frames := kind(predictor, path, columns)) is not None:
            yield from frames
            return
    some = _of_files(predictor, path, columns, tally)
    yield from some if some is not None else _of_rows(predictor, path, columns, tally, as_written=as_written)


def _of_samples(predictor: Predictor, path: Path | str, columns: PredictionColumns) -> Iterator[Any] | None:
    """Return the frames of predictions for the samples of a file; None if it has rows."""
    if (samples := predictor.files.samples(path)) is None:
        return None
    if columns.keep:
        raise InputError(f"{path} has no columns to keep: its rows are samples of the run's length")
    outputs = outputs_for(predictor.model, samples, predictor.chunk_rows)
    return (_frame(_columns(predictor, some, columns)) for some in outputs)


def _of_arrays(predictor: Predictor, path: Path | str, columns: PredictionColumns) -> Iterator[Any] | None:
    """Return the frames of predictions for the arrays of a file; None if it has the rows of a table."""
    if (arrays := predictor.files.arrays(path)) is None:
        return None
    if columns.keep:
        raise InputError(f"{path} has no columns to keep: it holds arrays")
    step, count = predictor.chunk_rows, len(next(iter(arrays.values())))
    outputs = (predictor.outputs(rows_from(arrays, start, step)) for start in range(0, count, step))
    return (_frame(_columns(predictor, some, columns)) for some in outputs)


def _of_rows(
    predictor: Predictor, path: Path | str, columns: PredictionColumns, tally: Tally, *, as_written: bool
) -> Iterator[Any]:
    """Yield data frames of the predictions for the rows of a file; see `predicted_chunks`."""
    chunks, rows = predictor.files.chunks(path, columns.on_error), predictor.chunk_rows
    if missing := [name for name in columns.keep if name not in chunks.names]:
        raise InputError(
            f"{path}: there is no column {missing[0]!r} to keep; {nearest(missing[0], chunks.names)}"
        )
    needed = predictor.files.columns_of(chunks.names)
    empty = True
    for table, kept in _with_kept(chunks, needed, columns.keep, rows, as_written=as_written):
        empty = False
        errors = errors_in(table)
        yield _judged(predictor, predictor.files.rows_of(without_errors(table)), kept, columns, tally, errors)
    if empty:
        raise DataError(f"{path}: there are columns, but no rows")


def _judged(
    predictor: Predictor,
    rows: Any,
    kept: Mapping[str, Array],
    columns: PredictionColumns,
    tally: Tally,
    known: Mapping[int, str],
) -> Any:
    """Return the predictions of rows, of which some cannot be predicted.

    Args:
        predictor: The model.
        rows: The rows, as `outputs` takes them.
        kept: The columns to carry over.
        columns: The columns of the frame.
        tally: What is counted.
        known: What is wrong with rows that could not even be read, by position.

    Raises:
        DataError: A row cannot be predicted, and that is an error.
        LateError: The frames before have no column for errors, and the caller begins again.
    """
    count = count_of(rows)
    if columns.on_error == "stop":
        outputs, errors = predictor.outputs(rows), dict[int, str]()
    else:
        good = np.delete(np.arange(count), [*known])
        ids = np.arange(count)
        ids[[*known]] = good[0] if len(good) else 0
        found, more = (
            predictor.outputs_or_errors(take(rows, ids) if known else rows) if len(good) else (None, {})
        )
        errors = {**more, **known}
        outputs = predictor.placeholders(count) if found is None else found
    kept_rows = take(rows, np.delete(np.arange(count), [*errors])) if errors else rows
    if len(errors) < count:
        predictor.count_unusual(kept_rows, tally.unusual)
    tally.failures.add(count, dict(sorted(errors.items())))
    predictions = _columns(predictor, outputs, columns, rows)
    if columns.on_error == "null":
        is_late = tally.started and bool(errors) and not tally.has_error_column
        if is_late and columns.restarts:
            raise LateError
        tally.has_error_column |= columns.with_error or (bool(errors) and not tally.started)
    tally.started = True
    if tally.has_error_column and ERROR in kept:
        raise InputError(
            f"column {ERROR!r} cannot be kept: the predictions have one of this name; rename it, or give "
            "--on-error skip"
        )
    before, frame = _kept_frame(kept, predictions), _frame(predictions)
    return with_errors(frame, errors, columns.on_error, column=tally.has_error_column, kept=before)


def _of_files(
    predictor: Predictor, path: Path | str, columns: PredictionColumns, tally: Tally
) -> Iterator[Any] | None:
    """Return the frames of predictions for images or texts in files; None if the path is a file of rows."""
    preparation = predictor.preparation
    if not isinstance(preparation, FilePreparation) or (files := preparation.files_at(path)) is None:
        return None
    return _of_each_file(predictor, preparation, files, columns, tally)


def _of_each_file(
    predictor: Predictor,
    preparation: FilePreparation,
    files: Sequence[Path],
    columns: PredictionColumns,
    tally: Tally,
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
        paths = np.array([as_text(file) for file in some], dtype=object)
        rows_of_some = preparation.rows_of_files(some)
        yield _judged(predictor, rows_of_some, {name: paths}, columns, tally, {})


def _with_kept(
    chunks: RowChunks, needed: Sequence[str], keep: Sequence[str], rows: int, *, as_written: bool
) -> Iterator[tuple[Table, Mapping[str, Array]]]:
    """Yield the chunks of the columns that are needed, with the columns to carry over."""
    cells = chunks.cells(keep, rows) if as_written and keep else None
    if cells is not None:
        yield from zip(chunks.tables(needed, rows), cells, strict=True)
        return
    for table in chunks.tables({*needed, *keep}, rows):
        own = {name: table.columns[name] for name in [*needed, ROW_ERROR] if name in table.columns}
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


def _kept_frame(kept: Mapping[str, Array], predictions: Mapping[str, Any]) -> Any:
    """Return columns carried over as a data frame; None if there are none.

    Raises:
        InputError: One has the name of a column of the predictions.
    """
    if both := [name for name in kept if name in predictions]:
        raise InputError(
            f"column {both[0]!r} cannot be kept: the predictions have one of this name; rename it"
        )
    return frame_of(dict(kept)) if kept else None


def _frame(predictions: Mapping[str, Any]) -> Any:
    """Return columns of predictions as a data frame."""
    pandas: Any = require("pandas", "tabular")
    return pandas.DataFrame(dict(predictions))
