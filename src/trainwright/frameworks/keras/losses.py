"""Losses, by name or as the model was compiled, and the meaning of a model's outputs; for every backend."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from trainwright.config.schema import TrainingConfig
from trainwright.errors import InputError, ModelError
from trainwright.require import import_path, is_class_of_functions, kind_of
from trainwright.tasks.support.precision import restored
from trainwright.types import Array, DataInfo

# (outputs (rows, outputs) float32, targets as in `Batch`[, weights (rows,) float32]) -> mean loss over the
# samples, by their weights; all tensors of the backend
Loss = Callable[..., Any]
_TINY = 1e-30  # keeps the mean finite where no sample has a weight

# The losses of each task, the default first.
_LOSSES: Mapping[str, Sequence[str]] = {
    "classification": ("cross_entropy",),
    "regression": ("mse", "mae", "huber", "l1", "smooth_l1"),
}


@dataclass(frozen=True)
class Outputs:
    """The meaning of a classifier's outputs.

    Attributes:
        single: There is one column, for two classes.
        logits: The outputs of a classifier are logits, as opposed to probabilities.
        independent: Each column is (the logit of) an independent probability, as with one sigmoid per class;
            the probabilities of a row need not sum to 1.
    """

    single: bool
    logits: bool
    independent: bool = False

    def to_predictions(self, outputs: Array, info: DataInfo) -> Array:  # noqa: ARG002 - values need it
        """Convert outputs (rows, outputs) to predictions.

        Since every row has exactly one class, independent probabilities are divided by their sum.

        Returns:
            Class probabilities (rows, classes), float32.
        """
        if self.single:
            second = 1 / (1 + np.exp(-outputs.reshape(-1))) if self.logits else outputs.reshape(-1)
            return np.stack([1 - second, second], axis=1).astype(np.float32)
        if not (self.logits or self.independent):
            return outputs
        if not self.logits:
            outputs = np.log(np.maximum(outputs, np.finfo(np.float32).tiny))  # all probabilities may be 0
        elif self.independent:
            outputs = -np.logaddexp(np.float32(0), -outputs)  # log of the sigmoid
        shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
        probabilities: Array = (shifted / shifted.sum(axis=1, keepdims=True)).astype(np.float32)
        return probabilities

    def trial_targets(self, outputs: Array, info: DataInfo) -> Array:
        """Return targets of trial rows, given their outputs, (rows, columns): here each class in turn."""
        return np.arange(len(outputs)) % info.outputs

    def compared(
        self, outputs: Array, targets: Array, info: DataInfo, *, one_hot: bool
    ) -> tuple[Array, Array]:
        """Return targets and outputs in the form that a metric gets them; `one_hot`: classes as rows."""
        if self.single:
            return targets.reshape(-1, 1).astype(outputs.dtype), outputs.reshape(-1, 1)
        return np.eye(info.outputs, dtype=outputs.dtype)[targets] if one_hot else targets, outputs


class Values(Outputs):
    """The meaning of the outputs of a regression; `single`: there is one value for each row."""

    def to_predictions(self, outputs: Array, info: DataInfo) -> Array:
        """Convert outputs to (rows,) / (rows, outputs) values in the data's original units."""
        values = outputs.reshape(len(outputs)) if self.single else outputs
        scaled = (values * np.float32(info.target_scale) + np.float32(info.target_mean)).astype(np.float32)
        return restored(scaled, info)

    def trial_targets(self, outputs: Array, info: DataInfo) -> Array:  # noqa: ARG002 - any values will do
        """Return the outputs themselves."""
        return outputs

    def compared(
        self,
        outputs: Array,
        targets: Array,
        info: DataInfo,
        *,
        one_hot: bool,  # noqa: ARG002 - there are no classes
    ) -> tuple[Array, Array]:
        """Return both in the data's original units, (rows, outputs)."""
        values = self.to_predictions(outputs, info)
        values = values.reshape(len(values), -1)
        return targets.reshape(len(targets), -1).astype(values.dtype), values


def build_loss(keras: Any, training: TrainingConfig, compiled: Any, outputs: Outputs, info: DataInfo) -> Loss:
    """Build the loss that `training.loss` names, on standardized targets.

    Args:
        keras: The keras module.
        training: Its `loss`, where `auto` takes the compiled loss, or the usual one of the task if the model
            was not compiled, and a user's own is called as Keras calls losses; and `label_smoothing`.
        compiled: What the model was compiled with (`compile(loss=...)`), if anything.
        outputs: The meaning of the model's outputs.
        info: The description of the data.

    Raises:
        ModelError: The loss is not for this task, or the compiled loss is not a single function.
    """
    name, smoothing, losses = training.loss, training.label_smoothing, _LOSSES[info.task]
    is_compiled = name == "auto" and compiled is not None and not _is_plain_cross_entropy(compiled)
    if smoothing and (is_compiled or "cross_entropy" not in losses or ":" in name):
        raise ModelError(
            f"training.label_smoothing: {smoothing} given, but the loss is not cross_entropy; leave it out"
        )
    if ":" in name:
        return _scaled(_compiled(keras, _custom(keras, name, outputs, training.loss_params), outputs), info)
    if is_compiled:
        return _scaled(_compiled(keras, compiled, outputs), info)
    if name == "auto":
        name = losses[0]
    if name not in losses:
        allowed = ", ".join(losses)
        raise ModelError(f"training.loss: {name} is not a loss for {info.task}; allowed: auto, {allowed}")
    return (
        _cross_entropy(keras, outputs, smoothing)
        if name == "cross_entropy"
        else _scaled(_regression(keras, name), info)
    )


def _custom(keras: Any, path: str, outputs: Outputs, params: Mapping[str, Any]) -> Any:
    """Import a user's own loss: a function of (targets, outputs), or a class of objects that are called so.

    A subclass of `keras.losses.Loss` is one. `params` are the options of the loss.

    Raises:
        ModelError: It is neither, cannot be imported, or takes probabilities where the model gives logits.
    """
    try:
        loss = import_path(path)
        if is_class_of_functions(loss):
            loss = loss(**params)
        elif params:
            loss = partial(loss, **params)
    except (InputError, TypeError) as error:
        raise ModelError(f"training.loss: {error}") from error
    if not callable(loss) or isinstance(loss, type):
        raise ModelError(
            f"training.loss: {path} is {kind_of(loss)}; a function of (targets, outputs), or a class with "
            "__call__, such as a keras.losses.Loss, is needed"
        )
    takes = takes_logits(keras, loss)
    if takes is not None and takes != outputs.logits:
        gives = "logits" if outputs.logits else "probabilities"
        raise ModelError(
            f"training.loss: the model returns {gives}, and {path} has from_logits={takes}; "
            f"set from_logits={outputs.logits} in a function of your own"
        )
    return loss


def _cross_entropy(keras: Any, meaning: Outputs, smoothing: float) -> Loss:
    """Return the binary cross entropy for a single column, the categorical one for several."""
    ops = keras.ops

    def binary(outputs: Any, targets: Any, weights: Any = None) -> Any:
        labels = ops.cast(ops.reshape(targets, (-1, 1)), "float32")  # (rows, 1)
        if smoothing:
            labels = labels * (1 - smoothing) + smoothing / 2
        single = ops.reshape(outputs, (-1, 1))
        return _mean(ops, ops.binary_crossentropy(labels, single, from_logits=meaning.logits), weights)

    def categorical(outputs: Any, targets: Any, weights: Any = None) -> Any:
        if meaning.independent:  # not every backend divides the probabilities by their sum
            outputs = outputs / (ops.sum(outputs, axis=-1, keepdims=True) + keras.config.epsilon())
        if smoothing:
            classes = outputs.shape[-1]
            labels = ops.one_hot(targets, classes) * (1 - smoothing) + smoothing / classes  # (rows, classes)
            losses = ops.categorical_crossentropy(labels, outputs, from_logits=meaning.logits)
        else:
            losses = ops.sparse_categorical_crossentropy(targets, outputs, from_logits=meaning.logits)
        return _mean(ops, losses, weights)

    return binary if meaning.single else categorical


def _mean(ops: Any, losses: Any, weights: Any) -> Any:
    """Return the mean of (rows, ...) losses, by the weights of the rows, (rows,), if there are any."""
    if weights is None:
        return ops.mean(losses)
    by_row = ops.mean(ops.reshape(losses, (ops.shape(losses)[0], -1)), axis=1)
    return ops.sum(by_row * weights) / ops.maximum(ops.sum(weights), _TINY)


def _regression(keras: Any, name: str) -> Loss:
    """Return a regression loss, averaged over samples and outputs."""
    losses, ops = keras.losses, keras.ops
    function = {
        "mse": losses.mean_squared_error,
        **dict.fromkeys(("mae", "l1"), losses.mean_absolute_error),
        **dict.fromkeys(("huber", "smooth_l1"), losses.huber),  # both with a bend at 1
    }[name]

    def loss(outputs: Any, targets: Any, weights: Any = None) -> Any:
        columns = ops.reshape(targets, (-1, 1)) if len(targets.shape) == 1 else targets
        return _mean(ops, function(columns, ops.reshape(outputs, ops.shape(columns))), weights)

    return loss


def _scaled(loss: Loss, info: DataInfo) -> Loss:
    """Return a loss on standardized targets; without standardization, return it unchanged."""
    mean, scale = info.target_mean, info.target_scale
    if (mean, scale) == (0.0, 1.0):
        return loss
    return lambda outputs, targets, weights=None: loss(outputs, (targets - mean) / scale, weights)


def _compiled(keras: Any, compiled: Any, meaning: Outputs) -> Loss:
    """Return the compiled loss, called as `fit` calls it, with the targets in the form that it expects.

    Keras's losses receive classes as one-hot rows unless they are sparse; a user's own function receives
    indices.
    """
    function, ops = _function(keras, compiled), keras.ops
    one_hot = takes_one_hot(function, meaning)

    def loss(outputs: Any, targets: Any, weights: Any = None) -> Any:
        if meaning.single:
            targets = ops.reshape(ops.cast(targets, outputs.dtype), (-1, 1))
            outputs = ops.reshape(outputs, (-1, 1))
        elif one_hot and len(targets.shape) == 1:
            targets = ops.one_hot(targets, outputs.shape[-1])
        if weights is None:
            return ops.mean(function(targets, outputs))
        return _mean(ops, _by_sample(function, targets, outputs), weights)

    return loss


def _by_sample(function: Any, targets: Any, outputs: Any) -> Any:
    """Return the compiled loss of each sample, (rows, ...).

    Raises:
        ModelError: The function gives only one number for all.
    """
    unreduced = getattr(function, "call", function)  # a loss object would reduce them
    losses = unreduced(targets, outputs)
    if not len(losses.shape):
        raise ModelError(
            "the model was compiled with a loss that returns one number for all samples; with weights "
            "(data.weight, training.class_weights) it must return one for each sample"
        )
    return losses


def takes_logits(keras: Any, compiled: Any) -> bool | None:
    """Return whether a compiled loss takes logits rather than probabilities; None if it does not say.

    Args:
        keras: The keras module.
        compiled: The argument of `compile(loss=...)`.
    """
    if compiled is None or isinstance(compiled, list | tuple | dict):
        return None
    if _is_plain_cross_entropy(compiled):
        return False
    try:
        function = keras.losses.get(compiled)
        default = getattr(inspect.signature(function).parameters.get("from_logits"), "default", None)
    except (ValueError, TypeError):
        return None  # `build_loss` raises the error, if the loss is used
    from_logits = getattr(function, "from_logits", default)
    return from_logits if isinstance(from_logits, bool) else None


def treats_columns_independently(keras: Any, compiled: Any) -> bool:
    """Return whether a compiled loss is one of Keras's binary losses, which treat each column by itself.

    Args:
        keras: The keras module.
        compiled: The argument of `compile(loss=...)`.
    """
    if compiled is None:
        return False
    try:
        inner = _inner(keras.losses.get(compiled))
    except (ValueError, TypeError):
        return False
    return is_from_keras(inner) and "binary" in getattr(inner, "__name__", type(inner).__name__).lower()


def _is_plain_cross_entropy(compiled: Any) -> bool:
    """Return whether a compiled loss is a name for which Keras itself chooses a cross entropy."""
    return str(compiled).lower() in ("crossentropy", "ce")


def takes_one_hot(measure: Any, meaning: Outputs) -> bool:
    """Return whether a loss or metric is one of Keras's that expects classes as one-hot rows."""
    inner = _inner(measure)
    name = getattr(inner, "__name__", type(inner).__name__)
    return is_from_keras(measure) and not meaning.single and "sparse" not in name.lower()


def is_from_keras(measure: Any) -> bool:
    """Return whether the function behind a loss or metric is Keras's own."""
    return str(_inner(measure).__module__).split(".")[0] == "keras"


def _inner(measure: Any) -> Any:
    """Return the function that a loss or metric of Keras wraps, or the argument itself."""
    inner = getattr(measure, "_fn", measure)
    return getattr(inner, "fn", inner)


def _function(keras: Any, compiled: Any) -> Any:
    """Return the function of a compiled loss.

    Raises:
        ModelError: The model was compiled with several losses, an unknown one, or one that is not a mean.
    """
    if isinstance(compiled, list | tuple | dict):
        raise ModelError(
            f"the model was compiled with {len(compiled)} losses in a list or dictionary; "
            "compile it with a single loss"
        )
    try:
        function = keras.losses.get(compiled)
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"the model was compiled with the loss {compiled!r}, which Keras does not know; "
            "compile it with a loss of keras.losses, or set training.loss"
        ) from error
    reduction = getattr(function, "reduction", "mean")
    if reduction not in ("sum_over_batch_size", "mean", "mean_with_sample_weight"):
        raise ModelError(
            f"the model was compiled with a loss whose reduction is {reduction!r}, but the loss of a step "
            "must be the mean over its samples; remove the reduction"
        )
    return function
