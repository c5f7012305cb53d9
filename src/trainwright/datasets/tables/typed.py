"""Columns read as what they are: the cells of a text column as numbers, times or booleans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from trainwright.config.emit import inline
from trainwright.datasets.tables.table import Table, as_texts, kind_of, missing
from trainwright.datasets.tables.times import read_format, read_period, read_time
from trainwright.datasets.tables.written import BOOLEANS, is_missing_word, read_number, without_unit
from trainwright.errors import DataError
from trainwright.types import Array

Kind = Literal["number", "boolean", "category", "time", "text", "identifier", "constant", "empty", "ignored"]
EXCLUDED: tuple[Kind, ...] = ("identifier", "constant", "empty", "ignored")
PLURALS = {
    "number": "numbers",
    "boolean": "booleans",
    "category": "categories",
    "time": "times",
    "text": "texts",
}
UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}  # microseconds


@dataclass(frozen=True)
class ColumnKind:
    """The kind of a column, the way in which its cells are read, and the reason.

    `decimal` is the decimal mark of numbers in text. Times in text are read by `order`, or by `format` (of
    strptime), and times given as numbers by `unit`; after numbers in text, `unit` is left out. `missing` are
    values that mean a missing one. `given` is what the values were in training, where that is another kind.
    """

    kind: Kind
    reason: str = ""
    declared: bool = False
    decimal: str = "."
    order: Literal["day first", "month first"] = "day first"
    format: str | None = None
    unit: str | None = None
    missing: Sequence[Any] = ()
    given: str | None = None

    @property
    def is_feature(self) -> bool:
        """True where the model learns from the column."""
        return self.kind not in EXCLUDED

    @property
    def reads_text(self) -> bool:
        """True where files without types are to be read as text here."""
        return self.kind in ("category", "text")

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads; defaults are left out."""
        values = {field: getattr(self, field) for field in _DEFAULTS}
        values["missing"] = list(self.missing)
        return {field: value for field, value in values.items() if value not in (_DEFAULTS[field], [])}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> ColumnKind:
        """Restore what `to_json` was called on."""
        return ColumnKind(**data)


_DEFAULTS = {field.name: field.default for field in fields(ColumnKind)}


def typed(table: Table, kinds: Mapping[str, ColumnKind], *, trains: bool = True) -> Table:
    """Return a table with its columns read as their kinds; columns that are there already stay as they are.

    Args:
        table: The rows.
        kinds: What the columns are, by name.
        trains: Whether the config can still be changed, which messages advise then.

    Raises:
        DataError: Cells cannot be read as their column's kind; names the column and the rows.
    """
    if table.is_typed or not kinds:
        return table
    columns = {
        name: typed_column(table, name, kinds[name], trains=trains) if name in kinds else values
        for name, values in table.columns.items()
    }
    return replace(table, columns=columns, guessed=table.guessed - kinds.keys())


def typed_column(table: Table, name: str, kind: ColumnKind, *, trains: bool = True) -> Array:
    """Return one column read as its kind; see `typed`.

    Raises:
        DataError: Cells cannot be read; names the rows.
    """
    values = without(table.columns[name], kind.missing)
    is_text = kind_of(values) == "text"
    if kind.kind in ("category", "text"):
        return as_texts(values)
    if kind.kind == "boolean" and kind_of(values) == "number" and kind.declared:
        values = _from_numbers(values)
    if kind.kind == "time" and kind.unit is not None and kind_of(values) == "number":
        return from_epoch(values, kind.unit)
    if not is_text or not kind.is_feature:
        return values
    read, strays = read_each(values, kind)
    if strays.any():
        raise _stray(table, name, kind, values[strays][0], strays, trains=trains)
    if kind.kind == "boolean" and not np.isnan(read).any():
        return read.astype(bool)
    return read


def stray_texts(table: Table, name: str, kind: ColumnKind) -> Mapping[str, int]:
    """Return the texts of a column that cannot be read as its kind, with their numbers of rows."""
    values = without(table.columns[name], kind.missing)
    if kind_of(values) != "text" or kind.kind not in ("number", "boolean", "time"):
        return {}
    return Counter(values[read_each(values, kind)[1]].tolist())


def _stray(table: Table, name: str, kind: ColumnKind, text: str, strays: Array, *, trains: bool) -> DataError:
    column = inline(name)
    mend = (
        f"fix it, give data.missing_values: {{{column}: {inline([text])}}} if it means a missing value, or "
        f"data.columns: {{{column}: category}} if the column holds categories"
        if trains
        else "fix it, or leave the cell empty if it means a missing value"
    )
    holds = PLURALS[kind.kind]
    if kind.kind == "number" and kind.decimal == "," and read_number(text) is not None:
        holds += " with a decimal comma" + ("" if trains else " (with a point: --decimal .)")
    return DataError(
        f"{table.source}: column {name!r} holds {holds}, but {text!r} in {table.where(strays)}; {mend}"
    )


def _from_numbers(values: Array) -> Array:
    """Return numbers as booleans; as numbers 0, 1 and NaN where one is missing."""
    absent = missing(values)
    return np.where(absent, np.nan, values != 0) if absent.any() else values != 0


def _reader(kind: ColumnKind) -> Callable[[str], Any]:
    """Return the function that reads one cell: a value, or None."""
    if kind.kind == "number":
        decimal, unit = kind.decimal, kind.unit
        bare = (lambda text: text) if unit is None else (lambda text: without_unit(text, unit))
        return lambda text: None if (number := read_number(bare(text), decimal)) is None else number.value
    if kind.kind == "boolean":
        return lambda text: BOOLEANS.get(text.strip().casefold())
    if (form := kind.format) is not None:
        return lambda text: read_format(text, form)
    order = kind.order
    return lambda text: read_time(text, order) or read_period(text)


def read_each(values: Array, kind: ColumnKind) -> tuple[Array, Array]:
    """Read the cells of a column of text as numbers, booleans or times, each different text once.

    Returns:
        The values, (rows,) float64 or datetime64[us], with NaN or NaT where none is; and a mask, (rows,)
        bool, of the texts that cannot be read and do not mean a missing value.
    """
    read = _reader(kind)
    cells = {text: read(text) for text in set(values.tolist()) if text is not None}
    strays = {text for text, value in cells.items() if value is None and not is_missing_word(text)}
    mask = np.fromiter((text in strays for text in values), dtype=bool, count=len(values))
    each = [cells.get(text) for text in values]
    if kind.kind == "time":
        return np.array(each, dtype="datetime64[us]"), mask
    return np.array([np.nan if value is None else value for value in each], dtype=np.float64), mask


def without(values: Array, absent: Sequence[Any]) -> Array:
    """Return a column with the values `absent` missing."""
    if not absent or not len(values):
        return values
    if kind_of(values) == "text":
        texts = {str(value) for value in absent}
        return np.array([None if text in texts else text for text in values], dtype=object)
    if kind_of(values) == "time":
        times = _as_times(absent)
        return np.where(np.isin(values, times), np.datetime64("NaT"), values)
    numbers = [number.value for value in absent if (number := read_number(str(value))) is not None]
    mask = np.isin(values, numbers)
    return np.where(mask, np.nan, values) if mask.any() else values


def _as_times(absent: Sequence[Any]) -> Array:
    times = [read_time(str(value)) for value in absent]
    return np.array([time for time in times if time is not None], dtype="datetime64[us]")


def from_epoch(numbers: Array, unit: str) -> Array:
    """Return times, (rows,) datetime64[us], of numbers since 1970 in a unit; NaN becomes NaT."""
    with np.errstate(invalid="ignore", over="ignore"):
        micro = np.round(numbers.astype(np.float64) * UNITS[unit])
    times = np.full(len(micro), "NaT", dtype="datetime64[us]")
    usable = np.abs(micro) < 2.0**62
    times[usable] = micro[usable].astype(np.int64).astype("datetime64[us]")
    return times
