"""Losses by name or as the model was compiled with them, and what outputs mean; on any backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainyard.errors import ModelError
from trainyard.types import Array, DataInfo

# (outputs (rows, outputs) float32, targets as in `Batch`) -> the mean over the samples, as tensors of the backend
Loss = Callable[[Any, Any], Any]

_REGRESSION = ("mse", "mae", "huber")


@dataclass(frozen=True)
class Outputs:
    """What a model's outputs mean. `single`: one column, of two classes or of one value; `logits`: of classes, else
    probabilities; `apart`: each of several columns is (the logit of) a probability of its own, and they need not sum to 1, as
    of one sigmoid for each class.
    """

    single: bool
    logits: bool
    apart: bool = False

    def to_predictions(self, outputs: Array, info: DataInfo) -> Array:
        """Class probabilities (rows, classes), or values (rows,) / (rows, outputs) in the data's unit; float32.

        A row has one class only, so that probabilities that stand apart are divided by their sum.
        """
        if info.task == "regression":
            values = outputs.reshape(len(outputs)) if self.single else outputs
            return (values * np.float32(info.target_scale) + np.float32(info.target_mean)).astype(np.float32)
        if self.single:
            second = 1 / (1 + np.exp(-outputs.reshape(-1))) if self.logits else outputs.reshape(-1)
            return np.stack([1 - second, second], axis=1).astype(np.float32)
        if not (self.logits or self.apart):
            return outputs
        if not self.logits:
            outputs = np.log(np.maximum(outputs, np.finfo(np.float32).tiny))  # all may be 0
        elif self.apart:
            outputs = -np.logaddexp(np.float32(0), -outputs)  # the logarithm of the sigmoid
        shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        probabilities: Array = (shifted / shifted.sum(axis=1, keepdims=True)).astype(np.float32)
        return probabilities


def build_loss(keras: Any, name: str, compiled: Any, outputs: Outputs, info: DataInfo) -> Loss:
    """The loss that `training.loss` names; `auto` takes what the model was compiled with, if anything.

    Values are learnt in units of their standard deviation.

    Raises:
        ModelError: the loss is not one for this task, or no single function.
    """
    if name == "auto" and compiled is not None and not _is_plain_cross_entropy(compiled):
        return _scaled(_compiled(keras, compiled, outputs), info)
    if name == "auto":
        name = "cross_entropy" if info.task == "classification" else "mse"
    if (name == "cross_entropy") != (info.task == "classification"):
        fitting = "cross_entropy" if info.task == "classification" else ", ".join(_REGRESSION)
        raise ModelError(f"training.loss: {name} is no loss for {info.task}; allowed: auto, {fitting}")
    return (
        _cross_entropy(keras, outputs) if name == "cross_entropy" else _scaled(_regression(keras, name), info)
    )


def _cross_entropy(keras: Any, form: Outputs) -> Loss:
    ops = keras.ops

    def binary(outputs: Any, targets: Any) -> Any:
        wanted = ops.cast(ops.reshape(targets, (-1, 1)), "float32")
        return ops.mean(
            ops.binary_crossentropy(wanted, ops.reshape(outputs, (-1, 1)), from_logits=form.logits)
        )

    def categorical(outputs: Any, targets: Any) -> Any:
        if form.apart:  # probabilities, whose sum not every backend would divide them by
            outputs = outputs / (ops.sum(outputs, axis=-1, keepdims=True) + keras.config.epsilon())
        return ops.mean(ops.sparse_categorical_crossentropy(targets, outputs, from_logits=form.logits))

    return binary if form.single else categorical


def _regression(keras: Any, name: str) -> Loss:
    losses, ops = keras.losses, keras.ops
    function = {"mse": losses.mean_squared_error, "mae": losses.mean_absolute_error, "huber": losses.huber}[
        name
    ]

    def loss(outputs: Any, targets: Any) -> Any:
        columns = ops.reshape(targets, (-1, 1)) if len(targets.shape) == 1 else targets
        return ops.mean(function(columns, ops.reshape(outputs, ops.shape(columns))))

    return loss


def _scaled(loss: Loss, info: DataInfo) -> Loss:
    mean, scale = info.target_mean, info.target_scale
    if info.task == "classification" or (mean, scale) == (0.0, 1.0):
        return loss
    return lambda outputs, targets: loss(outputs, (targets - mean) / scale)


def _compiled(keras: Any, given: Any, form: Outputs) -> Loss:
    """What `compile(loss=...)` was given, called as `fit` calls it with the targets in the form that it takes.

    A loss of Keras that is not sparse is given classes as one-hot rows; the user's own function is given their indices.
    """
    found, ops = _function(keras, given), keras.ops
    one_hot = takes_one_hot(found, form)

    def loss(outputs: Any, targets: Any) -> Any:
        if form.single:
            targets = ops.reshape(ops.cast(targets, outputs.dtype), (-1, 1))
            outputs = ops.reshape(outputs, (-1, 1))
        elif one_hot and len(targets.shape) == 1:
            targets = ops.one_hot(targets, outputs.shape[-1])
        return ops.mean(found(targets, outputs))

    return loss


def takes_logits(keras: Any, given: Any) -> bool | None:
    """Whether what `compile(loss=...)` was given takes logits, and not probabilities; None where it does not say."""
    if given is None or isinstance(given, list | tuple | dict):
        return None
    if _is_plain_cross_entropy(given):
        return False
    try:
        found = keras.losses.get(given)
        default = getattr(inspect.signature(found).parameters.get("from_logits"), "default", None)
    except (ValueError, TypeError):
        return None  # it is refused where it is used
    told = getattr(found, "from_logits", default)
    return told if isinstance(told, bool) else None


def judges_columns_apart(keras: Any, given: Any) -> bool:
    """Whether what `compile(loss=...)` was given is a binary loss of Keras's: to it, each column is a probability of its own."""
    if given is None:
        return False
    try:
        inner = _inner(keras.losses.get(given))
    except (ValueError, TypeError):
        return False
    return in_keras(inner) and "binary" in getattr(inner, "__name__", type(inner).__name__).lower()


def _is_plain_cross_entropy(given: Any) -> bool:
    """Whether it is a name for which Keras chooses among its cross entropies."""
    return str(given).lower() in ("crossentropy", "ce")


def takes_one_hot(found: Any, form: Outputs) -> bool:
    """Whether a loss or a metric is one of Keras's that takes classes as one-hot rows, and not as numbers."""
    inner = _inner(found)
    name = getattr(inner, "__name__", type(inner).__name__)
    return in_keras(found) and not form.single and "sparse" not in name.lower()


def in_keras(found: Any) -> bool:
    """Whether what a loss or a metric computes with is Keras's own."""
    return str(_inner(found).__module__).split(".")[0] == "keras"


def _inner(found: Any) -> Any:
    """The function that one of Keras's metrics or losses is made of, if it is."""
    inner = getattr(found, "_fn", found)
    return getattr(inner, "fn", inner)


def _function(keras: Any, given: Any) -> Any:
    if isinstance(given, list | tuple | dict):
        raise ModelError(
            f"the model was compiled with {len(given)} losses in a list or dictionary; a single one is needed"
        )
    try:
        found = keras.losses.get(given)
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"the model was compiled with the loss {given!r}, which Keras does not know"
        ) from error
    reduction = getattr(found, "reduction", "mean")
    if reduction not in ("sum_over_batch_size", "mean", "mean_with_sample_weight"):
        raise ModelError(
            f"the model was compiled with a loss whose reduction is {reduction!r}, but the loss of a step is the mean over its "
            "samples; leave the reduction out"
        )
    return found
