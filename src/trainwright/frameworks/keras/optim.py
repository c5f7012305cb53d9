"""Optimizers, by name or like the one that the model was compiled with, and their learning rates."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.config.schema import RunConfig, TrainingConfig
from trainwright.errors import ModelError
from trainwright.frameworks.keras.params import COMPILED

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
_KERAS_NAMES = {"eps": "epsilon", "alpha": "rho"}  # our names of options -> Keras's
_DEFAULT_RATE = float(TrainingConfig.model_fields["learning_rate"].default)


def build_optimizer(keras: Any, training: TrainingConfig, compiled: Any, *, scale_loss: bool) -> Any:
    """Build the optimizer that `training.optimizer` names, without variables.

    Args:
        keras: The keras module.
        training: The `training` section.
        compiled: The optimizer that the model was compiled with, if any; it is not changed.
        scale_loss: Scale the loss so that small gradients do not vanish in 16 bits, and skip steps whose
            gradients overflow (Micikevicius et al., 2018).

    Raises:
        ModelError: Keras rejects the options, or the compiled optimizer averages weights.
    """
    options: dict[str, Any] = {"learning_rate": float(training.learning_rate)}
    if training.weight_decay:
        options["weight_decay"] = training.weight_decay
    if training.max_grad_norm is not None:
        options |= {"global_clipnorm": training.max_grad_norm, "clipnorm": None, "clipvalue": None}
    if training.max_grad_value is not None:
        options |= {"global_clipnorm": None, "clipnorm": None, "clipvalue": training.max_grad_value}
    if training.optimizer.type == COMPILED and compiled is not None:
        optimizer = _rebuild(compiled, options)
    else:
        optimizer = _by_name(keras, training, options)
    return keras.optimizers.LossScaleOptimizer(optimizer) if scale_loss else optimizer


def _by_name(keras: Any, training: TrainingConfig, options: dict[str, Any]) -> Any:
    """Build an optimizer by its name in the config; AdamW if the model was not compiled."""
    name = "adamw" if training.optimizer.type == COMPILED else training.optimizer.type
    if ":" in name:
        raise ModelError(
            f"training.optimizer: {name}: a class of your own is for torch; compile the model with it"
        )
    own = {_KERAS_NAMES.get(key, key): value for key, value in training.optimizer.params.items()}
    if "betas" in own:
        own["beta_1"], own["beta_2"] = own.pop("betas")
    if name == "adagrad" and own["initial_accumulator_value"] is None:
        own["initial_accumulator_value"] = 0.0  # as in the paper and in torch
    if name == "adamw":
        options = {"weight_decay": 0.0, **options}  # Keras's own default is 0.004
    try:
        return getattr(keras.optimizers, _CLASSES[name])(**own, **options)
    except (ValueError, TypeError) as error:
        options_text = ", ".join(f"{key}={value}" for key, value in training.optimizer.params.items())
        raise ModelError(
            f"training.optimizer: {name} does not accept its options ({options_text}): {error}"
        ) from error


def _rebuild(compiled: Any, options: dict[str, Any]) -> Any:
    """Build an optimizer of the same kind and options as the compiled one, without its state."""
    source = getattr(compiled, "inner_optimizer", compiled)
    config = source.get_config()
    if config.get("use_ema"):
        raise ModelError(
            "the model's optimizer was compiled with use_ema: averaged weights are not supported; remove it"
        )
    if "global_clipnorm" not in options:
        options = {key: value for key, value in options.items() if key not in ("clipnorm", "clipvalue")}
    try:
        return type(source).from_config({**config, **options})
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"the optimizer that the model was compiled with cannot be rebuilt from its config: {error}"
        ) from error


def uses_compiled_rate(config: RunConfig) -> bool:
    """Return whether the learning rate is the compiled one.

    That is so if the optimizer is the compiled one and `training.learning_rate` has its default value.
    """
    return config.training.optimizer.type == COMPILED and config.training.learning_rate == _DEFAULT_RATE


def rate_of(compiled: Any) -> float:
    """Return the learning rate of an optimizer.

    Raises:
        ModelError: The learning rate is a schedule.
    """
    return _rate(compiled.get_config())


def rate_in(file: Path) -> float | None:
    """Return the learning rate that the model in a .keras file was compiled with; construct nothing.

    Returns:
        The learning rate; None if the model was not compiled.

    Raises:
        ModelError: The learning rate is a schedule, or the file is not a .keras file.
    """
    optimizer = (saved_config(file).get("compile_config") or {}).get("optimizer")
    return _rate(optimizer.get("config", {})) if isinstance(optimizer, dict) else None


def saved_config(file: Path) -> dict[str, Any]:
    """Return the config of the model in a .keras file, without constructing anything.

    Raises:
        ModelError: The file does not exist or is not a complete .keras file.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            config = json.loads(archive.read("config.json"))
    except FileNotFoundError as error:
        raise ModelError(f"model.params.file: there is no file {file}") from error
    except (OSError, zipfile.BadZipFile, KeyError, ValueError) as error:
        raise ModelError(
            f"model.params.file: {file} is not a complete .keras file ({error or type(error).__name__}); "
            'save the model with model.save("model.keras")'
        ) from error
    return config if isinstance(config, dict) else {}


def _rate(optimizer: dict[str, Any]) -> float:
    """Return the learning rate in an optimizer's config."""
    inner = optimizer.get("inner_optimizer")
    if isinstance(inner, dict):
        return _rate(inner.get("config", {}))
    rate = optimizer.get("learning_rate")
    if not isinstance(rate, int | float):
        raise ModelError(
            "the model was compiled with a learning rate schedule, but training.scheduler sets the schedule; "
            "compile with a number, or choose an optimizer in training.optimizer"
        )
    return float(str(np.float32(rate)))  # 0.001 instead of 0.0010000000475, the value of a float32 variable
