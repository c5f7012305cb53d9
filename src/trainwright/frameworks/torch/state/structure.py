"""The structure of a module that training may change: its buffers, what is frozen, and its modes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from trainwright.errors import ModelError
from trainwright.frameworks.torch.state.layout import copy_into

Changes = dict[str, Any]  # JSON: `buffers`, `dropped`, `requires_grad`, `training`, each only if not empty
_Kind = tuple[tuple[int, ...], torch.dtype]
_LAZY: _Kind = ((-1,), torch.float32)  # torch gives such a buffer its shape when the first sample comes


@dataclass(frozen=True)
class Structure:
    """The structure of a module.

    Attributes:
        buffers: Shape and dtype of each buffer by name; None for one that is registered without a tensor.
        requires_grad: Of each parameter by name.
        training: The mode of each submodule by name.
    """

    buffers: Mapping[str, _Kind | None]
    requires_grad: Mapping[str, bool]
    training: Mapping[str, bool]

    @staticmethod
    def of(model: nn.Module) -> Structure:
        """Return the structure that a module has now."""
        return Structure(
            {name: None if buffer is None else _kind(buffer) for name, _, buffer in _buffers(model)},
            {name: parameter.requires_grad for name, parameter in model.named_parameters()},
            {name: module.training for name, module in model.named_modules()},
        )

    def changes(self, model: nn.Module, *, buffers_only: bool = False) -> Changes:
        """Return how a module that had this structure differs from it now.

        Raises:
            ModelError: A module that was added since has a buffer, which no new process could restore.
        """
        buffers, persistent = dict[str, _Kind | None](), set[str]()
        for name, is_persistent, buffer in _buffers(model):
            buffers[name] = None if buffer is None else _kind(buffer)
            persistent |= {name} if is_persistent else set()
        for name, kind in buffers.items():
            if kind is not None and name.rpartition(".")[0] not in self.training:
                raise ModelError(
                    f"buffer {name} belongs to a module that was added in training, so that no checkpoint "
                    "can restore it: create the module in __init__"
                )
        changed = [
            name
            for name, kind in buffers.items()
            if kind is not None and name in persistent and self.buffers.get(name) not in (kind, _LAZY)
        ]
        dropped = [name for name, kind in self.buffers.items() if kind and buffers.get(name) is None]
        changes: Changes = {"buffers": sorted(changed), "dropped": sorted(dropped)}
        if not buffers_only:
            now = Structure.of(model)
            changes |= {
                "requires_grad": _differences(self.requires_grad, now.requires_grad),
                "training": _differences(self.training, now.training),
            }
        return {key: value for key, value in changes.items() if value}

    def prepare_buffers(self, model: nn.Module, changes: Changes, saved: Mapping[str, Tensor]) -> None:
        """Give a module the buffers that the saved one had, so that their values can be loaded.

        Args:
            model: The module, which was built with this structure; it may have been trained since.
            changes: How the structure of the saved module differed.
            saved: The persistent buffers (and parameters) by name.
        """
        changed, dropped = set(changes.get("buffers", ())), set(changes.get("dropped", ()))
        for name, is_persistent, buffer in list(_buffers(model)):
            if name not in self.buffers and name not in changed:
                owner, _, leaf = name.rpartition(".")
                delattr(model.get_submodule(owner), leaf)
            elif buffer is not None and (name in dropped or self.buffers.get(name, _LAZY) is None):
                set_buffer(model, name, None, persistent=is_persistent)
        live = {name: buffer for name, _, buffer in _buffers(model)}
        persistent = {name for name, is_persistent, _ in _buffers(model) if is_persistent}
        wanted = {name: self.buffers[name] for name in self.buffers.keys() & persistent - dropped}
        wanted |= {name: _kind(saved[name]) for name in changed & saved.keys()}
        for name, kind in wanted.items():
            buffer = live.get(name)
            if kind is None or kind == _LAZY or (buffer is not None and _kind(buffer) in (kind, _LAZY)):
                continue
            device = next(model.parameters()).device if buffer is None else buffer.device
            set_buffer(model, name, torch.zeros(kind[0], dtype=kind[1], device=device), persistent=True)

    def set_flags(self, model: nn.Module, changes: Changes) -> None:
        """Freeze the parameters and set the modes of the submodules as the saved module had them."""
        frozen = {**self.requires_grad, **changes.get("requires_grad", {})}
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(frozen.get(name, parameter.requires_grad))
        set_modes(model, {**self.training, **changes.get("training", {})})


def modes(model: nn.Module) -> dict[str, bool]:
    """Return the mode of each submodule by name: whether it is in training."""
    return {name: module.training for name, module in model.named_modules()}


def set_modes(model: nn.Module, modes: Mapping[str, bool]) -> None:
    """Set the mode of each submodule by itself, where `Module.train` sets those of its parts as well."""
    for name, module in model.named_modules():
        if (mode := modes.get(name, module.training)) != module.training:
            module.training = mode


def set_buffer(model: nn.Module, name: str, value: Tensor | None, *, persistent: bool) -> None:
    """Register a buffer, or replace it.

    Raises:
        ModelError: The module has no such submodule, or something else of this name.
    """
    owner, _, leaf = name.rpartition(".")
    try:
        model.get_submodule(owner).register_buffer(leaf, value, persistent=persistent)
    except (AttributeError, KeyError) as error:
        raise ModelError(f"the checkpoint does not fit the model: buffer {name}: {error}") from error


class Held:
    """A copy of the buffers and the extra state of a module, to be put back."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        modules = list(model.modules())
        self._buffers = [
            (module, dict(module._buffers), set(module._non_persistent_buffers_set)) for module in modules
        ]
        held = [
            buffer for _, buffers, _ in self._buffers for buffer in buffers.values() if buffer is not None
        ]
        self._values = [(buffer, buffer.detach().clone()) for buffer in held]
        self._extra = [
            (module, copy.deepcopy(module.get_extra_state()))
            for module in modules
            if type(module).get_extra_state is not nn.Module.get_extra_state
        ]

    def has_changed(self) -> bool:
        """Return whether a buffer has another value than at first."""
        return any(not torch.equal(buffer, value) for buffer, value in self._values)

    def put_back(self) -> None:
        """Undo all changes of the buffers and of the extra state."""
        for module, buffers, not_persistent in self._buffers:
            module._buffers.clear()
            module._buffers.update(buffers)
            module._non_persistent_buffers_set = not_persistent
        with torch.no_grad():
            for buffer, value in self._values:
                copy_into(buffer, value)
        for module, state in self._extra:
            module.set_extra_state(state)


def _kind(buffer: Tensor) -> _Kind:
    return _LAZY if is_lazy(buffer) else (tuple(buffer.shape), buffer.dtype)


def _buffers(model: nn.Module) -> Iterator[tuple[str, bool, Tensor | None]]:
    """Yield the name of each buffer, whether it is persistent, and its tensor."""
    for prefix, module in model.named_modules():
        for name, buffer in module._buffers.items():
            is_persistent = name not in module._non_persistent_buffers_set
            yield f"{prefix}.{name}" if prefix else name, is_persistent, buffer


def _differences(before: Mapping[str, bool], now: Mapping[str, bool]) -> dict[str, bool]:
    """Return the flags that differ; a part that was added since has none to restore."""
    return {name: flag for name, flag in now.items() if before.get(name, flag) != flag}
