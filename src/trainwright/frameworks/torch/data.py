"""Batches of samples on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from trainwright.datasets.base import ArraySplit, SampleSplit, Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.datasets.samples.structures import STRUCTURE, restored
from trainwright.errors import DataError
from trainwright.frameworks.support.prefetcher import Prefetcher, Samples
from trainwright.tasks.support.precision import learned
from trainwright.types import TARGET, Array, Batch, DataInfo, Ids

# A batch on the device: tensors by name, with the samples on the first axis. Of the task
# `custom_loss`, there may be lists and mappings of tensors of any shape instead.
Tensors: TypeAlias = Mapping[str, torch.Tensor]


class Taken(dict[str, torch.Tensor]):
    """The tensors of a batch that was read; `targets` are the values as the data hold them, on the host."""

    targets: Array | None = None


# How much of a GPU's memory one split's arrays may take; larger ones are sliced on the host.
_DEVICE_SHARE = 0.25


class TensorSource:
    """The samples of a split as tensors: sliced in memory, or read one batch at a time.

    If worker processes read the samples, `expect` tells them which ones follow, so that they read them ahead.
    It has no effect on what `take` returns.
    """

    def __init__(
        self, split: Split, device: torch.device, seed: int = 0, info: DataInfo | None = None
    ) -> None:
        """Prepare to take samples.

        Args:
            split: The samples.
            device: Where they are to go.
            seed: The seed of the run, for random numbers that samples draw when they are read.
            info: The description of the data; None: its targets are taken as they are.
        """
        self._split = split
        self._info = info
        self._device = device
        self._seed = seed
        self._arrays: Tensors | None = None
        self._ahead: Prefetcher | None = None
        if isinstance(split, Arrays | ArraySplit):  # to ask the protocol takes 12 us
            arrays = {name: _tensor(name, array) for name, array in self._learned(split.arrays).items()}
            self._resident = _fits(arrays, device)
            self._arrays = self._moved(arrays) if self._resident else arrays
        elif isinstance(split, SampleSplit):
            self._ahead = Prefetcher(split, seed, self._copied)

    def take(self, ids: Ids) -> Tensors:
        """Return samples on the device, without training's augmentation, (rows, ...) each."""
        return self.take_from(Samples(ids))

    def take_from(self, samples: Samples) -> Tensors:
        """Return samples on the device, (rows, ...) each."""
        ids = samples.ids
        if self._ahead is not None:
            batch: Tensors = self._ahead.take(samples)
            return batch
        if self._arrays is None:
            return self._copied(self._split.take(ids))
        index = torch.from_numpy(ids)  # (rows,)
        if self._resident:
            index = index.to(self._device, non_blocking=True)
            return {name: array.index_select(0, index) for name, array in self._arrays.items()}
        return self._moved({name: array.index_select(0, index) for name, array in self._arrays.items()})

    def expect(self, upcoming: Iterator[Samples]) -> None:
        """Say which samples will be taken next, in this order, instead of those announced before."""
        if self._ahead is not None:
            self._ahead.expect(upcoming)

    def close(self) -> None:
        """End the worker processes, if there are any."""
        if self._ahead is not None:
            self._ahead.close()

    def targets(self, ids: Ids, batch: Tensors) -> Array | None:
        """Return the targets of samples as the data hold them, if they are values: (rows, ...) float64.

        Args:
            ids: (rows,) the positions of the samples.
            batch: What `take` returned for them.
        """
        if isinstance(self._split, Arrays | ArraySplit):
            return self._split.arrays[TARGET][ids] if self._holds_values(self._split.arrays) else None
        return batch.targets if isinstance(batch, Taken) else None

    def _holds_values(self, arrays: Batch) -> bool:
        is_target = TARGET in arrays and (self._info is None or TARGET not in self._info.inputs)
        return is_target and arrays[TARGET].dtype == np.float64

    def _learned(self, arrays: Batch) -> Batch:
        """Return the arrays with the targets that a model learns, where they are values."""
        if self._info is None or not self._holds_values(arrays):
            return arrays
        return {**arrays, TARGET: learned(arrays[TARGET], self._info)}

    def _copied(self, batch: Batch) -> Tensors:
        """Return a copy of arrays on the device; they may be views of memory that is used again."""
        arrays = self._learned(batch)
        if STRUCTURE in arrays:
            return Taken(restored(arrays, self._leaf))
        if self._device.type != "cuda":
            taken = Taken({name: _tensor(name, np.array(array)) for name, array in arrays.items()})
        else:
            taken = Taken(self._moved({name: _pinned(name, array) for name, array in arrays.items()}))
        taken.targets = np.array(batch[TARGET]) if self._holds_values(batch) else None
        return taken

    def _leaf(self, name: str, array: Array) -> torch.Tensor:
        """Return a copy of an array that is part of a list or mapping."""
        if self._device.type != "cuda":
            return _tensor(name, np.array(array))
        return _pinned(name, array).to(self._device, non_blocking=True)

    def _moved(self, tensors: Tensors) -> Tensors:
        return {name: tensor.to(self._device, non_blocking=True) for name, tensor in tensors.items()}


def each(value: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a batch, or a part of it, with each of its tensors changed."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: each(one, change) for name, one in value.items()}
    return type(value)(each(one, change) for one in value) if isinstance(value, tuple | list) else value


def _tensor(name: str, array: Array) -> torch.Tensor:
    """Return a tensor with the memory of an array.

    Raises:
        DataError: Torch has no such dtype.
    """
    try:
        return torch.from_numpy(array)
    except TypeError as error:
        raise DataError(
            f"{name} given as {array.dtype}, shape {array.shape}; a model of torch takes numbers: encode "
            "them in the data set, or leave them out"
        ) from error


def _pinned(name: str, array: Array) -> torch.Tensor:
    """Return a copy in page-locked memory, from which a GPU can copy asynchronously."""
    view = _tensor(name, np.ascontiguousarray(array))
    return torch.empty(view.shape, dtype=view.dtype, pin_memory=True).copy_(view)


def _fits(arrays: Tensors, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    total = torch.cuda.get_device_properties(device).total_memory
    return sum(array.numel() * array.element_size() for array in arrays.values()) < _DEVICE_SHARE * total
