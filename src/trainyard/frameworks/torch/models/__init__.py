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

    A class is given its `params`, and besides, where its constructor has parameters of these names that `params` does not
    set: `in_features` (the number of features), `input_shape` (of one sample) and `out_features` (classes or values).

    Raises:
        ModelError: the class cannot be imported, is no `torch.nn.Module`, or its constructor refuses.
    """
    cls = _BUILT_IN.get(type_name) or _imported(type_name)
    if not (isinstance(cls, type) and issubclass(cls, torch.nn.Module)):
        raise ModelError(f"model {type_name}: not a subclass of torch.nn.Module")
    features = 1
    for length in info.input_shape:
        features *= length
    known = {"in_features": features, "input_shape": info.input_shape, "out_features": info.outputs}
    accepted = inspect.signature(cls).parameters
    ours = {name: value for name, value in known.items() if name in accepted and name not in params}
    try:
        return cls(**ours, **params)
    except Exception as error:
        # The user's values are not shown: one may be a secret from the environment.
        given = ", ".join([*(f"{name}={value!r}" for name, value in ours.items()), *(f"{name}=..." for name in params)])
        raise ModelError(f"model {type_name}: {cls.__name__}({given}) failed: {type(error).__name__}: {error}") from error


def _imported(path: str) -> Any:
    try:
        return import_path(path)
    except InputError as error:
        raise ModelError(f"model.type: {error}") from error
