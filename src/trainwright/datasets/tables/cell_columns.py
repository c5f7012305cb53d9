"""Columns of cells that each have a type of their own, as in spreadsheets and JSON."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import date, time, timedelta
from numbers import Real
from typing import Any

import numpy as np

from trainwright.datasets.tables.table import Table, as_texts, kind_of, tidy, unique_names
from trainwright.types import Array


def table_of_cells(
    names: Sequence[str], cells: Sequence[Sequence[Any]], path: str, text: Collection[str], first: int | None
) -> Table:
    """Return columns of cells as a table.

    Args:
        names: The names of the columns.
        cells: The cells of each column.
        path: The file, for messages.
        text: Columns to read as text.
        first: The line of the file that holds the first row, if each row is one line.
    """
    unique, remark = unique_names(names)
    columns = {name: column_of_cells(one, name, path) for name, one in zip(unique, cells, strict=True)}
    columns = {name: as_texts(one) if name in text else one for name, one in columns.items()}
    guessed = {name for name, one in columns.items() if kind_of(one) == "text"} - {*text}
    remarks = [f"{path}: {remark}"] if remark else []
    return Table(columns, path, first_line=first, guessed=frozenset(guessed), remarks=remarks)


def column_of_cells(cells: Sequence[Any], name: str, path: str) -> Array:
    """Return cells as a column; where numbers, times and texts are mixed, as one of texts.

    Raises:
        DataError: A cell holds a list or a mapping.
    """
    values = np.empty(len(cells), dtype=object)
    values[:] = [_plain(cell) for cell in cells]
    words = {_word(value) for value in values if value is not None}
    if len(words) > 1 and words <= {"number", "boolean", "text", "time"}:
        values[:] = [None if value is None else _text(value) for value in values]
    return tidy(values, name, path)


def _plain(cell: Any) -> Any:
    if isinstance(cell, str):
        return cell if cell.strip() else None
    if isinstance(cell, timedelta):
        return cell.total_seconds()
    return cell.isoformat() if isinstance(cell, time) else cell


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, Real):
        return "number"
    if isinstance(value, date):
        return "time"
    return "text" if isinstance(value, str) else "other"


def _text(value: Any) -> str:
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if is_whole else value.isoformat() if isinstance(value, date) else str(value)
