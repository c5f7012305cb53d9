"""Columns of Arrow tables as NumPy arrays, and tables of Arrow and Polars as data frames."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.datasets.tables.table import tidy
from trainwright.require import require
from trainwright.types import Array

SAMPLE = 10_000  # rows that decide what a column is where a config is only shown


def strings(column: Any) -> Array:
    """Return a column of strings as (rows,) str or None; each different text is one object."""
    coded = column.combine_chunks().dictionary_encode()
    texts = np.array([*coded.dictionary.to_pylist(), None], dtype=object)
    codes = coded.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)
    values: Array = texts[codes]
    return values


def cells_of(column: Any, name: str, source: str) -> Array:
    """Return a column of single values, (rows,); `source` names its origin in messages.

    Raises:
        DataError: Its values can be none of a table's.
    """
    arrow: Any = require("pyarrow", "tabular")
    types = arrow.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_decimal(column.type):
        column = column.cast(arrow.float64())
    if types.is_string(column.type) or types.is_large_string(column.type):
        return strings(column)
    numbers = (
        column.to_numpy(zero_copy_only=False)
        if column.num_chunks
        else np.empty(0, column.type.to_pandas_dtype())
    )
    return tidy(numbers, name, source)


def as_pandas(data: Any) -> Any:
    """Return tables and columns of Polars and Arrow as those of pandas, also in tuples and mappings.

    A lazy frame is collected. All else is returned as it is.
    """
    if type(data) in (tuple, list) and any(map(_is_foreign, data)):
        return type(data)(map(as_pandas, data))
    if type(data) is dict and any(map(_is_foreign, data.values())):
        return {name: as_pandas(one) for name, one in data.items()}
    if not _is_foreign(data):
        return data
    arrow: Any = require("pyarrow", "tabular")
    require("pandas", "tabular")
    if hasattr(data, "collect"):
        data = data.collect()
    if hasattr(data, "to_arrow"):
        data = data.to_arrow()
    if isinstance(data, arrow.RecordBatchReader):
        data = data.read_all()
    if isinstance(data, arrow.RecordBatch):
        data = arrow.Table.from_batches([data])
    if not isinstance(data, arrow.Table):
        return _plain(arrow, data).to_pandas(date_as_object=False)
    names, columns = data.column_names, [_plain(arrow, column) for column in data.columns]
    # By position, as names may be repeated, which `as_table` renames.
    frame = arrow.table(columns, [str(i) for i in range(len(names))]).to_pandas(date_as_object=False)
    frame.columns = names
    return frame


def _is_foreign(data: Any) -> bool:
    """Return whether this is a table or a column of Polars or Arrow; neither is imported for that."""
    library = type(data).__module__.partition(".")[0]
    return library in ("polars", "pyarrow") and (
        hasattr(data, "to_arrow") or hasattr(data, "schema") or hasattr(data, "to_pandas")
    )


def _plain(arrow: Any, column: Any) -> Any:
    """Return a column in a type that pandas holds by itself: decimals as floats."""
    types, kind = arrow.types, column.type
    values = kind.value_type if types.is_dictionary(kind) else kind
    if types.is_decimal(values):
        return column.cast(arrow.float64())
    if types.is_string_view(values):
        return column.cast(arrow.large_string())
    return column
