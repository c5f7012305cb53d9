"""Optimizers by name, or as the model was compiled with one."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.config.schema import RunConfig, TrainingConfig
from trainyard.errors import ModelError
from trainyard.frameworks.keras.params import COMPILED

_CLASSES = {
    "adamw": "AdamW",
    "adam": "Adam",
    "sgd": "SGD",
    "rmsprop": "RMSprop",
    "adagrad": "Adagrad",
    "nadam": "Nadam",
    "adamax": "Adamax",
    "lion": "Lion",
}
_NAMES = {"eps": "epsilon", "alpha": "rho"}  # of options, as Keras calls them
_DEFAULT_RATE = float(TrainingConfig.model_fields["learning_rate"].default)


def build_optimizer(keras: Any, training: TrainingConfig, compiled: Any, *, scale_loss: bool) -> Any:
    """The optimizer that `training.optimizer` names, without any state yet.

    Args:
        compiled: the one that the model was compiled with, if any; it stays as it is.
        scale_loss: keep small gradients from vanishing in 16 bits, and leave out steps whose gradients overflow
            (Micikevicius et al., 2018).

    Raises:
        ModelError: it refuses its options, or it is one whose result would depend on more than we keep.
    """
    options: dict[str, Any] = {"learning_rate": float(training.learning_rate)}
    if training.weight_decay:
        options["weight_decay"] = training.weight_decay
    if training.max_grad_norm is not None:
        options |= {"global_clipnorm": training.max_grad_norm, "clipnorm": None, "clipvalue": None}
    if training.optimizer.type == COMPILED and compiled is not None:
        optimizer = _like(compiled, options)
    else:
        optimizer = _named(keras, training, options)
    return keras.optimizers.LossScaleOptimizer(optimizer) if scale_loss else optimizer


def _named(keras: Any, training: TrainingConfig, options: dict[str, Any]) -> Any:
    name = "adamw" if training.optimizer.type == COMPILED else training.optimizer.type
    own = {_NAMES.get(key, key): value for key, value in training.optimizer.params.items()}
    if "betas" in own:
        own["beta_1"], own["beta_2"] = own.pop("betas")
    if name == "adagrad":
        own["initial_accumulator_value"] = 0.0  # as in the paper, and in torch
    options = (
        {"weight_decay": 0.0, **options} if name == "adamw" else options
    )  # which would decay by 0.004 by itself
    try:
        return getattr(keras.optimizers, _CLASSES[name])(**own, **options)
    except (ValueError, TypeError) as error:
        given = ", ".join(f"{key}={value}" for key, value in training.optimizer.params.items())
        raise ModelError(f"training.optimizer: {name} refuses its options ({given}): {error}") from error


def _like(compiled: Any, options: dict[str, Any]) -> Any:
    """An optimizer like the compiled one, which begins anew."""
    source = getattr(compiled, "inner_optimizer", compiled)
    config = source.get_config()
    if config.get("use_ema"):
        raise ModelError(
            "the model was compiled with use_ema: averaged weights cannot be had here; leave it out"
        )
    if "global_clipnorm" not in options:
        options = {key: value for key, value in options.items() if key not in ("clipnorm", "clipvalue")}
    try:
        return type(source).from_config({**config, **options})
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"the optimizer that the model was compiled with cannot be made anew: {error}"
        ) from error


def leaves_rate(config: RunConfig) -> bool:
    """Whether the learning rate is that which the model was compiled with: `training.learning_rate` is not set, and the
    optimizer is the compiled one.
    """
    return config.training.optimizer.type == COMPILED and config.training.learning_rate == _DEFAULT_RATE


def rate_of(compiled: Any) -> float:
    """The learning rate of an optimizer.

    Raises:
        ModelError: it is a schedule.
    """
    return _rate(compiled.get_config())


def rate_in(file: Path) -> float | None:
    """The learning rate that the model of a .keras file was compiled with, if it was; nothing of the file is made.

    Raises:
        ModelError: it is a schedule, or the file is no model.
    """
    optimizer = (saved_config(file).get("compile_config") or {}).get("optimizer")
    return _rate(optimizer.get("config", {})) if isinstance(optimizer, dict) else None


def saved_config(file: Path) -> dict[str, Any]:
    """What a .keras file says of its model; nothing of it is made.

    Raises:
        ModelError: it is none.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            found = json.loads(archive.read("config.json"))
    except FileNotFoundError as error:
        raise ModelError(f"model.params.file: there is no file {file}") from error
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ModelError(
            f"model.params.file: {file} is no whole .keras file ({error or type(error).__name__}); "
            'save the model with model.save("model.keras")'
        ) from error
    return found if isinstance(found, dict) else {}


def _rate(optimizer: dict[str, Any]) -> float:
    inner = optimizer.get("inner_optimizer")
    if isinstance(inner, dict):
        return _rate(inner.get("config", {}))
    rate = optimizer.get("learning_rate")
    if not isinstance(rate, int | float):
        raise ModelError(
            "the model was compiled with a schedule for a learning rate; here training.scheduler varies it: "
            "compile with a number, or name an optimizer in training.optimizer"
        )
    return float(str(np.float32(rate)))  # 0.001, and not the 0.0010000000475 that a variable makes of it
