"""The built-in models, and how a model is made from its name or import path."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

from trainwright.errors import InputError, ModelError
from trainwright.frameworks.torch.huggingface import build as huggingface
from trainwright.frameworks.torch.models.cnn import Cnn
from trainwright.frameworks.torch.models.gpt import Gpt
from trainwright.frameworks.torch.models.lstm import Lstm
from trainwright.frameworks.torch.models.mlp import Mlp
from trainwright.frameworks.torch.models.resnet import Resnet, resnet18, resnet34, resnet50
from trainwright.frameworks.torch.models.text_transformer import TextTransformer
from trainwright.frameworks.torch.models.transformer import Transformer
from trainwright.frameworks.torch.models.unet import Unet
from trainwright.frameworks.torch.params import OF_TOKENS, TRANSFORMERS
from trainwright.plugins import task_for
from trainwright.require import import_path, kind_of
from trainwright.types import INPUT_IDS, DataInfo

# What the arguments of a constructor that must be given are often called.
_SIZES = {
    "in_features": ("input_dim", "input_size", "in_dim", "n_features", "num_features", "n_inputs", "d_in"),
    "out_features": (
        "output_dim",
        "output_size",
        "out_dim",
        "n_classes",
        "num_classes",
        "n_outputs",
        "d_out",
    ),
}
_BUILT_IN: dict[str, Callable[..., torch.nn.Module]] = {
    "cnn": Cnn,
    "gpt": Gpt,
    "lstm": Lstm,
    "mlp": Mlp,
    "resnet": Resnet,
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "text_transformer": TextTransformer,
    "transformer": Transformer,
    "unet": Unet,
}


def build_model(type_name: str, params: Mapping[str, Any], info: DataInfo) -> torch.nn.Module:
    """Build the model that `model.type` names.

    A class, or a function that makes a model, is called with `params`. It is also passed those of the
    following arguments that it accepts and that `params` does not set: `in_features` (number of features),
    `input_shape` (of one sample), `image_shape` (the same, or that of the images which flat rows are known
    to hold), `out_features` (number of classes, values or labels), `output_shape` (of the outputs for one
    sample), `vocab_size` (number of different tokens, if it is known) and `context_length` (of a sequence of
    tokens). Arguments without a default that are called `input_dim`, `num_classes` and the like are the
    number of features, and of outputs.

    Raises:
        ModelError: The model cannot be imported, its constructor fails, or it is not a `torch.nn.Module`.
    """
    if type_name in TRANSFORMERS:
        return huggingface.build(type_name, params, info)[0]
    make = find_model(type_name)
    if isinstance(make, torch.nn.Module):
        raise ModelError(
            f"model {type_name} is an object, whose weights no seed determines: "
            "name its class, or a function that makes it"
        )
    if not callable(make):
        raise ModelError(f"model {type_name} is {kind_of(make)}; a subclass of torch.nn.Module is needed")
    if type_name in _BUILT_IN:  # an option that is not set has its default
        params = {name: value for name, value in params.items() if value is not None}
    features = 1
    for length in info.input_shape:
        features *= length
    shape = info.input_shape
    known = {"in_features": features, "input_shape": shape, "out_features": info.outputs}
    known |= {"image_shape": info.image_shape or shape, "output_shape": task_for(info).output_shape}
    known |= _of_tokens(info)
    if type_name in OF_TOKENS:
        _check_tokens(type_name, {*known, *params})
    added = _added(inspect.signature(make).parameters, known, params)
    try:
        model = make(**added, **params)
    except Exception as error:
        # The user's values are not shown: one may be a secret from the environment.
        call = ", ".join(
            [*(f"{name}={value!r}" for name, value in added.items()), *(f"{name}=..." for name in params)]
        )
        raise ModelError(
            f"model {type_name}: {make.__name__}({call}) failed: {type(error).__name__}: {error}"
            f"{_advice(make, params, error) if isinstance(error, TypeError | KeyError) else ''}"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"model {type_name}: it returned a {type(model).__name__}, not a torch.nn.Module")
    return model


def draws_by_name(type_name: str) -> bool:
    """Return whether a model says how each of its modules is drawn; see `drawing`.

    Raises:
        ModelError: It cannot be imported.
    """
    return type_name in _BUILT_IN or hasattr(find_model(type_name), "draw_parameters")


def _of_tokens(info: DataInfo) -> dict[str, Any]:
    """Return the arguments that follow from token data."""
    if INPUT_IDS not in info.inputs:
        return {}
    tokens = info.vocab_size or (info.outputs if task_for(info).generates_text else 0)
    return {"context_length": info.inputs[INPUT_IDS].shape[0], **({"vocab_size": tokens} if tokens else {})}


def _check_tokens(type_name: str, known: Collection[str]) -> None:
    """Check that a model of tokens can be built.

    Raises:
        ModelError: The data have none, or the size of the vocabulary is unknown.
    """
    if "context_length" not in known:
        raise ModelError(
            f"model {type_name} needs text: data.type: text, text_table or text_folder, or arrays named "
            f"{INPUT_IDS}"
        )
    if "vocab_size" not in known:
        raise ModelError(
            f"model {type_name}: cannot infer the vocabulary size from {INPUT_IDS}; set model.vocab_size"
        )


def _added(
    accepted: Mapping[str, inspect.Parameter], known: Mapping[str, Any], params: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the constructor arguments that the data determine and `params` leaves open."""
    added = {name: value for name, value in known.items() if name in accepted and name not in params}
    for name, parameter in accepted.items():
        meant = next((one for one, names in _SIZES.items() if name in names), None)
        if meant is None or name in params or parameter.default is not parameter.empty:
            continue
        if meant not in accepted and not {*_SIZES[meant]} & params.keys():
            added[name] = known[meant]
    return added


def _advice(make: Any, params: Mapping[str, Any], error: Exception) -> str:
    """Return advice on unknown or missing constructor arguments, and on texts that were taken for objects."""
    if "'str' object is not callable" in str(error):
        paths = [name for name, value in params.items() if isinstance(value, str) and ":" in value]
        named = f"{', '.join(paths)} {'is text' if len(paths) == 1 else 'are texts'}: " if paths else ""
        return f"; {named}options of a class of one's own are passed as they are; make objects in the class"
    names = [
        one.name for one in inspect.signature(make).parameters.values() if one.kind is not one.VAR_KEYWORD
    ]
    for wrong in (name for name in params if name not in names):
        if close := difflib.get_close_matches(wrong, names, n=1):
            return f"; did you mean {close[0]!r}?"
    return (
        "; its arguments stand beside `type` in the section model; in_features and out_features are filled "
        "in where it has them"
    )


def find_model(type_name: str) -> Any:
    """Return the callable that builds a model: a built-in one, or that of an import path.

    Raises:
        ModelError: It cannot be imported.
    """
    if type_name in _BUILT_IN:
        return _BUILT_IN[type_name]
    try:
        return import_path(type_name)
    except InputError as error:
        raise ModelError(f"model.type: {error}") from error
