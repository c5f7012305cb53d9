"""Logs of requests as windows: tables of the rows that were served, with what was predicted for them.

A log is a file of rows, or a folder of them, as others that Trainwright reads (the server writes Parquet):
the columns of the rows, the columns of the predictions as `predict` writes them (`prediction`,
`probability_<class>` ...), and `time` (a time, or seconds since 1970), `seconds` (of the request) and
`request_id`, each where it is known.
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
    chunks = row_chunks(path, None, texts)
    if not inputs & set(chunks.names) and not outputs & set(chunks.names):
        raise InputError(
            f"{path} has none of the columns of run {reference.run}: {', '.join(sorted(inputs)[:8])}"
        )
    predicted = [
        name for name in chunks.names if name not in inputs and (name in outputs or _is_probability(name))
    ]
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


def _is_probability(name: str) -> bool:
    return name.startswith("probability_")


def _add(window: Window, columns: Mapping[str, Array], inputs: set[str], predicted: list[str]) -> None:
    """Count rows of a log, which came at their own times."""
    times = as_numbers(columns[TIME], "time") if TIME in columns and TIME not in inputs else np.empty(0)
    times = times[np.isfinite(times)]
    at = float(times.min()) if len(times) else None
    given: dict[str, Any] = {name: columns[name] for name in predicted}
    seconds = as_numbers(columns[SECONDS]).tolist() if SECONDS in columns and SECONDS not in inputs else None
    window.add({name: values for name, values in columns.items() if name in inputs}, given, seconds, at)
    if len(times):
        window.ended(float(times.max()))
