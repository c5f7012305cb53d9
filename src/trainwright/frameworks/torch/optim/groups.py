"""Parameter groups: which parameters have a learning rate, a weight decay or options of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from trainwright.config.schema import TrainingConfig
from trainwright.config.training import ParameterGroup
from trainwright.errors import ModelError
from trainwright.frameworks.torch.patterns import matching_parameters

NORMALIZATIONS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
# A key of a group that torch does not have: the share of the step's learning rate that its parameters have.
RATIO = "lr_ratio"
Group = dict[str, Any]


def parameter_groups(model: nn.Module, training: TrainingConfig) -> list[Group]:
    """Return the names of parameters as torch's optimizers take these: groups with an `lr_ratio` and so on.

    Parameters that are trained alike are one group, so that there are few. Their order is that of the model.

    Args:
        model: The whole module.
        training: The section `training`.

    Raises:
        ModelError: A pattern matches nothing, or the layers that `layer_decay` counts are not found.
    """
    own = _own_groups(model, training)
    factors = layer_factors(model, training.layer_decay) if training.layer_decay is not None else {}
    bare = _without_decay(model, training)
    groups: dict[str, Group] = {}
    for name, _ in model.named_parameters():
        group = own.get(name)
        decay = training.weight_decay if group is None or group.weight_decay is None else group.weight_decay
        settings = {
            RATIO: _ratio(group, training) * factors.get(name, 1.0),
            "weight_decay": 0.0 if name in bare else decay,
            **_options(group),
        }
        groups.setdefault(repr(settings), {"params": [], **settings})["params"].append(name)
    return list(groups.values())


def layer_factors(model: nn.Module, decay: float) -> dict[str, float]:
    """Return the factor on the learning rate of each parameter by name: `decay` to the power of its height.

    The blocks are the members of the outermost `nn.ModuleList` or `nn.Sequential` objects that have at least
    two members with parameters, in the order of definition. What is defined before the first block (such as
    embeddings) is a layer below them; what comes after the last (such as the head) is one above them; what
    lies between belongs to the block before it. The highest layer has the factor 1. (A module's own
    parameters come before those of its parts.)

    Raises:
        ModelError: The model has no such blocks.
    """
    blocks = _blocks(model)
    if not blocks:
        raise ModelError(
            "training.layer_decay: the model has no nn.ModuleList or nn.Sequential of two layers with "
            "parameters; write training.parameter_groups with an lr_ratio for each layer"
        )
    depths: dict[str, int] = {}
    last = 0
    for name, _ in model.named_parameters():
        own = next((number for number, block in enumerate(blocks, 1) if name.startswith(f"{block}.")), None)
        is_above = own is None and last == len(blocks)
        last = last if own is None else own
        depths[name] = len(blocks) + 1 if is_above else last
    top = max(depths.values())
    return {name: decay ** (top - depth) for name, depth in depths.items()}


def _blocks(module: nn.Module, prefix: str = "") -> list[str]:
    """Return the names of the blocks that `layer_factors` counts."""
    trained = [(name, part) for name, part in module.named_children() if any(True for _ in part.parameters())]
    if isinstance(module, nn.ModuleList | nn.Sequential) and len(trained) > 1:
        return [f"{prefix}{name}" for name, _ in trained]
    return [block for name, part in trained for block in _blocks(part, f"{prefix}{name}.")]


def _own_groups(model: nn.Module, training: TrainingConfig) -> dict[str, ParameterGroup]:
    """Return the group that each parameter is in: the first one that matches it."""
    own: dict[str, ParameterGroup] = {}
    for index, group in enumerate(training.parameter_groups):
        for name in matching_parameters(model, group.match, f"training.parameter_groups.{index}.match"):
            own.setdefault(name, group)
    return own


def _ratio(group: ParameterGroup | None, training: TrainingConfig) -> float:
    if group is None:
        return 1.0
    if group.learning_rate is not None:
        return group.learning_rate / training.learning_rate
    return 1.0 if group.lr_ratio is None else group.lr_ratio


def _options(group: ParameterGroup | None) -> Mapping[str, Any]:
    options = {} if group is None else group.options
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def _without_decay(model: nn.Module, training: TrainingConfig) -> set[str]:
    """Return the names of the parameters that `training.no_decay` names."""
    if isinstance(training.no_decay, list):
        return matching_parameters(model, training.no_decay, "training.no_decay")
    if training.no_decay == "none":
        return set()
    normalizing = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, NORMALIZATIONS)
        for parameter in module.parameters(recurse=False)
    }
    return {
        name
        for name, parameter in model.named_parameters()
        if parameter.ndim < 2 or id(parameter) in normalizing
    }
