"""Files of rows as windows: predicted, and counted for the comparison with the training rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.datasets.samples.arrays import rows_from
from trainwright.datasets.tables.chunks import errors_in, without_errors
from trainwright.datasets.tables.preparation import FilePreparation
from trainwright.inference.bad_rows import Failures, count_of, take
from trainwright.inference.predictor import Predictor
from trainwright.monitoring.reference import Reference
from trainwright.monitoring.sketches import Window


def windows_of(
    predictor: Predictor, path: Path | str, reference: Reference, size: int | None
) -> list[Window]:
    """Return the rows of a file as windows of a size, the last one of the rest; None: as one window.

    Rows that cannot be read or predicted are left out, with a warning.

    Raises:
        DataError: The file cannot be read, or lacks a column of the training data.
        InputError: Its rows are no inputs of the model.
    """
    failures, filling = Failures("skip"), _Filling(reference, size)
    for rows, known in _rows_of(predictor, path):
        count = count_of(rows)
        good = take(rows, np.delete(np.arange(count), [*known])) if known else rows
        outputs, errors = predictor.outputs_or_errors(good) if len(known) < count else (None, {})
        places = np.delete(np.arange(count), [*known])
        failures.add(
            count, dict(sorted({**known, **{int(places[i]): said for i, said in errors.items()}}.items()))
        )
        if outputs is None:
            continue
        if errors:
            kept = np.delete(np.arange(len(outputs)), [*errors])
            good, outputs = take(good, kept), outputs[kept]
        filling.add(predictor.watched(good), predictor.table(outputs))
    failures.warn()
    return filling.windows


def windows_of_rows(
    predictor: Predictor, rows: Any, reference: Reference, size: int | None = None
) -> list[Window]:
    """Return rows as `Predictor.outputs` takes them as windows of a size, or as one."""
    filling = _Filling(reference, size)
    filling.add(predictor.watched(rows), predictor.table(predictor.outputs(rows)))
    return filling.windows


class _Filling:
    """Windows of a size that rows are counted in, one after the other."""

    def __init__(self, reference: Reference, size: int | None) -> None:
        self._reference, self._size = reference, size
        self.windows = [Window(reference)]

    def add(self, columns: dict[str, Any], outputs: dict[str, Any]) -> None:
        """Count rows."""
        named = {**columns, **outputs}
        count = max((len(values) for values in named.values()), default=0)
        start = 0
        while start < count:
            room = count if self._size is None else self._size - self.windows[-1].rows
            if room == 0:
                self.windows.append(Window(self._reference))
                continue
            part = slice(start, start + room)
            self.windows[-1].add(
                {name: values[part] for name, values in columns.items()},
                {name: values[part] for name, values in outputs.items()},
                at=None,
            )
            start += room


def _rows_of(predictor: Predictor, path: Path | str) -> Iterator[tuple[Any, dict[int, str]]]:
    """Yield rows of a file as `outputs` takes them, and what is wrong with those that cannot be read."""
    files, most = predictor.files, predictor.chunk_rows
    if (arrays := files.arrays(path)) is not None:
        for start in range(0, len(next(iter(arrays.values()))), most):
            yield rows_from(arrays, start, most), {}
        return
    preparation = predictor.preparation
    if isinstance(preparation, FilePreparation) and (found := preparation.files_at(path)) is not None:
        for start in range(0, len(found), most):
            yield preparation.rows_of_files(found[start : start + most]), {}
        return
    chunks = files.chunks(path, "null")
    targets = [name for name in predictor.watched_targets if name in chunks.names]
    names = [*files.columns_of(chunks.names), *targets]
    for table in chunks.tables({*names}, most):
        yield files.rows_of(without_errors(table)), errors_in(table)
