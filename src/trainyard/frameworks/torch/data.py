"""Batches of samples on the device."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch

from trainyard.datasets.base import ArraySplit, Split
from trainyard.types import Ids

# How much of a GPU's memory one split's arrays may take; larger ones are sliced on the host.
_DEVICE_SHARE = 0.25


class TensorSource:
    """The samples of a split as tensors: sliced in memory, or read one batch at a time."""

    def __init__(self, split: Split, device: torch.device) -> None:
        self._split = split
        self._device = device
        self._arrays: tuple[torch.Tensor, torch.Tensor] | None = None
        if isinstance(split, ArraySplit):
            arrays = (torch.from_numpy(split.features), torch.from_numpy(split.targets))
            self._resident = _fits(arrays, device)
            self._arrays = cast(
                tuple[torch.Tensor, torch.Tensor],
                tuple(a.to(device) for a in arrays) if self._resident else arrays,
            )

    def take(self, ids: Ids) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features (rows, ...) and targets (rows,) or (rows, outputs) on the device."""
        if self._arrays is None:
            batch = self._split.take(ids)
            x, y = (
                torch.from_numpy(np.ascontiguousarray(batch.features)),
                torch.from_numpy(np.ascontiguousarray(batch.targets)),
            )
            return x.to(self._device, non_blocking=True), y.to(self._device, non_blocking=True)
        features, targets = self._arrays
        index = torch.from_numpy(ids)  # (rows,)
        if self._resident:
            index = index.to(self._device, non_blocking=True)
            return features.index_select(0, index), targets.index_select(0, index)
        rows = features.index_select(0, index), targets.index_select(0, index)
        return rows[0].to(self._device, non_blocking=True), rows[1].to(self._device, non_blocking=True)


def _fits(arrays: tuple[torch.Tensor, torch.Tensor], device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    total = torch.cuda.get_device_properties(device).total_memory
    return sum(array.numel() * array.element_size() for array in arrays) < _DEVICE_SHARE * total
