"""Optimizers by name, and their update without torch's overhead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from trainwright.config.schema import TrainingConfig
from trainwright.errors import ModelError
from trainwright.frameworks.support.torch_imports import skip_compiler_import
from trainwright.frameworks.torch.optim.custom import build_custom
from trainwright.frameworks.torch.optim.groups import Group, parameter_groups
from trainwright.frameworks.torch.optim.lion import Lion
from trainwright.frameworks.torch.optim.muon import Muon, hidden_matrices
from trainwright.frameworks.torch.optim.several import Several
from trainwright.frameworks.torch.state.layout import is_dense

_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
    "adafactor": torch.optim.Adafactor,
    "lion": Lion,
}
_OURS = {*_CLASSES.values(), Muon, torch.optim.Muon}  # classes whose `step` needs nothing around it
# One kernel for all parameters: the fastest, on a CPU too. It pairs elements by their position in memory, so
# it is wrong for a parameter that is a view with gaps, whose moments have none.
_FUSED = {
    "cpu": {"adamw", "adam", "sgd", "adagrad", "muon"},
    "cuda": {"adamw", "adam", "sgd", "muon"},
}
_SPARSE = {"sgd", "adagrad"}  # accept sparse gradients; fused kernels do not


def build_optimizer(
    config: TrainingConfig,
    model: nn.Module,
    device: torch.device,
    sparse: Sequence[str] = (),
    *,
    groups: Sequence[Group] | None = None,
    whole: Collection[str] | None = None,
    updated: Callable[[nn.Parameter], nn.Parameter] = lambda one: one,
) -> torch.optim.Optimizer:
    """Build the optimizer that `training.optimizer` names.

    Args:
        config: The section `training` of the config.
        model: The module to train.
        device: The device of the parameters.
        sparse: Names of the modules whose gradients are sparse.
        groups: What `parameter_groups` has returned for the whole model, of which `model` may be a stage.
        whole: What `whole_parameters` has.
        updated: Returns what the optimizer updates in place of a parameter.

    Raises:
        ModelError: The optimizer rejects its options, or sparse gradients; or a pattern matches nothing.
    """
    if sparse:
        _refuse_dense_only(config, sparse)
    named = dict(model.named_parameters())
    groups = [
        {**group, "params": [updated(named[name]) for name in group["params"] if name in named]}
        for group in groups or parameter_groups(model, config)
    ]
    name, rate = config.optimizer.type, config.learning_rate
    if ":" in name:
        return build_custom(name, groups, config)
    options: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in config.optimizer.params.items()
        if value is not None
    }
    if name in _FUSED.get(device.type, ()) and not sparse and all(map(is_dense, model.parameters())):
        options["fused"] = True
    skip_compiler_import(torch.optim.Optimizer.add_param_group)
    try:
        if name == "muon":
            options.pop("exclude", None)
            matrices = whole_parameters(config, model) if whole is None else whole
            chosen = {id(updated(one)) for name, one in named.items() if name in matrices}
            return Muon(groups, chosen, rate, **options)
        return _CLASSES[name](groups, lr=rate, **options)
    except (ValueError, RuntimeError) as error:
        listed = ", ".join(f"{key}={value}" for key, value in config.optimizer.params.items())
        raise ModelError(f"training.optimizer: {name} rejects its options ({listed}): {error}") from error


def whole_parameters(config: TrainingConfig, model: nn.Module) -> set[str]:
    """Return the names of the parameters that the optimizer updates as a whole, not element by element.

    Raises:
        ModelError: A pattern matches nothing.
    """
    name, named = config.optimizer.type, dict(model.named_parameters())
    if name == "muon":
        matrices = hidden_matrices(model, config.optimizer.params.get("exclude") or ())
        return {name for name, one in named.items() if id(one) in matrices}
    return {*named} if name == "adafactor" or ":" in name else set()


def _refuse_dense_only(config: TrainingConfig, sparse: Sequence[str]) -> None:
    """Raise a ModelError unless torch's optimizer accepts sparse gradients, and has only dense state."""
    name, momentum = config.optimizer.type, config.optimizer.params.get("momentum")
    clips = config.max_grad_norm is not None or config.max_grad_value is not None or config.log_grad_norm
    if name not in _SPARSE or momentum or config.weight_decay or clips:
        raise ModelError(
            f"the gradients of {', '.join(sparse[:5])} are sparse: set sparse=False there, or use "
            "training.optimizer: adagrad, or sgd without momentum, with training.weight_decay: 0 and "
            "neither clipping nor log_grad_norm"
        )


def is_built_in(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether all state of an optimizer is tensors by parameter, as of those that have names here."""
    if isinstance(optimizer, Several):
        return all(map(is_built_in, optimizer.parts.values()))
    return type(optimizer) in _OURS


def update_of(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Return `optimizer.step` without what torch wraps around it; call it under `no_grad`.

    The bits are the same. It skips hooks and profiler ranges, which we do not use, and marks for the
    compiler, for which the first call would import all of `torch._dynamo`.
    """
    if isinstance(optimizer, Muon):
        return partial(_call_all, [update_of(part) for part in optimizer.parts])
    if isinstance(optimizer, Several):
        return partial(_call_all, [update_of(part) for part in optimizer.parts.values()])
    if not is_built_in(optimizer):
        return optimizer.step  # of the user's: it may need what torch wraps around it
    plain = partial(inspect.unwrap(type(optimizer).step), optimizer)
    groups = optimizer.param_groups
    if isinstance(optimizer, torch.optim.Adam) and not any(group["amsgrad"] for group in groups):
        return FusedAdam(optimizer, plain) if groups[0]["fused"] else plain
    if (
        isinstance(optimizer, torch.optim.SGD)
        and groups[0]["fused"]
        and any(one["momentum"] for one in groups)
    ):
        return FusedMomentum(optimizer, plain)
    return plain


def _call_all(updates: Sequence[Callable[[], None]]) -> None:
    for update in updates:
        update()


class FusedMomentum:
    """The update of a fused SGD with momentum, also of parameters that get their first gradient late.

    Torch's kernel takes either parameters that all have a momentum, or parameters none of which has one yet.
    """

    def __init__(self, optimizer: torch.optim.SGD, plain: Callable[[], Any]) -> None:
        self._optimizer = optimizer
        self._plain = plain
        self._is_complete = False  # whether all parameters have a momentum, which they keep

    def __call__(self) -> None:
        """Update the parameters from their gradients."""
        if self._is_complete:
            self._plain()
            return
        parameters = [parameter for group in self._optimizer.param_groups for parameter in group["params"]]
        old = {
            one for one in parameters if self._optimizer.state.get(one, {}).get("momentum_buffer") is not None
        }
        self._is_complete = len(old) == len(parameters)
        gradients = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
        for is_old in {parameter in old for parameter, _ in gradients}:
            for parameter, gradient in gradients:
                parameter.grad = gradient if (parameter in old) is is_old else None
            self._plain()


class FusedAdam:
    """The update of a fused Adam or AdamW, from lists that are gathered once.

    Torch's `step` gathers parameters, moments and counters again each time. For a small model that takes
    longer than the kernel itself.
    """

    def __init__(self, optimizer: torch.optim.Adam, plain: Callable[[], Any]) -> None:
        self._optimizer = optimizer
        self._plain = plain
        self._parts: list[_Gathered] = []
        self._counters: list[Tensor] = []
        self._without: list[
            Tensor
        ] = []  # parameters that had no gradient in the last step, such as frozen ones

    def __call__(self) -> None:
        """Update the parameters from their gradients."""
        gradients = [[parameter.grad for parameter in part.parameters] for part in self._parts]
        if (
            not self._is_current()
            or any(gradient is None for part in gradients for gradient in part)
            or any(parameter.grad is not None for parameter in self._without)
        ):
            self._gather()
            self._plain()
            self._fill()
            return
        torch._foreach_add_(self._counters, 1)
        for part, present in zip(self._parts, gradients, strict=True):
            options, (beta1, beta2) = part.options, part.options["betas"]
            kernel = torch._fused_adamw_ if options["decoupled_weight_decay"] else torch._fused_adam_
            kernel(
                part.parameters,
                cast(list[Tensor], present),
                part.first,
                part.second,
                [],
                part.counters,
                amsgrad=False,
                lr=options["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=options["weight_decay"],
                eps=options["eps"],
                maximize=False,
            )

    def _gather(self) -> None:
        """Gather the parameters that have a gradient now: one list for each group, device and dtype."""
        parts: dict[tuple[int, torch.device, torch.dtype], _Gathered] = {}
        self._without = []
        for index, group in enumerate(self._optimizer.param_groups):
            for parameter in group["params"]:
                if parameter.grad is None:
                    self._without.append(parameter)
                    continue
                key = (index, parameter.device, parameter.dtype)
                parts.setdefault(key, _Gathered(group)).parameters.append(parameter)
        self._parts = list(parts.values())

    def _fill(self) -> None:
        """Gather the moments and counters, which all parameters with a gradient have after an update."""
        state = self._optimizer.state
        for part in self._parts:
            part.first, part.second, part.counters = (
                [state[parameter][key] for parameter in part.parameters]
                for key in ("exp_avg", "exp_avg_sq", "step")
            )
        self._counters = [counter for part in self._parts for counter in part.counters]

    def _is_current(self) -> bool:
        """Return whether the lists still hold the optimizer's state, which a restore replaces."""
        if not self._parts:
            return False
        part = self._parts[0]
        return self._optimizer.state[part.parameters[0]]["exp_avg"] is part.first[0]


@dataclass
class _Gathered:
    """The arguments of a kernel of Adam: lists of one parameter group, device and dtype."""

    options: dict[str, Any]
    parameters: list[Tensor] = field(default_factory=list)
    first: list[Tensor] = field(default_factory=list)
    second: list[Tensor] = field(default_factory=list)
    counters: list[Tensor] = field(default_factory=list)
