"""Batches of samples on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import torch

from trainyard.datasets.base import ArraySplit, Split
from trainyard.types import Ids

# A batch on the device: tensors by name, with the samples on the first axis.
Tensors: TypeAlias = Mapping[str, torch.Tensor]

# How much of a GPU's memory one split's arrays may take; larger ones are sliced on the host.
_DEVICE_SHARE = 0.25


class TensorSource:
    """The samples of a split as tensors: sliced in memory, or read one batch at a time."""

    def __init__(self, split: Split, device: torch.device) -> None:
        self._split = split
        self._device = device
        self._arrays: Tensors | None = None
        if isinstance(split, ArraySplit):
            arrays = {name: torch.from_numpy(array) for name, array in split.arrays.items()}
            self._resident = _fits(arrays, device)
            self._arrays = self._moved(arrays) if self._resident else arrays

    def take(self, ids: Ids) -> Tensors:
        """Return the samples `ids` on the device, (rows, ...) each."""
        if self._arrays is None:
            batch = self._split.take(ids)
            return self._moved(
                {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in batch.items()}
            )
        index = torch.from_numpy(ids)  # (rows,)
        if self._resident:
            index = index.to(self._device, non_blocking=True)
            return {name: array.index_select(0, index) for name, array in self._arrays.items()}
        return self._moved({name: array.index_select(0, index) for name, array in self._arrays.items()})

    def _moved(self, tensors: Tensors) -> Tensors:
        return {name: tensor.to(self._device, non_blocking=True) for name, tensor in tensors.items()}


def _fits(arrays: Tensors, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    total = torch.cuda.get_device_properties(device).total_memory
    return sum(array.numel() * array.element_size() for array in arrays.values()) < _DEVICE_SHARE * total
