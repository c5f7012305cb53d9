"""Data given as Python's own lists and mappings, as arrays, tables and tuples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainwright.datasets.tables.table import as_table
from trainwright.errors import DataError
from trainwright.types import SPLITS

_MOST_SPLITS = len(SPLITS)


def without_lists(data: Any, source: str) -> Any:
    """Return data as they would be given in arrays.

    ([[1.0, 2.0], ...], [0, ...]) is a pair of arrays, a list of mappings of single values, or a mapping of
    columns, a table, and a list of two or three data sets (as `random_split` returns) a tuple of splits.

    Args:
        data: What `from_objects` was given; anything else is returned as it is.
        source: Its name in messages.

    Raises:
        DataError: The rows of a list are of several lengths.
    """
    if _is_pair_of_lists(data):
        return tuple(_array(part, source) for part in data)
    if isinstance(data, list) and data and all(_is_record(row) for row in data):
        return as_table(data, source)
    if isinstance(data, Mapping) and data and not {*data} & {*SPLITS} and all(map(_is_column, data.values())):
        return as_table({str(name): _objects(column) for name, column in data.items()}, source)
    if isinstance(data, tuple | list) and 2 <= len(data) <= _MOST_SPLITS and all(map(_is_split, data)):
        return tuple(
            tuple(_array(one, source) for one in part) if _is_pair_of_lists(part) else part for part in data
        )
    return data


def _is_pair_of_lists(part: Any) -> bool:
    """Return whether this is (X, y) of lists, and not two splits, of which each is a list of samples."""
    if not (isinstance(part, tuple) and len(part) == 2 and all(isinstance(one, list) for one in part)):
        return False
    return len(part[0]) == len(part[1]) and _is_column(part[1]) and not any(map(_is_record, part[0][:1]))


def _is_record(row: Any) -> bool:
    return isinstance(row, Mapping) and all(map(_is_single, row.values()))


def _is_column(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and all(map(_is_single, values))


def _is_single(value: Any) -> bool:
    return value is None or isinstance(value, str) or (np.isscalar(value) or np.ndim(value) == 0)


def _is_split(part: Any) -> bool:
    """Return whether this may be the rows of a split: a data set, a frame, or a pair."""
    return not isinstance(part, str | int | float) and (hasattr(part, "__len__") or hasattr(part, "dataset"))


def _array(rows: list[Any], source: str) -> Any:
    try:
        return np.asarray(rows)
    except ValueError as error:
        raise DataError(
            f"{source}: the rows of a list are not of one length ({error}); pad or cut them"
        ) from None


def _objects(column: list[Any]) -> Any:
    values = np.empty(len(column), dtype=object)
    values[:] = column
    return values
