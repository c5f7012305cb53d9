"""Batches with lists, tuples and mappings of arrays in them, as flat arrays by name and back.

Workers, caches and digests know arrays by name alone. A batch with a list of boxes for each image becomes
`target.0.boxes`, `target.1.boxes` ... and one more array, `STRUCTURE`, which says what these are parts of.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from trainwright.errors import DataError
from trainwright.types import Array, Batch

STRUCTURE = "\0structure"
Convert = Callable[[str, Any], Any]


def flattened(batch: Mapping[str, Any], convert: Convert) -> dict[str, Array]:
    """Return the arrays of a batch by name; with `STRUCTURE` if they are parts of something.

    Args:
        batch: Arrays, and lists, tuples and mappings of them, by name.
        convert: Converts what is no such part, and no text or None, to an array.

    Raises:
        DataError: A key of a mapping is no text.
    """
    flat: dict[str, Array] = {}
    tree = {name: _flatten(name, value, flat, convert) for name, value in batch.items()}
    if any(kind != "array" for kind, _ in tree.values()):
        flat[STRUCTURE] = np.frombuffer(json.dumps(tree).encode(), np.uint8)
    return flat


def _flatten(name: str, value: Any, flat: dict[str, Array], convert: Convert) -> tuple[str, Any]:
    if value is None or isinstance(value, str):
        return "plain", value
    if isinstance(value, Mapping):
        if other := [key for key in value if not isinstance(key, str)]:
            raise DataError(f"{name} has the key {other[0]!r}; keys must be texts")
        return "dict", {key: _flatten(f"{name}.{key}", one, flat, convert) for key, one in value.items()}
    if isinstance(value, list | tuple):
        parts = [_flatten(f"{name}.{i}", one, flat, convert) for i, one in enumerate(value)]
        return type(value).__name__ if type(value) in (list, tuple) else "tuple", parts
    flat[name] = convert(name, value)
    return "array", name


def restored(batch: Batch, convert: Callable[[str, Array], Any]) -> dict[str, Any]:
    """Return what `flattened` made flat, with converted arrays."""
    if STRUCTURE not in batch:
        return {name: convert(name, array) for name, array in batch.items()}
    tree = json.loads(bytes(batch[STRUCTURE]))
    return {name: _restore(one, batch, convert) for name, one in tree.items()}


def _restore(tree: Any, batch: Batch, convert: Callable[[str, Array], Any]) -> Any:
    kind, value = tree
    if kind == "array":
        return convert(value, batch[value])
    if kind == "dict":
        return {key: _restore(one, batch, convert) for key, one in value.items()}
    if kind == "plain":
        return value
    parts = (_restore(one, batch, convert) for one in value)
    return tuple(parts) if kind == "tuple" else list(parts)


def leaves(value: Any) -> Iterator[Any]:
    """Yield the arrays of a value."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for one in value:
            yield from leaves(one)
    elif value is not None and not isinstance(value, str):
        yield value
