"""Optimizers by name."""

from __future__ import annotations

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
    return _CLASSES[name](parameters, lr=config.learning_rate, weight_decay=config.weight_decay, **options)
