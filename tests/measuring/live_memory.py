"""Processes count the tensors that are live in their training steps, for the tests.

Each process writes the most bytes of each step into a file of the folder that `LIVE_MEMORY` names. The data
set and the copies for checkpoints are left out.
"""

import gc
import json
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.utils._python_dispatch import TorchDispatchMode

from trainwright.frameworks.torch.parallel.all_reduce import GradientAllReduce
from trainwright.frameworks.torch.state import snapshot
from trainwright.frameworks.torch.step import TorchStep


class Live(TorchDispatchMode):
    """Adds up the memory of all live tensors after each operation."""

    def __init__(self, left_out: set[int]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._left_out = left_out
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        for one in gc.get_objects():
            if issubclass(type(one), Tensor) and one.layout == torch.strided:
                self.add(one)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call an operation, and count what it makes."""
        output = function(*args, **(kwargs or {}))
        for one in output if isinstance(output, tuple | list) else (output,):
            if isinstance(one, Tensor):
                self.add(one)
        return output

    def add(self, tensor: Tensor) -> None:
        """Count a tensor's memory, which may have another size than before."""
        tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
        if tensor.is_meta:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            self.live += size - self._known[key][1]
        elif storage.data_ptr() in self._left_out:
            return
        else:
            self.live += size
        self._known[key] = weakref.ref(storage, lambda _: self._forget(key)), size
        self.peak = max(self.peak, self.live)

    def _forget(self, key: int) -> None:
        self.live -= self._known.pop(key)[1]


def measure(folder: Path) -> None:
    """Count in all steps of this process from now on."""
    plain, total, peaks = TorchStep.__call__, GradientAllReduce._total, []
    current: list[Live] = []
    saved: list[weakref.ref[Any]] = []  # storages of copies for checkpoints

    def noted(make: Any) -> Any:
        def made(*inputs: Any) -> Tensor:
            copy: Tensor = make(*inputs)
            saved.append(weakref.ref(copy.untyped_storage()))
            return copy

        return made

    def resized(change: Any) -> Any:
        def changed(tensor: Tensor) -> None:
            change(tensor)
            if current:
                current[0].add(tensor)

        return changed

    for name in ("alloc_storage", "free_storage"):  # of FSDP2, which no operation shows
        setattr(_fsdp_param, name, resized(getattr(_fsdp_param, name)))
    snapshot._copy, snapshot._touched = noted(snapshot._copy), noted(snapshot._touched)

    def step(self: TorchStep, number: int, lr: float, order: Any, source: Any) -> Any:
        left_out = [one.untyped_storage() for one in (source._arrays or {}).values()]
        left_out += [one for reference in saved if (one := reference()) is not None]
        current[:] = [Live({one.data_ptr() for one in left_out})]
        with current[0]:
            result = plain(self, number, lr, order, source)
        peaks.append(current[0].peak)
        (folder / f"{self._strategy.world.rank}.json").write_text(json.dumps(peaks))
        return result

    def summed(self: GradientAllReduce, *inputs: Any) -> Tensor:
        with current[0]:  # it runs in a thread of its own
            return total(self, *inputs)

    TorchStep.__call__, GradientAllReduce._total = step, summed  # type: ignore[method-assign]
