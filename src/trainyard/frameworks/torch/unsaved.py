"""State of a module that no checkpoint holds, found by fingerprints of its attributes."""

from __future__ import annotations

import hashlib
import random
import sys
from collections import deque
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trainyard.frameworks.torch.step import generators

_INTERNAL = frozenset(vars(nn.Module()))  # parameters, buffers, hooks ... of every module
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic)
_LIBRARIES = frozenset({"torch", "numpy", *sys.stdlib_module_names})  # of their objects, only the type counts


def fingerprints(model: nn.Module, also: Collection[str] = ()) -> dict[str, str]:
    """Return a hash of each attribute of the modules that a checkpoint does not hold, by its dotted name.

    Left out are tensors that share the memory of a parameter or buffer, attributes that torch computes again
    in each forward pass, and the attributes of modules that define `get_extra_state`.

    Args:
        model: The module.
        also: Names of buffers to be treated as attributes.
    """
    buffers = dict(model.named_buffers(remove_duplicate=False))
    saved = [*model.parameters(), *(tensor for name, tensor in buffers.items() if name not in also)]
    addresses = frozenset(_address(tensor) for tensor in saved) - {0}
    shared = frozenset(id(generator) for generator in _shared_generators(next(model.parameters()).device))
    hashes = {name: _Fingerprint().of(buffers[name]) for name in also if name in buffers}
    for prefix, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            continue
        skipped = _INTERNAL | _recomputed(module)
        for name, value in vars(module).items():
            if name not in skipped:
                hashes[f"{prefix}.{name}" if prefix else name] = _Fingerprint(addresses, shared).of(value)
    return hashes


def _shared_generators(device: torch.device) -> list[Any]:
    """Return the process's own generators, which Trainyard seeds or saves."""
    return [*generators(device), getattr(random, "_inst", None), getattr(np.random.mtrand, "_rand", None)]


def _recomputed(module: nn.Module) -> set[str]:
    """Return the attributes that hooks of torch (`weight_norm`, pruning) compute before each forward pass."""
    hooks = [
        hook
        for hook in module._forward_pre_hooks.values()
        if type(hook).__module__.startswith("torch.nn.utils")
    ]
    return {str(getattr(hook, "name", getattr(hook, "_tensor_name", ""))) for hook in hooks}


class _Fingerprint:
    """Hash a value with all that it contains; of an object of a library hash only its type."""

    def __init__(self, saved: frozenset[int] = frozenset(), shared: frozenset[int] = frozenset()) -> None:
        self._saved = saved  # addresses of the memory that checkpoints hold
        self._shared = shared  # ids of the process's own generators
        self._seen: set[int] = set()
        self._hash = hashlib.sha256()

    def of(self, value: Any) -> str:
        """Return the hash of a value; one that cannot be read counts by its type."""
        try:
            self._add(value)
        except Exception:  # foreign containers may raise anything, and must not fail a run
            return type(value).__qualname__
        return self._hash.hexdigest()

    def _add(self, value: Any) -> None:
        self._hash.update(f"<{type(value).__qualname__}>".encode())
        if isinstance(value, _PLAIN):
            self._hash.update(repr(value).encode())
        elif isinstance(value, Tensor):
            self._add_tensor(value)
        elif isinstance(value, np.ndarray):
            self._add_array(value)
        elif (state := _generator_state(value)) is not None:
            if id(value) not in self._shared:
                self._hash.update(repr(state).encode())
        elif id(value) not in self._seen:
            self._seen.add(id(value))  # a container may contain itself
            for part in _parts(value):
                self._add(part)

    def _add_tensor(self, tensor: Tensor) -> None:
        self._hash.update(f"{tuple(tensor.shape)}".encode())
        if tensor.layout == torch.strided and not tensor.is_quantized and _address(tensor) not in self._saved:
            # (elements,)
            data = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
            self._hash.update(data.view(torch.uint8).numpy().data)

    def _add_array(self, array: np.ndarray[Any, Any]) -> None:
        self._hash.update(f"{array.shape} {array.dtype}".encode())
        if array.dtype.hasobject:
            self._add(array.ravel().tolist())
        else:
            self._hash.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr() if tensor.layout == torch.strided else 0


def _generator_state(value: Any) -> Any:
    """Return the state of a random generator, or None for another value."""
    if isinstance(value, torch.Generator):
        return value.get_state().tolist()
    if isinstance(value, np.random.Generator):
        return _listed(value.bit_generator.state)
    if isinstance(value, np.random.BitGenerator):
        return _listed(value.state)
    if isinstance(value, np.random.RandomState):
        return _listed(value.get_state(legacy=False))
    return value.getstate() if isinstance(value, random.Random) else None


def _listed(state: Any) -> Any:
    """Return the state with its arrays as lists, whose text is not abridged."""
    if isinstance(state, Mapping):
        return {key: _listed(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state


def _parts(value: Any) -> list[Any]:
    """Return the items of a container, or the attributes of an object whose class is the user's."""
    if isinstance(value, Mapping):
        return [len(value), *(part for item in value.items() for part in item)]
    if isinstance(value, list | tuple | deque):
        return [len(value), *value]
    if isinstance(value, set | frozenset):
        return sorted(repr(part) for part in value)
    own = type(value).__module__.partition(".")[0] not in _LIBRARIES
    own = own or isinstance(value, nn.Module | SimpleNamespace)
    return [vars(value)] if own and hasattr(value, "__dict__") else []
