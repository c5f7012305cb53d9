"""Optimizers by name, and their update without torch's overhead."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch.optim.adam import adam

from trainyard.config.schema import TrainingConfig
from trainyard.errors import ModelError
from trainyard.frameworks.torch.layout import is_dense
from trainyard.frameworks.torch.lion import Lion

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
# One kernel for all parameters: the fastest, on a CPU too. It pairs elements by their position in memory, so
# it is wrong for a parameter that is a view with gaps, whose moments have none.
_FUSED = {"adamw", "adam", "sgd", "adagrad"}
_SPARSE = {"sgd", "adagrad"}  # accept sparse gradients; fused kernels do not


def build_optimizer(
    config: TrainingConfig,
    parameters: Iterable[torch.nn.Parameter],
    device: torch.device,
    sparse: Sequence[str] = (),
) -> torch.optim.Optimizer:
    """Build the optimizer that `training.optimizer` names.

    Args:
        config: The section `training` of the config.
        parameters: The parameters to train.
        device: The device of the parameters.
        sparse: Names of the modules whose gradients are sparse.

    Raises:
        ModelError: The optimizer refuses its options, or sparse gradients.
    """
    if sparse:
        _refuse_dense_only(config, sparse)
    options: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in config.optimizer.params.items()
        if value is not None
    }
    name, parameters = config.optimizer.type, list(parameters)
    if name in _FUSED and not sparse and device.type in ("cpu", "cuda") and all(map(is_dense, parameters)):
        options["fused"] = True
    skip_compiler_import()
    try:
        return _CLASSES[name](
            parameters, lr=config.learning_rate, weight_decay=config.weight_decay, **options
        )
    except (ValueError, RuntimeError) as error:
        listed = ", ".join(f"{key}={value}" for key, value in config.optimizer.params.items())
        raise ModelError(f"training.optimizer: {name} refuses its options ({listed}): {error}") from error


def _refuse_dense_only(config: TrainingConfig, sparse: Sequence[str]) -> None:
    """Raise a ModelError unless torch's optimizer accepts sparse gradients, and has only dense state."""
    name, momentum = config.optimizer.type, config.optimizer.params.get("momentum")
    if name not in _SPARSE or momentum or config.weight_decay or config.max_grad_norm is not None:
        raise ModelError(
            f"the gradients of {', '.join(sparse[:5])} are sparse: set sparse=False there, or use "
            "training.optimizer: adagrad, or sgd without momentum, with training.weight_decay: 0 and no "
            "training.max_grad_norm"
        )


def update_of(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Return `optimizer.step` without what torch wraps around it; call it under `no_grad`.

    The bits are the same. It skips hooks and profiler ranges, which we do not use, and marks for the
    compiler, for which the first call would import all of `torch._dynamo`.
    """
    plain = partial(inspect.unwrap(type(optimizer).step), optimizer)
    options = optimizer.param_groups[0]
    if isinstance(optimizer, torch.optim.Adam) and options["fused"] and not options["amsgrad"]:
        return FusedAdam(optimizer, plain)
    if isinstance(optimizer, torch.optim.SGD) and options["fused"] and options["momentum"]:
        return FusedMomentum(optimizer, plain)
    return plain


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
    """The update of a fused Adam or AdamW with one parameter group, from lists that are gathered once.

    Torch's `step` gathers parameters, moments and counters again each time. For a small model that takes
    longer than the kernel itself.
    """

    def __init__(self, optimizer: torch.optim.Adam, plain: Callable[[], Any]) -> None:
        self._optimizer = optimizer
        self._plain = plain
        self._options = optimizer.param_groups[0]
        self._parameters: list[torch.Tensor] = []
        self._state: list[list[torch.Tensor]] = [[], [], []]  # first and second moments, step counters

    def __call__(self) -> None:
        """Update the parameters from their gradients."""
        gradients = [parameter.grad for parameter in self._parameters]
        if not self._is_current() or any(gradient is None for gradient in gradients):
            self._plain()
            self._gather()
            return
        options, (first, second, counters) = self._options, self._state
        adam(
            self._parameters,
            cast(list[torch.Tensor], gradients),
            first,
            second,
            [],
            counters,
            fused=True,
            decoupled_weight_decay=options["decoupled_weight_decay"],
            amsgrad=False,
            beta1=options["betas"][0],
            beta2=options["betas"][1],
            lr=options["lr"],
            weight_decay=options["weight_decay"],
            eps=options["eps"],
            maximize=False,
        )

    def _gather(self) -> None:
        state, parameters = self._optimizer.state, self._options["params"]
        # A parameter has no state before its first gradient; until all have some, torch's `step` is used.
        self._parameters = parameters if all(state.get(parameter) for parameter in parameters) else []
        self._state = [
            [state[parameter][key] for parameter in self._parameters]
            for key in ("exp_avg", "exp_avg_sq", "step")
        ]

    def _is_current(self) -> bool:
        """Return whether the lists still hold the optimizer's state, which a restore replaces."""
        return (
            bool(self._parameters)
            and self._optimizer.state[self._parameters[0]]["exp_avg"] is self._state[0][0]
        )


def skip_compiler_import() -> None:
    """Keep an optimizer from importing `torch._dynamo`, which takes longer than importing torch.

    `Optimizer.add_param_group` marks itself as not to be compiled, and imports the compiler for that. We set
    the mark ourselves. A version of torch that keeps it elsewhere imports the compiler: only the start-up is
    slower.
    """
    function = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
    if function is not None and "torch._dynamo" not in sys.modules:
        function.__dynamo_disable = function
