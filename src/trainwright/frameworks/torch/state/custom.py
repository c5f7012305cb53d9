"""The state of a user's losses and optimizers: attributes, buffers and parameters, as named tensors."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from trainwright.frameworks.support.fingerprint import Fingerprint
from trainwright.frameworks.support.object_state import Captured, Kinds, NotPlainError, ObjectState, none
from trainwright.frameworks.torch.state.files import load_tensors
from trainwright.frameworks.torch.state.json_tensors import from_tensor, to_tensor
from trainwright.frameworks.torch.state.layout import address, copy_into, is_dense, with_strides
from trainwright.frameworks.torch.state.snapshot import Tensors, has_dtype
from trainwright.frameworks.torch.state.unsaved import (
    COMPILERS,
    HOOKS,
    INTERNAL,
    SavedMemory,
    TorchFingerprint,
)

LOSS_FILE = "loss.safetensors"
TRAINED_LOSS = "training_"  # before the name of a loss that is a part of the model: training_loss
_STATE, _EXTRA = "state", "extra state"


class TorchKinds(Kinds):
    """The kinds of torch: modules, optimizers, tensors and generators."""

    def is_holder(self, value: Any) -> bool:
        """Return whether a value is a module, an optimizer, or an object of a class of the user's."""
        return isinstance(value, nn.Module | torch.optim.Optimizer) or super().is_holder(value)

    def attributes(self, holder: Any) -> dict[str, Any]:
        """Return the attributes of a holder; of a module also its parameters, buffers, parts and hooks."""
        attributes = super().attributes(holder)
        if not isinstance(holder, nn.Module):
            return attributes
        if type(holder).get_extra_state is not nn.Module.get_extra_state:
            attributes = {_EXTRA: holder.get_extra_state()}
        own = {name: value for name, value in attributes.items() if name not in INTERNAL | COMPILERS}
        hooks = {name: value for name in HOOKS if (value := getattr(holder, name))}
        parts = {**holder._parameters, **holder._buffers, **holder._modules}
        return {**own, **hooks, **parts, "training": holder.training}

    def set(self, holder: Any, name: str, value: Any) -> None:
        """Give a holder an attribute; a buffer or parameter stays one."""
        if name == _EXTRA:
            holder.set_extra_state(value)
        elif isinstance(holder, nn.Module) and name in holder._buffers:
            holder._buffers[name] = value
        elif isinstance(holder, nn.Module) and name in holder._parameters:
            holder._parameters[name] = value
        else:
            super().set(holder, name, value)

    def delete(self, holder: Any, name: str) -> None:
        """Take an attribute from a holder."""
        delattr(holder, name)

    def leaf(self, value: Any) -> tuple[Any, Any] | None:
        """Return how a tensor or generator is made again, and its values."""
        if isinstance(value, torch.Generator):
            return {"generator": value.device.type}, value.get_state()
        if not isinstance(value, Tensor):
            return None
        if (
            type(value) not in (Tensor, nn.Parameter, nn.Buffer)
            or is_lazy(value)
            or value.grad_fn is not None
            or value.layout != torch.strided
            or value.is_quantized
            or not has_dtype(value)
            or not is_dense(value)
            or vars(value).keys() - COMPILERS
        ):
            raise NotPlainError
        how: dict[str, Any] = {"device": value.device.type, "shape": list(value.shape)}
        if not value.is_contiguous():
            how["strides"] = list(value.stride())
        if type(value) is nn.Parameter or value.requires_grad:
            how["parameter" if type(value) is nn.Parameter else "leaf"] = value.requires_grad
        return how, value.detach()

    def made(self, how: Any, values: Any, live: Any) -> Any:
        """Return the tensor or generator with some values; `live` itself where it can hold them."""
        if "generator" in how:
            generator = live if isinstance(live, torch.Generator) else torch.Generator(how["generator"])
            generator.set_state(values)
            return generator
        strides = how.get("strides")
        device = live.device if isinstance(live, Tensor) else torch.device(how["device"])
        if isinstance(live, Tensor) and not is_lazy(live) and self._fits(how, values, live):
            with torch.no_grad():
                copy_into(live, values)
            return live
        tensor = with_strides(values.clone(), strides, device)
        if "parameter" in how:
            return nn.Parameter(tensor, requires_grad=how["parameter"])
        return tensor.requires_grad_(how.get("leaf", False))

    @staticmethod
    def _fits(how: Any, values: Tensor, live: Tensor) -> bool:
        wanted = how.get("strides")
        same_layout = live.is_contiguous() if wanted is None else list(live.stride()) == wanted
        is_same = (
            live.shape == values.shape and live.dtype == values.dtype and live.device.type == how["device"]
        )
        return is_same and same_layout and isinstance(live, nn.Parameter) == ("parameter" in how)

    def memory(self, value: Any) -> int:
        """Return the address of the memory of a tensor."""
        return address(value) if isinstance(value, Tensor) else 0

    def stored(self, array: np.ndarray[Any, Any]) -> Any:
        """Return bytes as a tensor."""
        return torch.from_numpy(array)

    def loaded(self, values: Any) -> np.ndarray[Any, Any]:
        """Return the bytes of a tensor."""
        return np.asarray(values.cpu().numpy())

    def copied(self, values: Any) -> Any:
        """Return a copy of a tensor."""
        return values.clone()

    def equal(self, one: Any, other: Any) -> bool:
        """Return whether two tensors have the same bytes."""
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        pair = [tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
        return torch.equal(pair[0], pair[1].to(pair[0].device))

    def hasher(self, shared: frozenset[int]) -> Fingerprint:
        """Return what hashes tensors, too."""
        return TorchFingerprint(shared)


class OptimizerKinds(TorchKinds):
    """Those of an optimizer, whose state and groups are saved apart.

    Args:
        optimizer: The optimizer.
        apart: Names of its attributes that are not looked at.
        saved: Returns the tensors that are saved elsewhere.
    """

    def __init__(
        self, optimizer: Any, apart: Collection[str], saved: Callable[[], Collection[Tensor]]
    ) -> None:
        self._optimizer, self._apart, self._saved = optimizer, apart, saved

    def attributes(self, holder: Any) -> dict[str, Any]:
        """Return the attributes of a holder; of the optimizer itself, those that the user gave it."""
        attributes = super().attributes(holder)
        if holder is not self._optimizer:
            return attributes
        return {name: value for name, value in attributes.items() if name not in self._apart}

    def hasher(self, shared: frozenset[int]) -> Fingerprint:
        """Return what hashes values without the memory that is saved elsewhere."""
        return TorchFingerprint(shared, SavedMemory(self._saved()))


class CustomLosses:
    """The losses of the user's that a run has built, each by name, and their state.

    Args:
        seed: Of the parameters of losses that are trained.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self._losses: dict[str, Any] = {}
        self.trained: dict[str, nn.Module] = {}
        self._states: dict[str, ObjectState] = {}
        self._loaded: Tensors = {}

    def __getitem__(self, name: str) -> Any:
        return self._losses.get(name)

    def keep(self, name: str, loss: nn.Module) -> None:
        """Take in a loss with parameters to train, which becomes a part of the model, with its state."""
        self._losses[name] = loss
        self.trained[name] = loss

    def add(self, name: str, loss: Any, holder: Any) -> None:
        """Take in a loss as it was built, and what holds its state; what was loaded for it is restored."""
        self._losses[name] = loss
        self._states[name] = ObjectState(holder, TorchKinds(), shared_generators)
        if self._loaded:
            self._load(name)

    def tensors(self) -> Tensors:
        """Return what has changed in the losses since they were built; empty if nothing has."""
        tensors: Tensors = {}
        for name, state in self._states.items():
            saved, arrays = state.files()
            if saved:
                tensors[f"{name}/{_STATE}"] = to_tensor(saved)
                tensors |= {f"{name}/{at}": one for at, one in arrays.items()}
        return tensors

    def load(self, folder: Path) -> None:
        """Restore what `tensors` returned from the file in a folder; without one, the losses are as built."""
        self._loaded = load_tensors(folder, LOSS_FILE, optional=True)
        for name in self._states:
            self._load(name)

    def held(self) -> Mapping[str, Captured]:
        """Return a copy of the state, for `put_back`."""
        return {name: state.held() for name, state in self._states.items()}

    def put_back(self, held: Mapping[str, Captured]) -> None:
        """Give the losses the state that `held` returned; those that were built since are as built."""
        for name, state in self._states.items():
            state.put_back(held.get(name, state.initial))

    def unsaved(self, *, has_one_process: bool = True) -> dict[str, str]:
        """Return a hash of each part of the state that no checkpoint holds, by name.

        With several processes, none holds all: each changes a loss by its own part of the batch.
        """
        return {
            f"{name}.{at}": sha256
            for name, state in self._states.items()
            for at, sha256 in (state.unsaved() if has_one_process else state.unsaved(none)).items()
        }

    def _load(self, name: str) -> None:
        own = {
            at.removeprefix(f"{name}/"): one for at, one in self._loaded.items() if at.startswith(f"{name}/")
        }
        saved = from_tensor(own.pop(_STATE)) if _STATE in own else ()
        self._states[name].load(saved, own)


def shared_generators() -> dict[str, Any]:
    """Return the process's own generators, which each step seeds."""
    return {
        "random": getattr(random, "_inst", None),
        "numpy": getattr(np.random.mtrand, "_rand", None),
        "torch": torch.default_generator,
    }
