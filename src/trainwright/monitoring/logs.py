"""Logs of requests as windows: tables of the rows that were served, with what was predicted for them.

A log is the folder that `serve --log` writes, or any file or folder of rows that Trainwright reads: the
columns of the rows, those of the predictions as `predict` writes them (`prediction`, `probability_<class>`
...) or as the service does (`_prediction` ...), and `_time` (a time, or seconds since 1970) and `_seconds`
(of the request), each where it is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.datasets.tables.frames import row_chunks
from trainwright.errors import InputError
from trainwright.monitoring.columns import as_numbers
from trainwright.monitoring.reference import Reference
from trainwright.monitoring.sketches import Window
from trainwright.types import Array

TIME, SECONDS = "_time", "_seconds"  # beside the columns of the rows, as a service writes them
ROWS = 1000  # of a window
_MOST = 1000  # windows


def windows_of_log(path: Path | str, reference: Reference, size: int = ROWS) -> list[Window]:
    """Return a log as windows of a size, in the order of its rows; the last one holds the rest.

    Raises:
        DataError: The log cannot be read.
        InputError: It has none of the columns of the reference, or too many windows.
    """
    outputs = {column.name for column in reference.columns if column.role == "output"}
    inputs = {column.name for column in reference.columns} - outputs
    texts = [column.name for column in reference.columns if column.kind in ("category", "text")]
    is_of_service = any(Path(path).glob("requests-*.parquet"))
    chunks = row_chunks(f"{path}/requests-*.parquet" if is_of_service else path, None, texts)
    if not inputs & set(chunks.names) and not outputs & set(chunks.names):
        raise InputError(
            f"{path} has none of the columns of run {reference.run}: {', '.join(sorted(inputs)[:8])}"
        )
    predicted = {
        name: plain
        for name in chunks.names
        for plain in [name.removeprefix("_")]
        if name not in inputs and (plain in outputs or plain.startswith("probability_"))
    }
    wanted = {*(inputs & set(chunks.names)), *predicted, *({TIME, SECONDS} & set(chunks.names))}
    windows = [Window(reference)]
    for table in chunks.tables(wanted, size):
        columns, start = dict(table.columns), 0
        while start < len(table):
            if windows[-1].rows >= size:
                windows.append(Window(reference))
            if len(windows) > _MOST:
                raise InputError(
                    f"{path} has more than {_MOST:,} windows of {size:,} rows; give a larger --window"
                )
            stop = start + size - windows[-1].rows
            _add(
                windows[-1], {name: values[start:stop] for name, values in columns.items()}, inputs, predicted
            )
            start = stop
    return windows


def _add(
    window: Window, columns: Mapping[str, Array], inputs: set[str], predicted: Mapping[str, str]
) -> None:
    """Count rows of a log, which came at their own times.

    Args:
        window: Counts them.
        columns: The columns of the log.
        inputs: Those of the rows.
        predicted: Those of predictions, and their names in `Window.add`.
    """
    times = as_numbers(columns[TIME], "time") if TIME in columns and TIME not in inputs else np.empty(0)
    times = times[np.isfinite(times)]
    at = float(times.min()) if len(times) else None
    given: dict[str, Any] = {plain: columns[name] for name, plain in predicted.items()}
    seconds = as_numbers(columns[SECONDS]).tolist() if SECONDS in columns and SECONDS not in inputs else None
    window.add({name: values for name, values in columns.items() if name in inputs}, given, seconds, at)
    if len(times):
        window.ended(float(times.max()))
