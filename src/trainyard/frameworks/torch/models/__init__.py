"""The built-in models, and the user's own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from trainyard.errors import InputError, ModelError
from trainyard.frameworks.torch.models.mlp import Mlp
from trainyard.frameworks.torch.models.transformer import Transformer
from trainyard.require import import_path
from trainyard.types import DataInfo

_BUILT_IN: dict[str, type[torch.nn.Module]] = {"mlp": Mlp, "transformer": Transformer}


def build_model(type_name: str, params: Mapping[str, Any], info: DataInfo) -> torch.nn.Module:
    """The model that `model.type` names.

    A class, or a function that makes a model, is given its `params`, and besides, where it has parameters of these names that
    `params` does not set: `in_features` (the number of features), `input_shape` (of one sample) and `out_features` (classes or
    values).

    Raises:
        ModelError: it cannot be imported, fails, or gives no `torch.nn.Module`.
    """
    make = _BUILT_IN.get(type_name) or _imported(type_name)
    if isinstance(make, torch.nn.Module):
        raise ModelError(
            f"model {type_name} is an object, whose weights no seed tells: name its class, or a function that makes it"
        )
    if not callable(make):
        raise ModelError(
            f"model {type_name}: {type(make).__name__} given; a subclass of torch.nn.Module is needed"
        )
    features = 1
    for length in info.input_shape:
        features *= length
    known = {"in_features": features, "input_shape": info.input_shape, "out_features": info.outputs}
    accepted = inspect.signature(make).parameters
    ours = {name: value for name, value in known.items() if name in accepted and name not in params}
    try:
        model = make(**ours, **params)
    except Exception as error:
        # The user's values are not shown: one may be a secret from the environment.
        given = ", ".join(
            [*(f"{name}={value!r}" for name, value in ours.items()), *(f"{name}=..." for name in params)]
        )
        raise ModelError(
            f"model {type_name}: {make.__name__}({given}) failed: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"model {type_name}: it gives a {type(model).__name__}, not a torch.nn.Module")
    return model


def _imported(path: str) -> Any:
    try:
        return import_path(path)
    except InputError as error:
        raise ModelError(f"model.type: {error}") from error
