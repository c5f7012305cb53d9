"""Columns of Arrow tables as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.types import Array

SAMPLE = 10_000  # rows that decide what a column is where a config is only shown


def strings(column: Any) -> Array:
    """Return a column of strings as (rows,) str or None; each different text is one object."""
    coded = column.combine_chunks().dictionary_encode()
    texts = np.array([*coded.dictionary.to_pylist(), None], dtype=object)
    codes = coded.indices.fill_null(len(texts) - 1).to_numpy(zero_copy_only=False)
    values: Array = texts[codes]
    return values
