"""Objectives: what the raw scores of the trees mean, and the loss that is reported of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainyard.errors import InputError, ModelError
from trainyard.require import import_path
from trainyard.types import Array, DataInfo

# As `lightgbm.train` takes them: (raw scores, dataset) -> (gradients, hessians), both of the scores' shape, which is (rows,),
# or (rows, classes) where there are three and more; (predictions, dataset) -> (name, value, whether more is better).
Gradients = Callable[[Array, Any], tuple[Array, Array]]
Metric = Callable[[Array, Any], tuple[str, float, bool]]

_VALUES = {  # objective: link
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
_TWO_CLASSES = {"binary": "sigmoid"}
_MORE_CLASSES = {"multiclass": "softmax", "multiclassova": "sigmoid"}
_LEAST = 1e-15  # of a probability, so that one wrong certainty does not make a loss infinite


@dataclass(frozen=True)
class Objective:
    """What is learned: `name` as LightGBM calls it (`none` for a custom one), with `width` trees in each round."""

    name: str
    link: str
    width: int
    info: DataInfo
    alpha: float

    def predictions(self, raw: Array) -> Array:
        """(rows, width) float64 raw scores -> (rows, width) what LightGBM predicts of them."""
        if self.link == "identity":
            return raw
        if self.link == "exp":
            return np.asarray(np.exp(raw))
        if self.link == "softmax":
            powers: Array = np.exp(raw - raw.max(axis=1, keepdims=True))
            return np.asarray(powers / powers.sum(axis=1, keepdims=True))
        return np.asarray(np.exp(-np.logaddexp(0.0, -raw)))

    def outputs(self, predictions: Array) -> Array:
        """(rows, width) predictions -> (rows, classes) probabilities or (rows,) values."""
        if self.info.task == "regression":
            return predictions[:, 0]
        if self.width == 1:
            return np.column_stack([1 - predictions[:, 0], predictions[:, 0]])
        if self.link == "softmax":
            return predictions
        return np.asarray(predictions / np.maximum(predictions.sum(axis=1, keepdims=True), _LEAST))

    def losses(self, outputs: Array, targets: Array) -> Array:
        """(rows,): cross entropy; or the error that fits the objective, in units of the targets' standard deviation if known."""
        if self.info.task == "classification":
            return np.asarray(-np.log(np.maximum(outputs[np.arange(len(outputs)), targets], _LEAST)))
        errors: Array = (targets - outputs) / self.info.target_scale
        if self.name in ("regression_l1", "mape"):
            return np.abs(errors)
        if self.name == "quantile":
            return np.maximum(self.alpha * errors, (self.alpha - 1) * errors)
        return np.square(errors)


def build_objective(given: str | None, alpha: float, info: DataInfo, *, custom: bool = False) -> Objective:
    """The objective of that name, or the task's usual one; of a `custom` one, what its raw scores mean.

    Raises:
        ModelError: it is not one for this task, or the data has several targets.
    """
    if info.task == "regression" and info.outputs > 1:
        raise ModelError(f"LightGBM learns one target, the data has {info.outputs}; train a model for each")
    width = 1 if info.task == "regression" or info.outputs == 2 else info.outputs
    allowed = _VALUES if info.task == "regression" else _TWO_CLASSES if width == 1 else _MORE_CLASSES
    name = given or next(iter(allowed))
    if custom:
        return Objective("none", next(iter(allowed.values())), width, info, alpha)
    if name not in allowed:
        what = "values" if info.task == "regression" else f"{info.outputs} classes"
        known = f"{', '.join(allowed)}, package.module:function"
        raise ModelError(f"model.params.objective: {name} is not for targets of {what}; allowed: {known}")
    return Objective(name, allowed[name], width, info, alpha)


def imported_function(option: str, path: str | None) -> Any:
    """What `package.module:function` names, or None where the objective has a name of LightGBM's own.

    Raises:
        ModelError: it leads to no function.
    """
    if path is None or (option == "objective" and ":" not in path):
        return None
    if ":" not in path:
        raise ModelError(
            f"model.params.{option}: {path} is no package.module:function; list metrics in evaluation.metrics"
        )
    try:
        found = import_path(path)
    except InputError as error:
        raise ModelError(f"model.params.{option}: {error}") from error
    if not callable(found) or isinstance(found, type):
        raise ModelError(f"model.params.{option}: {path!r} is a {type(found).__name__}; a function is needed")
    return found
