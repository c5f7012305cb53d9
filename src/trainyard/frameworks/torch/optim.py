"""Optimizers by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from trainyard.config.schema import TrainingConfig

_CLASSES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
}
# One kernel for all parameters: on a CPU, too, the fastest there is.
_FUSED = {"adamw", "adam", "sgd", "adagrad"}


def build_optimizer(
    config: TrainingConfig, parameters: Iterable[torch.nn.Parameter], device: torch.device
) -> torch.optim.Optimizer:
    """The optimizer that `training.optimizer` names."""
    options: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in config.optimizer.params.items()
    }
    name = config.optimizer.type
    if name in _FUSED and device.type in ("cpu", "cuda"):
        options["fused"] = True
    _spare_the_compiler()
    return _CLASSES[name](parameters, lr=config.learning_rate, weight_decay=config.weight_decay, **options)


def _spare_the_compiler() -> None:
    """Keeps the making of an optimizer from importing `torch._dynamo`, which takes longer than importing torch.

    `Optimizer.add_param_group` asks the compiler to leave it alone, and imports it for that. Where torch keeps that note,
    we write it ourselves; where it does not (another version), nothing changes but the start-up time.
    """
    function = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
    if function is not None and "torch._dynamo" not in sys.modules:
        function.__dynamo_disable = function
