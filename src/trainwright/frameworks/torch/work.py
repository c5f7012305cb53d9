"""The number of multiplications of a model for a sample, as far as its options tell; needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import prod
from typing import Any

from trainwright.config.schema import RunConfig
from trainwright.frameworks.torch.params import MODELS
from trainwright.types import DataInfo

PASSES = 3  # the backward pass costs twice as much as the forward pass
_PER_WEIGHT = ("Linear", "LayerNorm", "RMSNorm", "BatchNorm1d")  # modules that use each weight once a sample


def of_config(config: RunConfig, info: DataInfo) -> float | None:
    """Return the multiplications of a forward pass of one sample; None for the user's own module."""
    count, params = _COUNTS.get(config.model.type), config.model.params
    if count is None:
        return None
    return count(MODELS[config.model.type](**params).model_dump(), info)


def of_module(model: Any) -> float | None:
    """Return the same of a module; None if it has weights of no shape, or that are used more than once."""
    total = 0
    for module in model.modules():
        parameters = list(module.parameters(recurse=False))
        if any(hasattr(parameter, "materialize") for parameter in parameters):
            return None
        weights = sum(parameter.numel() for parameter in parameters)
        if weights and type(module).__name__ not in _PER_WEIGHT:
            return None
        total += weights
    return float(total)


def _mlp(params: Mapping[str, Any], info: DataInfo) -> float:
    widths = [prod(info.input_shape), *params["hidden"], info.outputs]
    return float(sum(one * other for one, other in pairwise(widths)))


def _transformer(params: Mapping[str, Any], info: DataInfo) -> float:
    return _layers(params, 1 + prod(info.input_shape)) + float(params["hidden_size"]) * info.outputs


def _gpt(params: Mapping[str, Any], info: DataInfo) -> float:
    length, hidden = prod(info.input_shape), params["hidden_size"]
    shared = (params["num_kv_heads"] or params["num_heads"]) / params["num_heads"]
    width = params["intermediate_size"] or 4 * hidden
    matrices = 2
    if params["activation"] == "swiglu":
        width, matrices = params["intermediate_size"] or 8 * hidden / 3, 3
    weights = (2 + 2 * shared) * hidden**2 + matrices * hidden * width  # of a layer
    layers = params["num_layers"] * length * (weights + 2 * length * hidden)
    return float(layers + length * hidden * info.outputs)


def _text_transformer(params: Mapping[str, Any], info: DataInfo) -> float:
    length, hidden = prod(info.input_shape), params["hidden_size"]
    width = params["intermediate_size"] or 4 * hidden
    weights = 4 * hidden**2 + 2 * hidden * width  # of a layer
    layers = params["num_layers"] * length * (weights + 2 * length * hidden)
    return float(layers + hidden * info.outputs)


def _lstm(params: Mapping[str, Any], info: DataInfo) -> float:
    hidden, directions = params["hidden_size"], 1 + params["bidirectional"]
    widths = [params["embedding_dim"], *[directions * hidden] * (params["num_layers"] - 1)]
    weights = sum(4 * hidden * (width + hidden) for width in widths)
    return float(prod(info.input_shape) * directions * weights + directions * hidden * info.outputs)


def _layers(params: Mapping[str, Any], tokens: int) -> float:
    """Return the multiplications of the layers of a transformer: 12 h^2 and attention for each token."""
    hidden = params["hidden_size"]
    return float(params["num_layers"] * tokens * (12 * hidden**2 + 2 * tokens * hidden))


_COUNTS: Mapping[str, Callable[[Mapping[str, Any], DataInfo], float]] = {
    "mlp": _mlp,
    "transformer": _transformer,
    "gpt": _gpt,
    "lstm": _lstm,
    "text_transformer": _text_transformer,
}
