"""Values that a user's feature step has fitted, as JSON can hold them: nothing is executed to read them.

A number, text or None stands for itself; all else is a mapping from what it is to its parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainwright.require import require
from trainwright.types import Array


class _Kind(NamedTuple):
    """A kind of value: whether a value is one, its parts, and what makes it of them."""

    is_one: Callable[[Any], bool]
    parts: Callable[[Any], Sequence[Any]]
    made: Callable[..., Any]


def plain_value(value: Any) -> Any:
    """Return a value as JSON can hold it; `restored_value` returns an equal one.

    Raises:
        TypeError: There is no such form; names the type.
    """
    if value is None or type(value) in (bool, int, str) or (type(value) is float and math.isfinite(value)):
        return value
    for name, kind in _KINDS.items():
        if kind.is_one(value):
            return {name: [plain_value(part) for part in kind.parts(value)]}
    raise TypeError(f"an object of {type(value).__module__}.{type(value).__qualname__}")


def restored_value(plain: Any) -> Any:
    """Return the value that `plain_value` was called on."""
    if not isinstance(plain, Mapping):
        return plain
    ((name, parts),) = plain.items()
    return _KINDS[name].made(*map(restored_value, parts))


def _array(dtype: str, shape: Sequence[int], *cells: Any) -> Array:
    kind = np.dtype(dtype)
    if kind.kind in "Mm":
        return np.array(cells, np.int64).view(kind).reshape(shape)
    array = np.empty(len(cells), kind)
    array[:] = cells
    return array.reshape(shape)


def _cells(array: Array) -> list[Any]:
    plain = array.view(np.int64) if array.dtype.kind in "Mm" else array
    return [array.dtype.str, list(array.shape), *plain.ravel().tolist()]


def _series(values: Array, index: Array, name: Any) -> Any:
    return require("pandas", "tabular").Series(values, index=index, name=name)


def _frame(names: Sequence[Any], index: Array, *columns: Array) -> Any:
    frame = require("pandas", "tabular").DataFrame(dict(enumerate(columns)), index=index)
    frame.columns = names
    return frame


def _is_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: type(value) is kind


def _is_of_pandas(name: str) -> Callable[[Any], bool]:
    return lambda value: type(value).__module__.startswith("pandas.") and type(value).__name__ == name


_KINDS = {
    "float": _Kind(_is_of(float), lambda value: [str(value)], float),  # one that is not finite
    "list": _Kind(_is_of(list), list, lambda *parts: [*parts]),
    "tuple": _Kind(_is_of(tuple), list, lambda *parts: parts),
    "set": _Kind(_is_of(set), lambda value: sorted(value, key=repr), lambda *parts: {*parts}),
    "dict": _Kind(_is_of(dict), lambda value: [*value.items()], lambda *pairs: dict(pairs)),
    "scalar": _Kind(
        lambda value: isinstance(value, np.generic) and value.dtype.kind in "biuf",
        lambda value: [value.dtype.str, value.item()],
        lambda dtype, value: np.dtype(dtype).type(value),
    ),
    "array": _Kind(
        lambda value: type(value) is np.ndarray and value.dtype.kind in "biufUMmO", _cells, _array
    ),
    "series": _Kind(
        _is_of_pandas("Series"),
        lambda value: [value.to_numpy(), value.index.to_numpy(), value.name],
        _series,
    ),
    "frame": _Kind(
        _is_of_pandas("DataFrame"),
        lambda value: [
            list(value.columns),
            value.index.to_numpy(),
            *(value.iloc[:, i].to_numpy() for i in range(value.shape[1])),
        ],
        _frame,
    ),
}
