"""Splits that are held in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np

from trainwright.digest import array_buffer, digest, tensor_records
from trainwright.errors import DataError
from trainwright.types import TARGET, Array, Batch, Ids, NamedBuffer


class Arrays:
    """A split of arrays with the same number of rows; an `ArraySplit`.

    Args:
        arrays: The arrays by name, (rows, ...) each. The features may be a data frame, for models that take
            one (`Framework.feature_form`).
    """

    def __init__(self, arrays: Batch) -> None:
        self.arrays: Batch = {
            name: array if is_frame(array) else np.ascontiguousarray(array) for name, array in arrays.items()
        }

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def take(self, ids: Ids) -> Batch:
        """Return copies of the samples `ids`."""
        return {name: _rows(array, ids) for name, array in self.arrays.items()}

    def fingerprint(self) -> str:
        """Return the digest over names, dtypes, shapes and bytes of the arrays."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        buffers = (buffer for name, array in self.arrays.items() for buffer in _buffers(name, array))
        return digest(tensor_records(buffers))


def is_frame(value: Any) -> bool:
    """Return whether this is a data frame."""
    return hasattr(value, "iloc") and hasattr(value, "columns")


def rows_from(arrays: Mapping[str, Any], start: int, count: int) -> dict[str, Array]:
    """Return `count` rows of arrays, of which some may be data frames, from `start` on."""
    stop = start + count
    return {
        name: array.iloc[start:stop] if is_frame(array) else array[start:stop]
        for name, array in arrays.items()
    }


def _rows(array: Any, ids: Ids) -> Array:
    rows: Array = array.iloc[ids] if is_frame(array) else array[ids]
    return rows


def _buffers(name: str, array: Any) -> Iterator[NamedBuffer]:
    """Yield what the fingerprint of an array covers; of a frame, each column with its dtype."""
    if not is_frame(array):
        yield array_buffer(fingerprinted(name), array)
        return
    for i, column in enumerate(array.columns):
        values = array.iloc[:, i]
        if isinstance(values.dtype, np.dtype) and values.dtype.kind in "biuf":
            content = values.to_numpy()
        else:
            texts = [
                None if absent else str(value) for value, absent in zip(values, values.isna(), strict=True)
            ]
            content = np.frombuffer(json.dumps(texts).encode(), np.uint8)
        yield array_buffer(f"{name}.{column}.{values.dtype}", np.ascontiguousarray(content))


def fingerprinted(name: str) -> str:
    """Return the name of an array in fingerprints, where the target is `targets`."""
    return "targets" if name == TARGET else name


def as_array(value: Any, what: str, floats: Literal["float32", "float64"] = "float32") -> Array:
    """Convert an array, tensor, number, image or nested list to NumPy.

    Args:
        value: What to convert.
        what: Its name in messages.
        floats: What floats become; targets are float64.

    Raises:
        DataError: The value is of another type.
    """
    try:
        array = np.asarray(value.detach().cpu().numpy() if hasattr(value, "detach") else value)
    except (TypeError, ValueError) as error:
        raise DataError(f"{what} is not an array: {error}") from error
    if array.dtype.kind not in "biufU":
        raise DataError(f"{what} is {type(value).__name__}; give an array, a tensor or a number")
    return array.astype(floats) if array.dtype.kind == "f" else array
