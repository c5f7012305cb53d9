"""Tensors of the open inference protocol: as JSON, as bytes, and as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from trainwright.servers.service.errors import RequestError
from trainwright.types import Array

BYTES = "BYTES"
# The datatypes of numbers, as they are in binary data.
NUMBERS: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    **{f"{kind}{8 * size}": np.dtype(f"<{code}{size}")
       for kind, code in (("UINT", "u"), ("INT", "i")) for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
}  # fmt: skip
_MOST_AXES = 16
_LARGEST = 1 << 40  # elements of a tensor
_SHOWN = 100  # characters of a name in a message
_SIZE = 4  # bytes that hold the length of an element of BYTES


class Tensor(NamedTuple):
    """A named array of a request or an answer.

    Attributes:
        name: Its name.
        datatype: Such as `FP32`.
        values: The array; of BYTES (...) object: bytes, texts, or None where a value is missing.
        content_type: The content of the elements, as clients of MLServer name it; empty: not said.
    """

    name: str
    datatype: str
    values: Array
    content_type: str = ""


def wrong(name: str, message: str) -> RequestError:
    """Return the error of a tensor that cannot be read."""
    return RequestError(400, "invalid_tensor", f"input {name[:_SHOWN]!r}: {message}")


def _checked(name: str, datatype: str, shape: Sequence[int]) -> int:
    """Return the number of elements of a tensor.

    Raises:
        RequestError: There is no such datatype, or no such shape.
    """
    if datatype != BYTES and datatype not in NUMBERS:
        known = ", ".join([*NUMBERS, BYTES])
        raise wrong(name, f"datatype {datatype[:_SHOWN]!r} given; there are {known}")
    if not 1 <= len(shape) <= _MOST_AXES or any(not 0 <= size <= _LARGEST for size in shape):
        sizes = [str(size) if abs(size) <= _LARGEST else "a huge number" for size in shape[:_MOST_AXES]]
        raise wrong(
            name, f"shape [{', '.join(sizes)}] given; give 1 to {_MOST_AXES} sizes from 0 on, the rows first"
        )
    if math.prod(size or 1 for size in shape) > _LARGEST:
        raise wrong(name, f"shape {[*shape]} has more than {_LARGEST:,} elements")
    return math.prod(shape)


def of_json(name: str, datatype: str, shape: Sequence[int], data: Sequence[Any]) -> Array:
    """Return the array of a tensor in JSON, whose data are nested as its shape is, or flat.

    Raises:
        RequestError: The data are others than the tensor says.
    """
    count = _checked(name, datatype, shape)
    flat = _flat(name, shape, data)
    if len(flat) != count:
        raise wrong(name, f"shape {[*shape]} has {count:,} elements, but {len(flat):,} are given")
    kinds = set(map(type, flat))
    if datatype == BYTES:
        _check_kinds(name, datatype, kinds, {str, type(None)}, "texts, or null")
        return _objects(flat, shape)
    dtype = NUMBERS[datatype]
    match dtype.kind:
        case "b":
            _check_kinds(name, datatype, kinds, {bool}, "true or false")
        case "f":
            _check_kinds(name, datatype, kinds, {int, float, type(None)}, "numbers, or null")
        case _:
            _check_kinds(name, datatype, kinds, {int}, "whole numbers")
    try:
        with np.errstate(over="raise"):
            found = np.array(flat, np.float64).astype(dtype) if dtype.kind == "f" else np.array(flat, dtype)
    except (OverflowError, FloatingPointError):
        raise wrong(name, f"a number is too large for {datatype}") from None
    return found.reshape(shape)


def _flat(name: str, shape: Sequence[int], data: Sequence[Any]) -> Sequence[Any]:
    """Return data that are nested as the shape is, or flat, as flat ones.

    Raises:
        RequestError: They are nested otherwise.
    """
    if not any(isinstance(one, list) for one in data):
        return data
    is_so = len(data) == shape[0]
    for size in shape[1:]:
        is_so = is_so and all(isinstance(one, list) and len(one) == size for one in data)
        if not is_so:
            break
        data = list(chain.from_iterable(data))
    if not is_so or any(isinstance(one, list) for one in data):
        raise wrong(name, f"the data are lists of other lengths than shape {[*shape]} says")
    return data


def _check_kinds(name: str, datatype: str, kinds: set[type], known: set[type], words: str) -> None:
    if others := kinds - known:
        names = {bool: "a boolean", str: "a text", float: "a number with a fraction", int: "a number"}
        shown = names.get(min(others, key=str), "something else")
        raise wrong(name, f"{datatype} holds {words}; {shown} is given")


def of_bytes(name: str, datatype: str, shape: Sequence[int], raw: bytes) -> Array:
    """Return the array of a tensor in binary data: little-endian, or elements after their lengths.

    Raises:
        RequestError: The data are others than the tensor says.
    """
    count = _checked(name, datatype, shape)
    if datatype == BYTES:
        return _objects(_elements(name, raw, count), shape)
    dtype = NUMBERS[datatype]
    if len(raw) != count * dtype.itemsize:
        wanted = f"{datatype} of shape {[*shape]} has {count * dtype.itemsize:,} bytes"
        raise wrong(name, f"{wanted}, but {len(raw):,} are given")
    numbers: Array = np.frombuffer(raw, np.uint8) != 0 if dtype.kind == "b" else np.frombuffer(raw, dtype)
    return numbers.reshape(shape)


def _elements(name: str, raw: bytes, count: int) -> list[bytes]:
    """Return the elements of BYTES, each of which comes after its length.

    Raises:
        RequestError: There are more than `count`, or fewer.
    """
    found: list[bytes] = []
    at = 0
    while at < len(raw) and len(found) < count:
        start = at + _SIZE
        stop = start + int.from_bytes(raw[at:start], "little")
        if stop > len(raw):
            raise wrong(name, f"the binary data end within element {len(found) + 1:,}")
        found.append(raw[start:stop])
        at = stop
    if at < len(raw) or len(found) < count:
        more = "more" if at < len(raw) else f"{len(found):,}"
        raise wrong(name, f"the shape has {count:,} elements, but the binary data hold {more}")
    return found


def of_contents(name: str, datatype: str, shape: Sequence[int], values: Sequence[Any]) -> Array:
    """Return the array of a tensor whose values gRPC brought as such.

    Raises:
        RequestError: The values are others than the tensor says.
    """
    count = _checked(name, datatype, shape)
    if len(values) != count:
        raise wrong(name, f"shape {[*shape]} has {count:,} elements, but {len(values):,} are given")
    if datatype == BYTES:
        return _objects(values, shape)
    try:
        # Of a list, numbers out of range are errors; an array of protobuf's would be cast.
        return np.array(list(values), NUMBERS[datatype]).reshape(shape)
    except OverflowError:
        raise wrong(name, f"a number is too large for {datatype}") from None


def _objects(values: Sequence[Any], shape: Sequence[int]) -> Array:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found.reshape(shape)


def as_json(tensor: Tensor) -> list[Any]:
    """Return the elements of a tensor, flat, as JSON can hold them: null for what is no number."""
    flat: list[Any] = tensor.values.reshape(-1).tolist()
    if tensor.values.dtype.kind == "f" and not np.isfinite(tensor.values).all():
        return [one if math.isfinite(one) else None for one in flat]
    return flat


def as_bytes(tensor: Tensor) -> bytes:
    """Return the elements of a tensor as binary data."""
    if tensor.datatype != BYTES:
        return np.ascontiguousarray(tensor.values, NUMBERS[tensor.datatype]).tobytes()
    parts = [as_element(one) for one in tensor.values.reshape(-1)]
    return b"".join(chain.from_iterable((len(one).to_bytes(_SIZE, "little"), one) for one in parts))


def as_element(value: str | None) -> bytes:
    """Return a text as an element of BYTES; none is empty."""
    return (value or "").encode()
