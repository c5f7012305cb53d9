"""Modules of PyTorch in PMML: dense layers in a row."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from trainwright.errors import InputError
from trainwright.exporters.base import names_classes
from trainwright.exporters.pmml.networks import Layer, network
from trainwright.exporters.pmml.preparation import Features
from trainwright.exporters.pmml.xml import NEAREST, Element
from trainwright.types import DataInfo

_ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "rectifier",
    nn.Tanh: "tanh",
    nn.Sigmoid: "logistic",
}


def model_of(model: Any, info: DataInfo, features: Features, target: str) -> tuple[Element, Features]:
    """Return a module without its schema, and the features that it takes.

    Raises:
        InputError: It is not dense layers in a row.
    """
    module = model.predicting.module.cpu()
    layers: list[Layer] = []
    for one in _leaves(module):
        if isinstance(one, nn.Flatten | nn.Dropout | nn.Identity):
            continue
        if isinstance(one, nn.Linear):
            layers.append(_dense(one))
        elif isinstance(one, nn.BatchNorm1d) and layers and layers[-1].activation == "identity":
            layers[-1] = _normalized(layers[-1], one)
        elif type(one) in _ACTIVATIONS and layers and layers[-1].activation == "identity":
            layers[-1] = layers[-1]._replace(activation=_ACTIVATIONS[type(one)])
        else:
            raise InputError(f"there is no layer of PMML for {type(one).__name__}; {NEAREST}")
    if not names_classes(info):
        scale, mean = torch.as_tensor(info.target_scale), torch.as_tensor(info.target_mean)
        last = layers[-1]
        scaled = [(last.weights.T * scale.double().numpy()).T, last.bias * scale.double().numpy()]
        layers[-1] = Layer(scaled[0], scaled[1] + mean.double().numpy(), last.activation)
    return network(layers, features, info, target), features


def _leaves(module: nn.Module) -> list[nn.Module]:
    """Return the layers of a module that calls them in their order.

    Raises:
        InputError: It may do something else.
    """
    inner = list(module.children())
    if isinstance(module, nn.Sequential):
        return [leaf for one in inner for leaf in _leaves(one)]
    if not inner:
        return [module]
    # Our own MLP calls its only child; a module of the user may do more.
    is_ours = type(module).__module__.startswith("trainwright.")
    if is_ours and len(inner) == 1 and isinstance(inner[0], nn.Sequential):
        return _leaves(inner[0])
    raise InputError(f"PMML takes dense layers in a row, and {type(module).__name__} is none; {NEAREST}")


def _dense(one: nn.Linear) -> Layer:
    weights = one.weight.detach().double()
    bias = torch.zeros(len(weights)) if one.bias is None else one.bias.detach()
    return Layer(weights.numpy(), bias.double().numpy(), "identity")


def _normalized(layer: Layer, one: nn.BatchNorm1d) -> Layer:
    """Return a dense layer and the batch normalization after it as one layer."""
    if one.running_mean is None or one.running_var is None:
        raise InputError(f"batch normalization without running statistics cannot be PMML; {NEAREST}")
    scale = 1 / torch.sqrt(one.running_var.double() + one.eps)
    shift = -one.running_mean.double() * scale
    if one.affine:
        scale, shift = scale * one.weight.detach().double(), shift * one.weight.detach().double()
        shift = shift + one.bias.detach().double()
    factors = scale.numpy()
    return Layer(layer.weights * factors[:, None], layer.bias * factors + shift.numpy(), layer.activation)
