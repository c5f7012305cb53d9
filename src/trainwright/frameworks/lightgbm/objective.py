"""Objectives: the link from raw scores to outputs, and the loss that is reported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.errors import InputError, ModelError
from trainwright.require import import_path, kind_of
from trainwright.tasks.support.precision import restored
from trainwright.types import Array, DataInfo

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
# Those that depend on targets themselves, and not on differences of outputs and targets alone.
OF_VALUES = ("mape", "poisson", "gamma", "tweedie")
_BINARY = {"binary": "sigmoid"}
_MULTICLASS = {"multiclass": "softmax", "multiclassova": "sigmoid"}
_MIN_PROBABILITY = 1e-15  # keeps the cross entropy finite


@dataclass(frozen=True)
class Objective(ABC):
    """An objective of LightGBM for one task.

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

    @classmethod
    @abstractmethod
    def of(cls, info: DataInfo) -> tuple[Mapping[str, str], int, str]:
        """Return the objectives that fit, with their links, the default first; the width; and the targets.

        Raises:
            ModelError: None fits the data.
        """

    @abstractmethod
    def outputs(self, predictions: Array) -> Array:
        """Convert (rows, width) predictions to the task's own, (rows,) or (rows, classes)."""

    def answers(self, predictions: Array) -> Array:
        """Convert (rows, width) predictions to what the task gets: probabilities are float32."""
        return self.outputs(predictions).astype(np.float32)

    @abstractmethod
    def losses(self, outputs: Array, targets: Array) -> Array:
        """Return the loss of each row, (rows,)."""


class _Classes(Objective):
    """The outputs are (rows, classes) probabilities, the loss is the cross entropy."""

    @classmethod
    def of(cls, info: DataInfo) -> tuple[Mapping[str, str], int, str]:
        targets = f"{info.outputs} classes"
        return (_BINARY, 1, targets) if info.outputs == 2 else (_MULTICLASS, info.outputs, targets)

    def outputs(self, predictions: Array) -> Array:
        if self.width == 1:
            return np.column_stack([1 - predictions[:, 0], predictions[:, 0]])
        if self.link == "softmax":
            return predictions
        return np.asarray(predictions / np.maximum(predictions.sum(axis=1, keepdims=True), _MIN_PROBABILITY))

    def losses(self, outputs: Array, targets: Array) -> Array:
        return np.asarray(-np.log(np.maximum(outputs[np.arange(len(outputs)), targets], _MIN_PROBABILITY)))


class _Values(Objective):
    """The outputs are (rows,) values.

    The loss is the absolute, quantile or squared error, as the objective minimizes it, of errors divided by
    the targets' standard deviation where that is known.
    """

    @classmethod
    def of(cls, info: DataInfo) -> tuple[Mapping[str, str], int, str]:
        if info.outputs > 1:
            raise ModelError(
                f"LightGBM takes one target, the data has {info.outputs}; train a model for each "
                "(data.target, and the others in data.exclude), or use xgboost, catboost or random_forest"
            )
        return _REGRESSION, 1, "values"

    def outputs(self, predictions: Array) -> Array:
        return predictions[:, 0]

    def answers(self, predictions: Array) -> Array:
        return restored(self.outputs(predictions), self.info)

    def losses(self, outputs: Array, targets: Array) -> Array:
        errors: Array = (targets - outputs) / self.info.target_scale
        if self.name in ("regression_l1", "mape"):
            return np.abs(errors)
        if self.name == "quantile":
            return np.maximum(self.alpha * errors, (self.alpha - 1) * errors)
        return np.square(errors)


_OF_TASK: Mapping[str, type[Objective]] = {"classification": _Classes, "regression": _Values}


def build_objective(
    requested: str | None, alpha: float, info: DataInfo, *, custom: bool = False
) -> Objective:
    """Return the objective of a name, or the task's default.

    With `custom`, the user gives the gradients, and the link is that of the task's default.

    Raises:
        ModelError: The objective does not fit the task, or the data has several targets.
    """
    make = _OF_TASK[info.task]
    allowed, width, targets = make.of(info)
    name = requested or next(iter(allowed))
    if custom:
        return make("none", next(iter(allowed.values())), width, info, alpha)
    if name not in allowed:
        known = f"{', '.join(allowed)}, package.module:function"
        raise ModelError(
            f"model.params.objective: {name} does not fit targets of {targets}; allowed: {known}"
        )
    return make(name, allowed[name], width, info, alpha)


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
        raise ModelError(
            f"model.params.{option}: {path!r} is not a function but {kind_of(function)}; give a function"
        )
    return function
