"""Find state of a module that no checkpoint holds, by fingerprints of its attributes."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainwright.frameworks.support.fingerprint import Fingerprint, fingerprint, kept_by_class
from trainwright.frameworks.torch.generators import generators
from trainwright.frameworks.torch.state.layout import address, is_dense, local
from trainwright.require import home_of

INTERNAL = frozenset(vars(nn.Module()))  # parameters, buffers, hooks ... of every module
HOOKS = sorted(name for name in INTERNAL if name.endswith("_hooks"))
COMPILERS = frozenset({"_is_torch_compile", "_dynamo_static_input_type"})  # marks of `torch.compile`
_PARALLEL = "trainwright.frameworks.torch.parallel."  # what a strategy puts in place of methods
_FSDP = "torch.distributed.fsdp."
_COMPRESSED = {
    torch.sparse_csr: "row",
    torch.sparse_bsr: "row",
    torch.sparse_csc: "col",
    torch.sparse_bsc: "col",
}


def fingerprints(model: nn.Module) -> dict[str, str]:
    """Return a hash of each attribute of the modules that a checkpoint does not hold, by its dotted name.

    These are the attributes of modules, of their parameters and buffers, and of the user's classes, the
    hooks, and the global variables that the methods of these classes name. The memory of parameters and
    buffers is left out, and so are attributes that torch computes again in each forward pass, and modules
    that define `get_extra_state`.
    """
    memory = SavedMemory([*model.parameters(), *model.buffers()])
    device = next(model.parameters()).device
    shared = frozenset(id(part) for part in [*_shared_generators(device), *model.modules()])
    values = dict(_values(model))
    return dict(fingerprint(value, name, TorchFingerprint(shared, memory)) for name, value in values.items())


def optimizer_fingerprints(
    values: Mapping[str, Any], saved: Collection[Tensor], optimizer: Any
) -> dict[str, str]:
    """Return a hash of each value of an optimizer, without the memory that a checkpoint holds.

    Args:
        values: What may hold more than that, by name.
        saved: The parameters and buffers.
        optimizer: The optimizer, whose tensors by parameter are saved as well.
    """
    state = [one for held in optimizer.state.values() for one in _tensors(held)]
    memory, shared = SavedMemory([*saved, *state]), frozenset([id(optimizer), *map(id, saved)])
    return dict(fingerprint(value, name, TorchFingerprint(shared, memory)) for name, value in values.items())


def _tensors(held: Any) -> list[Tensor]:
    values = held.values() if isinstance(held, Mapping) else ()
    return [value for value in values if isinstance(value, Tensor)]


def _values(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield each value that may hold state that no checkpoint holds, with its dotted name."""
    classes: dict[type, None] = {}
    for prefix, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            continue
        classes[type(module)] = None
        skipped, dot = INTERNAL | COMPILERS | recomputed(module), f"{prefix}." if prefix else ""
        yield from (
            (f"{dot}{name}", value)
            for name, value in vars(module).items()
            if name not in skipped and not type(value).__module__.startswith(_PARALLEL)
        )
        yield from ((f"{dot}{name}", hooks) for name in HOOKS if (hooks := _hooks(module, name)))
        for name, tensor in {**module._parameters, **module._buffers}.items():
            attributes = {} if tensor is None else vars(tensor)
            yield from (
                (f"{dot}{name}.{attribute}", value)
                for attribute, value in attributes.items()
                if attribute not in COMPILERS
            )
            yield from ((f"{dot}{name}.{kind}", hooks) for kind, hooks in _tensor_hooks(tensor))
    for cls in classes:
        yield from kept_by_class(cls).items()


def _hooks(module: nn.Module, name: str) -> dict[Any, Any]:
    """Return the hooks of a module of one kind, without those that FSDP2 keeps there."""
    hooks: Mapping[Any, Any] = getattr(module, name)
    return {key: hook for key, hook in hooks.items() if not home_of(hook).startswith(_FSDP)}


def _tensor_hooks(tensor: Tensor | None) -> Iterator[tuple[str, list[Any]]]:
    """Yield the hooks on the gradient of a tensor, by their kind; ours come with each attempt."""
    for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        hooks = (getattr(tensor, kind, None) or {}).values()
        if own := [hook for hook in hooks if not home_of(hook).startswith("trainwright.")]:
            yield kind, own


def _shared_generators(device: torch.device) -> list[Any]:
    """Return the process's own generators, which Trainwright seeds or saves."""
    return [*generators(device), getattr(random, "_inst", None), getattr(np.random.mtrand, "_rand", None)]


def recomputed(module: nn.Module) -> set[str]:
    """Return the attributes that hooks of torch (`weight_norm`, pruning) compute before each forward pass."""
    hooks = [
        hook
        for hook in module._forward_pre_hooks.values()
        if type(hook).__module__.startswith("torch.nn.utils")
    ]
    return {str(getattr(hook, "name", getattr(hook, "_tensor_name", ""))) for hook in hooks}


class SavedMemory:
    """The memory of parameters and buffers, which a checkpoint holds."""

    def __init__(self, saved: Collection[Tensor] = ()) -> None:
        self._saved: dict[int, list[Tensor]] = {}  # by the address of their storage
        for tensor in saved:
            if tensor.layout == torch.strided:
                self._saved.setdefault(address(tensor), []).append(local(tensor.detach()))

    def rest(self, tensor: Tensor) -> Tensor:
        """Return the bytes of a tensor that are not saved, (bytes,) uint8."""
        tensor = local(tensor)
        storage = tensor.untyped_storage()
        saved = self._saved.get(storage.data_ptr(), []) if storage.nbytes() else []
        if any(is_dense(one) and _covers(one, tensor) for one in saved):
            return torch.empty(0, dtype=torch.uint8)
        own = _bytes_of(tensor, torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage))
        if not saved:
            return own.cpu().reshape(-1)
        is_saved = torch.zeros(storage.nbytes(), dtype=torch.bool)
        for one in saved:
            _bytes_of(one, is_saved).fill_(True)
        return own.cpu()[~_bytes_of(tensor, is_saved)]


def _covers(saved: Tensor, tensor: Tensor) -> bool:
    """Return whether a tensor lies within the memory of a saved one, which has no gaps."""
    start, end = (one.storage_offset() * one.element_size() for one in (tensor, saved))
    last = sum(stride * (size - 1) for stride, size in zip(tensor.stride(), tensor.shape, strict=True))
    stop = start + (last + 1) * tensor.element_size()
    return end <= start and stop <= end + saved.numel() * saved.element_size()


def _bytes_of(tensor: Tensor, memory: Tensor) -> Tensor:
    """Return a view of the bytes of a tensor in its storage, (..., bytes of an element), each one once."""
    size = tensor.element_size()
    shape = [1 if stride == 0 else count for count, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    strides = [stride * size for stride in tensor.stride()]
    return memory.as_strided([*shape, size], [*strides, 1], tensor.storage_offset() * size)


class TorchFingerprint(Fingerprint):
    """Hash a value with all that it contains, tensors included."""

    def __init__(self, shared: frozenset[int] = frozenset(), memory: SavedMemory | None = None) -> None:
        super().__init__(shared)
        self._memory = memory or SavedMemory()

    def _parts(self, value: Any) -> list[Any]:
        if isinstance(value, torch.Generator):
            if id(value) not in self._shared:
                self._hash.update(repr(value.get_state().tolist()).encode())
            return []
        return self._tensor(value) if isinstance(value, Tensor) else super()._parts(value)

    def _tensor(self, tensor: Tensor) -> list[Any]:
        """Hash a tensor; of a sparse one, return the tensors that it consists of."""
        if id(tensor) in self._seen:
            return []
        self._seen[id(tensor)] = tensor
        self._hash.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        if tensor.layout == torch.sparse_coo:
            return [tensor.detach()._indices(), tensor.detach()._values()]
        if (kind := _COMPRESSED.get(tensor.layout)) is not None:
            other = "col" if kind == "row" else "row"
            parts = (
                getattr(tensor.detach(), name)()
                for name in (f"c{kind}_indices", f"{other}_indices", "values")
            )
            return list(parts)
        if tensor.layout == torch.strided and not tensor.is_quantized:
            self._hash.update(self._memory.rest(tensor.detach()).contiguous().numpy().data)
        return list(vars(tensor).values())
