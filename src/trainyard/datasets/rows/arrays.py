"""Splits that are held in memory."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from trainyard.digest import array_buffer, digest, tensor_records
from trainyard.types import Array, Batch, Ids


class Arrays:
    """A split of two arrays; an `ArraySplit`.

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
        """Return copies of the samples `ids`."""
        return Batch(self.features[ids], self.targets[ids])

    def fingerprint(self) -> str:
        """Return the digest over dtype, shape and bytes of both arrays."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return digest(
            tensor_records([array_buffer("features", self.features), array_buffer("targets", self.targets)])
        )
