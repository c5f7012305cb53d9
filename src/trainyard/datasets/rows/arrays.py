"""Splits that are held in memory."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from trainyard.digest import array_buffer, digest, tensor_records
from trainyard.types import TARGET, Batch, Ids


class Arrays:
    """A split of arrays with the same number of rows; an `ArraySplit`.

    Args:
        arrays: The arrays by name, (rows, ...) each.
    """

    def __init__(self, arrays: Batch) -> None:
        self.arrays: Batch = {name: np.ascontiguousarray(array) for name, array in arrays.items()}

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def take(self, ids: Ids) -> Batch:
        """Return copies of the samples `ids`."""
        return {name: array[ids] for name, array in self.arrays.items()}

    def fingerprint(self) -> str:
        """Return the digest over names, dtypes, shapes and bytes of the arrays."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return digest(
            tensor_records(array_buffer(fingerprinted(name), array) for name, array in self.arrays.items())
        )


def fingerprinted(name: str) -> str:
    """Return the name of an array in fingerprints: runs of version 1 called the target `targets`."""
    return "targets" if name == TARGET else name
