"""Objectives: the link from raw scores to outputs, and the loss that is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainyard.errors import InputError, ModelError
from trainyard.require import import_path
from trainyard.types import Array, DataInfo

# Custom functions, as `lightgbm.train` takes them. Scores, gradients and hessians have shape (rows,), or
# (rows, classes) for three or more classes.
Gradients = Callable[[Array, Any], tuple[Array, Array]]  # (raw scores, dataset) -> (gradients, hessians)
# (predictions, dataset) -> (name, value, higher is better).
Metric = Callable[[Array, Any], tuple[str, float, bool]]

_REGRESSION = {  # objective: link
    "regression": "identity",
    "regression_l1": "identity",
    "huber": "identity",
    "fair": "identity",
    "quantile": "identity",
    "mape": "identity",
    "poisson": "exp",
    "gamma": "exp",
    "tweedie": "exp",
}
_BINARY = {"binary": "sigmoid"}
_MULTICLASS = {"multiclass": "softmax", "multiclassova": "sigmoid"}
_MIN_PROBABILITY = 1e-15  # keeps the cross entropy finite


@dataclass(frozen=True)
class Objective:
    """An objective of LightGBM.

    Args:
        name: LightGBM's name of it, or `none` for a custom one.
        link: The function from raw scores to predictions: identity, exp, sigmoid or softmax.
        width: Trees per round, which is the number of raw scores of a row.
        info: The data.
        alpha: The quantile, for `quantile`.
    """

    name: str
    link: str
    width: int
    info: DataInfo
    alpha: float

    def predictions(self, raw: Array) -> Array:
        """Convert (rows, width) float64 raw scores to LightGBM's predictions, (rows, width)."""
        if self.link == "identity":
            return raw
        if self.link == "exp":
            return np.asarray(np.exp(raw))
        if self.link == "softmax":
            powers: Array = np.exp(raw - raw.max(axis=1, keepdims=True))
            return np.asarray(powers / powers.sum(axis=1, keepdims=True))
        return np.asarray(np.exp(-np.logaddexp(0.0, -raw)))

    def outputs(self, predictions: Array) -> Array:
        """Convert (rows, width) predictions to (rows, classes) probabilities or (rows,) values."""
        if self.info.task == "regression":
            return predictions[:, 0]
        if self.width == 1:
            return np.column_stack([1 - predictions[:, 0], predictions[:, 0]])
        if self.link == "softmax":
            return predictions
        return np.asarray(predictions / np.maximum(predictions.sum(axis=1, keepdims=True), _MIN_PROBABILITY))

    def losses(self, outputs: Array, targets: Array) -> Array:
        """Return the loss of each row, (rows,).

        It is the cross entropy for classes. For values it is the absolute, quantile or squared error, as the
        objective minimizes it, of errors divided by the targets' standard deviation where that is known.
        """
        if self.info.task == "classification":
            return np.asarray(
                -np.log(np.maximum(outputs[np.arange(len(outputs)), targets], _MIN_PROBABILITY))
            )
        errors: Array = (targets - outputs) / self.info.target_scale
        if self.name in ("regression_l1", "mape"):
            return np.abs(errors)
        if self.name == "quantile":
            return np.maximum(self.alpha * errors, (self.alpha - 1) * errors)
        return np.square(errors)


def build_objective(
    requested: str | None, alpha: float, info: DataInfo, *, custom: bool = False
) -> Objective:
    """Return the objective of a name, or the task's default.

    With `custom`, the user gives the gradients, and the link is that of the task's default.

    Raises:
        ModelError: The objective does not fit the task, or the data has several targets.
    """
    if info.task == "regression" and info.outputs > 1:
        raise ModelError(
            f"LightGBM takes one target, the data has {info.outputs}; train a model for each (data.target, "
            "and the others in data.exclude), or use xgboost, catboost or random_forest"
        )
    width = 1 if info.task == "regression" or info.outputs == 2 else info.outputs
    allowed = _REGRESSION if info.task == "regression" else _BINARY if width == 1 else _MULTICLASS
    name = requested or next(iter(allowed))
    if custom:
        return Objective("none", next(iter(allowed.values())), width, info, alpha)
    if name not in allowed:
        what = "values" if info.task == "regression" else f"{info.outputs} classes"
        known = f"{', '.join(allowed)}, package.module:function"
        raise ModelError(f"model.params.objective: {name} does not fit targets of {what}; allowed: {known}")
    return Objective(name, allowed[name], width, info, alpha)


def imported_function(option: str, path: str | None) -> Any:
    """Import the function `package.module:function`; return None for an objective of LightGBM's own.

    Args:
        option: `objective` or `metric`.
        path: The option's value.

    Raises:
        ModelError: The path does not lead to a function.
    """
    if path is None or (option == "objective" and ":" not in path):
        return None
    if ":" not in path:
        raise ModelError(
            f"model.params.{option}: {path!r} is not of the form package.module:function; "
            "use evaluation.metrics"
        )
    try:
        function = import_path(path)
    except InputError as error:
        raise ModelError(f"model.params.{option}: {error}") from error
    if not callable(function) or isinstance(function, type):
        kind = type(function).__name__
        raise ModelError(
            f"model.params.{option}: {path!r} is not a function but of type {kind}; give a function"
        )
    return function
