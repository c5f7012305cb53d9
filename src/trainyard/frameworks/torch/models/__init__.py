"""The built-in models, and how a model is made from its name or import path."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from trainyard.errors import InputError, ModelError
from trainyard.frameworks.torch.models.cnn import Cnn
from trainyard.frameworks.torch.models.gpt import Gpt
from trainyard.frameworks.torch.models.mlp import Mlp
from trainyard.frameworks.torch.models.resnet import Resnet, resnet18, resnet34, resnet50
from trainyard.frameworks.torch.models.transformer import Transformer
from trainyard.require import import_path
from trainyard.types import INPUT_IDS, DataInfo

_BUILT_IN: dict[str, Callable[..., torch.nn.Module]] = {
    "cnn": Cnn,
    "gpt": Gpt,
    "mlp": Mlp,
    "resnet": Resnet,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "transformer": Transformer,
}


def build_model(type_name: str, params: Mapping[str, Any], info: DataInfo) -> torch.nn.Module:
    """Build the model that `model.type` names.

    A class, or a function that makes a model, is called with `params`. It is also passed those of the
    following arguments that it accepts and that `params` does not set: `in_features` (number of features),
    `input_shape` (of one sample), `image_shape` (the same, or that of the images which flat rows are known
    to hold), `out_features` (number of classes, values or labels), `vocab_size` (number of different tokens)
    and `context_length` (of a sequence of tokens).

    Raises:
        ModelError: The model cannot be imported, its constructor fails, or it is not a `torch.nn.Module`.
    """
    make = _BUILT_IN.get(type_name) or _imported(type_name)
    if isinstance(make, torch.nn.Module):
        raise ModelError(
            f"model {type_name} is an object, whose weights no seed determines: "
            "name its class, or a function that makes it"
        )
    if not callable(make):
        raise ModelError(
            f"model {type_name} is of type {type(make).__name__}; a subclass of torch.nn.Module is needed"
        )
    features = 1
    for length in info.input_shape:
        features *= length
    shape = info.input_shape
    known = {"in_features": features, "input_shape": shape, "out_features": info.outputs}
    known |= {"image_shape": info.image_shape or shape}
    if INPUT_IDS in info.inputs:
        known |= {"vocab_size": info.outputs, "context_length": info.inputs[INPUT_IDS].shape[0]}
    elif make is _BUILT_IN["gpt"]:
        raise ModelError(f"model {type_name} needs text: data.type: text, or arrays named {INPUT_IDS}")
    accepted = inspect.signature(make).parameters
    if type_name in _BUILT_IN:  # an option that is not set has its default
        params = {name: value for name, value in params.items() if value is not None}
    added = {name: value for name, value in known.items() if name in accepted and name not in params}
    try:
        model = make(**added, **params)
    except Exception as error:
        # The user's values are not shown: one may be a secret from the environment.
        call = ", ".join(
            [*(f"{name}={value!r}" for name, value in added.items()), *(f"{name}=..." for name in params)]
        )
        raise ModelError(
            f"model {type_name}: {make.__name__}({call}) failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"model {type_name}: it gives a {type(model).__name__}, not a torch.nn.Module")
    return model


def _imported(path: str) -> Any:
    try:
        return import_path(path)
    except InputError as error:
        raise ModelError(f"model.type: {error}") from error
