"""Splits that fit in memory."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from trainyard.digest import digest, tensor_records
from trainyard.types import Array, Batch, Ids, NamedBuffer

_SAFETENSORS_NAMES = {
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
}


class Arrays:
    """A split held as two arrays; an `ArraySplit`.

    Args:
        features: (rows, ...), C-contiguous.
        targets: (rows,) int64 class indices, or (rows,) / (rows, outputs) float32.
    """

    def __init__(self, features: Array, targets: Array) -> None:
        self.features = np.ascontiguousarray(features)
        self.targets = np.ascontiguousarray(targets)

    def __len__(self) -> int:
        return len(self.features)

    def take(self, ids: Ids) -> Batch:
        """The samples `ids`, copied."""
        return Batch(self.features[ids], self.targets[ids])

    def fingerprint(self) -> str:
        """The digest over dtype, shape and bytes of both arrays."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return digest(tensor_records([buffer_of("features", self.features), buffer_of("targets", self.targets)]))


def buffer_of(name: str, array: Array) -> NamedBuffer:
    """An array's bytes, to be hashed."""
    dtype = _SAFETENSORS_NAMES.get(array.dtype.name, array.dtype.name)
    return NamedBuffer(name, dtype, array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
