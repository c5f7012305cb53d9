"""Find the rows that cannot be predicted, and describe what is wrong with each."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from trainwright.datasets.samples.arrays import is_frame
from trainwright.datasets.tables.table import Table
from trainwright.errors import DataError, InputError
from trainwright.types import Array, Ids

log = logging.getLogger("trainwright")
OnError = Literal["stop", "skip", "null"]
ON_ERROR: Sequence[OnError] = ("null", "skip", "stop")
ERROR = "error"  # the column of predictions that says what is wrong with a row
_PLACE = re.compile(r" in rows? [\d, ]+(?: and \d+ more)?(?: \(lines? [\d, ]+ of the file\))?")
_SHOWN = 3  # rows that are named


def check_on_error(value: str) -> None:
    """Check that this is a way to handle bad rows.

    Raises:
        InputError: It is none.
    """
    if value not in ON_ERROR:
        raise InputError(f"on_error {value!r} given; give {', '.join(ON_ERROR[:-1])} or {ON_ERROR[-1]}")


def count_of(rows: Any) -> int:
    """Return the number of rows, as models take them."""
    if isinstance(rows, Mapping):
        return len(next(iter(rows.values())))
    return len(rows)


def take(rows: Any, ids: Ids) -> Any:
    """Return some rows."""
    if isinstance(rows, Table):
        return rows.take(ids)
    if is_frame(rows):
        return rows.iloc[ids]
    if isinstance(rows, Mapping):
        return {name: np.asarray(values)[ids] for name, values in rows.items()}
    return rows[ids] if isinstance(rows, np.ndarray) else [rows[i] for i in ids.tolist()]


def row_errors(rows: Any, checks: Sequence[Callable[[Any], object]]) -> dict[int, str]:
    """Return what is wrong with each row that cannot be used, by its position.

    Args:
        rows: The rows.
        checks: Functions that raise a DataError for rows of which one cannot be used; such as one for each
            column.

    Raises:
        DataError: Something is wrong whatever the rows hold, such as a column that is missing.
    """
    found: dict[int, str] = {}
    for check in checks:
        try:
            check(rows)
        except DataError:
            if isinstance(rows, Table) or is_frame(rows):
                check(take(rows, np.empty(0, np.int64)))
            found = {**dict(_errors(rows, check, 0, count_of(rows))), **found}
    return dict(sorted(found.items()))


def _errors(rows: Any, check: Callable[[Any], object], start: int, stop: int) -> Iterator[tuple[int, str]]:
    """Yield the rows from `start` to `stop` that cannot be used, by halving those in which there is one."""
    waiting = [(start, stop)]
    while waiting:
        start, stop = waiting.pop()
        try:
            check(take(rows, np.arange(start, stop)))
        except DataError as error:
            if stop - start == 1:
                yield start, in_short(str(error))
            else:
                middle = (start + stop) // 2
                waiting += [(middle, stop), (start, middle)]


def in_short(message: str) -> str:
    """Return what is wrong with a row: a message without the file, the row and the advice."""
    line = _PLACE.sub("", message.splitlines()[0])
    if (at := line.find("column '")) > 0:
        line = line[at:]
    return line.partition("; ")[0]


@dataclass
class Failures:
    """The rows of a file that could not be predicted: how many, and the first of them."""

    on_error: OnError
    rows: int = 0
    failed: int = 0
    first: list[tuple[int, str]] = field(default_factory=list)

    def add(self, count: int, errors: Mapping[int, str]) -> None:
        """Count the next rows."""
        self.first += [(self.rows + row + 1, text) for row, text in errors.items()][
            : _SHOWN - len(self.first)
        ]
        self.rows += count
        self.failed += len(errors)

    def warn(self, verb: str = "predicted") -> None:
        """Say how many there are."""
        if not self.failed:
            return
        shown = "; ".join(f"row {row}: {text}" for row, text in self.first)
        more = " ..." if self.failed > len(self.first) else ""
        then = "left out" if self.on_error == "skip" else "without a prediction"
        log.warning(
            "%s of %s rows cannot be %s, and are %s: %s%s", f"{self.failed:,}", f"{self.rows:,}", verb, then,
            shown, more,
        )  # fmt: skip


def with_errors(
    frame: Any, errors: Mapping[int, str], on_error: OnError, *, column: bool, kept: Any = None
) -> Any:
    """Return a table of predictions without those of rows with an error.

    Args:
        frame: The predictions of all rows, with any values for those with an error.
        errors: What is wrong, by the position of the row.
        on_error: `skip` leaves the rows out; `null` leaves their cells empty.
        column: Add the column `error`.
        kept: Columns to carry over, before all others.
    """
    import pandas as pd

    if errors and on_error != "skip":
        mask = np.zeros(len(frame), bool)
        mask[[*errors]] = True
        frame = frame.copy()
        for name in frame.columns:
            frame[name] = _without(frame[name], mask)
    if column:
        texts: Array = np.full(len(frame), None, dtype=object)
        texts[[*errors]] = [*errors.values()]
        frame = frame.assign(**{ERROR: pd.Series(texts, index=frame.index, dtype=object)})
    if kept is not None:
        frame = pd.concat([kept, frame], axis=1)
    if errors and on_error == "skip":
        frame = frame.iloc[np.delete(np.arange(len(frame)), [*errors])]
    return frame


def _without(series: Any, mask: Array) -> Any:
    """Return a column with some cells empty; whole numbers and booleans stay what they are."""
    kind = getattr(series.dtype, "kind", "O")
    if kind in "iu":
        series = series.astype("Int64")
    elif kind == "b":
        series = series.astype("boolean")
    return series.mask(mask) if kind != "O" else series.where(~mask, None)
