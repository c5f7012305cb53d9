"""A module that the user passed in Python: what training leaves as it was, copies of it, and its weights."""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainwright.errors import ModelError
from trainwright.frameworks.torch.precision import Precision
from trainwright.frameworks.torch.state import structure
from trainwright.frameworks.torch.state.definition import GRADIENT_HOOKS, definition_of_object, gradient_hooks
from trainwright.frameworks.torch.state.structure import Structure
from trainwright.frameworks.torch.state.training import TrainingState

log = logging.getLogger("trainwright")
_LOCKS = (type(threading.Lock()), type(threading.RLock()))


class PassedModule:
    """The module that a run trains in place, and what belongs to the user: its device, flags and modes.

    Where processes have parts of the module, they train a copy.

    Attributes:
        definition: The definition of the module before anything was done with it.

    Raises:
        ModelError: A parameter has no shape yet.
    """

    def __init__(self, module: nn.Module) -> None:
        _refuse_lazy(module)
        self.definition = definition_of_object(module)
        self._module = module
        self._structure = Structure.of(module)
        self._devices = {tensor.device for tensor in (*module.parameters(), *module.buffers())}

    def release(self) -> None:
        """Give the module back: on its device, with its flags and modes, and without gradients."""
        self._module.zero_grad(set_to_none=True)
        self._structure.set_flags(self._module, {})
        if len(self._devices) == 1:
            self._module.to(next(iter(self._devices)))

    def changed(self) -> dict[str, str]:
        """Return the parts of the definition that are not what they were."""
        now = definition_of_object(self._module)
        return {name: value for name, value in now.items() if self.definition.get(name) != value}


def _refuse_lazy(module: nn.Module) -> None:
    lazy = (name for name, one in module.named_parameters() if hasattr(one, "materialize"))
    if name := next(lazy, ""):
        raise ModelError(f"model: parameter {name} has no shape yet: run one batch through the module first")


def copied(module: nn.Module) -> nn.Module:
    """Return a copy of a module, with the hooks of its parameters; the module itself if it cannot be copied.

    Generators, locks, and tensors that were computed (as `weight_norm` keeps one) are copied, too, which
    `copy.deepcopy` refuses.
    """
    memo: dict[int, Any] = {id(value): _copy_of(value) for value in _uncopyable(module)}
    try:
        copy_: nn.Module = copy.deepcopy(module, memo)
    except Exception as error:
        log.warning(
            "the model cannot be copied (%s: %s): your object itself is used, and its weights will change",
            type(error).__name__,
            error,
        )
        return module
    for original, parameter in zip(module.parameters(), copy_.parameters(), strict=True):
        for kind, hooks in gradient_hooks(original).items():
            for hook in hooks:
                getattr(parameter, GRADIENT_HOOKS[kind])(hook)
    return copy_


def copied_to_divide(module: nn.Module) -> nn.Module:
    """Return a copy of a module, of which processes keep parts; the module gets its weights from the run.

    Raises:
        ModelError: It cannot be copied.
    """
    copy_ = copied(module)
    if copy_ is module:
        raise ModelError(
            "model: an object that cannot be copied cannot be divided among processes; use "
            "distributed.strategy: ddp without tensor and pipeline"
        )
    return copy_


def _uncopyable(module: nn.Module) -> Iterator[Any]:
    """Yield the values of attributes that need a copy of our own."""
    for part in module.modules():
        for value in vars(part).values():
            is_computed = isinstance(value, Tensor) and not value.is_leaf
            if is_computed or isinstance(value, (torch.Generator, *_LOCKS)):
                yield value


def _copy_of(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return torch.Generator(value.device).set_state(value.get_state())
    if isinstance(value, Tensor):
        return value.detach().clone()
    return threading.Lock() if isinstance(value, _LOCKS[0]) else threading.RLock()


def check_sendable(module: nn.Module) -> None:
    """Refuse a module whose parameters have hooks, which pickle leaves out.

    Raises:
        ModelError: One has.
    """
    for name, parameter in module.named_parameters():
        if gradient_hooks(parameter):
            raise ModelError(
                f"model: parameter {name} has a hook, which does not travel to other processes: use a hook "
                "of its module (register_full_backward_hook), start your script with torchrun, or leave "
                "distributed.nproc out"
            )


def fill(module: nn.Module, folder: Path) -> None:
    """Give a module the weights that a snapshot wrote; its device, flags and modes stay as they are.

    Raises:
        ModelError: They do not fit it.
    """
    modes = structure.modes(module)
    device = next(module.parameters()).device
    TrainingState(module, None, Precision("fp32", device)).load(folder, weights_only=True)
    structure.set_modes(module, modes)
