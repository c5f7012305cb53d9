"""The optimizers that `training.optimizers` names: which parameters each updates, and with which options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import nn

from trainwright.config.schema import OptimizerConfig, TrainingConfig
from trainwright.errors import ModelError
from trainwright.frameworks.torch.optim.build import build_optimizer, whole_parameters
from trainwright.frameworks.torch.optim.freezing import frozen_until
from trainwright.frameworks.torch.optim.groups import RATIO, Group, parameter_groups
from trainwright.frameworks.torch.optim.several import Several
from trainwright.frameworks.torch.patterns import matching_parameters
from trainwright.numerals import listed


def owners(model: nn.Module, training: TrainingConfig) -> dict[str, str]:
    """Return which optimizer updates each parameter, by the names of both.

    Raises:
        ModelError: A pattern matches nothing, or a parameter has two optimizers, or none and is not frozen.
    """
    owner: dict[str, str] = {}
    for optimizer, config in training.optimizers.items():
        matched = matching_parameters(model, config.match, f"training.optimizers.{optimizer}.match")
        for name in (name for name, _ in model.named_parameters() if name in matched):
            if name in owner:
                raise ModelError(
                    f"training.optimizers: {owner[name]} and {optimizer} both match the parameter {name}; "
                    "each is updated by one"
                )
            owner[name] = optimizer
    until = frozen_until(model, training.freeze)
    left = [
        name
        for name, one in model.named_parameters()
        if one.requires_grad and name not in owner and until.get(name) != float("inf")
    ]
    if left:
        raise ModelError(
            f"training.optimizers: no optimizer updates the parameter {left[0]}"
            f"{f', and {len(left) - 1} more' if left[1:] else ''}: add a pattern for it to one of "
            f"{listed(list(training.optimizers))}, or name it in training.freeze"
        )
    return owner


def whole_of_several(training: TrainingConfig, model: nn.Module) -> set[str]:
    """Return the names of the parameters that are not updated element by element; see `whole_parameters`."""
    if not training.optimizers:
        return whole_parameters(training, model)
    owner = owners(model, training)
    return {
        parameter
        for name in training.optimizers
        for parameter in whole_parameters(_own(training, name), model)
        if owner.get(parameter) == name
    }


def build_several(
    training: TrainingConfig,
    model: nn.Module,
    device: torch.device,
    sparse: Sequence[str],
    *,
    whole: Collection[str],
    updated: Callable[[nn.Parameter], nn.Parameter],
) -> Several:
    """Build the optimizers of `training.optimizers` as one; see `build_optimizer` for the arguments.

    Raises:
        ModelError: See `owners` and `build_optimizer`.
    """
    owner, parts = owners(model, training), dict[str, torch.optim.Optimizer]()
    for name in training.optimizers:
        own = _own(training, name)
        ratio = own.learning_rate / training.learning_rate
        groups: list[Group] = [
            {**group, RATIO: group[RATIO] * ratio, "params": named}
            for group in parameter_groups(model, own)
            if (named := [one for one in group["params"] if owner.get(one) == name])
        ]
        parts[name] = build_optimizer(own, model, device, sparse, groups=groups, whole=whole, updated=updated)
    return Several(parts)


def _own(training: TrainingConfig, name: str) -> TrainingConfig:
    """Return the section `training` as one of its optimizers has it."""
    config = training.optimizers[name]
    own: dict[str, Any] = {"optimizer": OptimizerConfig(type=config.type, params=config.params)}
    for key in ("learning_rate", "weight_decay"):
        if (value := getattr(config, key)) is not None:
            own[key] = value
    return training.model_copy(update=own)
