"""Objectives: the link from raw values to outputs, and the loss that is reported."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from trainwright.errors import ModelError
from trainwright.tasks.support.precision import learned, restored
from trainwright.types import Array, DataInfo

_REGRESSION = {  # objective: link
    **dict.fromkeys(("RMSE", "MAE", "Quantile", "Expectile", "Huber", "MAPE", "LogCosh", "Lq"), "identity"),
    **dict.fromkeys(("Poisson", "Tweedie"), "exp"),
}
_MULTI_REGRESSION = {"MultiRMSE": "identity"}
_BINARY = {"Logloss": "sigmoid", "CrossEntropy": "sigmoid", "Focal": "sigmoid"}
_LABELS = {"MultiLogloss": "sigmoid", "MultiCrossEntropy": "sigmoid"}
_MULTICLASS = {"MultiClass": "softmax", "MultiClassOneVsAll": "sigmoid"}
_MIN_PROBABILITY = 1e-15  # keeps the cross entropy finite


@dataclass(frozen=True)
class Objective(ABC):
    """An objective of CatBoost for one task.

    Args:
        name: CatBoost's name of it, with its parameters; for a custom objective, the task's default.
        link: The function from raw values to predictions: identity, exp, sigmoid or softmax.
        info: The data.
        metric: A metric of the user's that is reported as the loss, or None.
    """

    name: str
    link: str
    info: DataInfo
    metric: Any = None

    estimator: ClassVar[str] = "CatBoostClassifier"  # CatBoost's class of such models

    @classmethod
    @abstractmethod
    def of(cls, info: DataInfo) -> tuple[Mapping[str, str], str]:
        """Return the objectives that fit, with their links, the default first; and what the targets are."""

    @property
    def width(self) -> int:
        """The number of raw values of a row."""
        return self.info.outputs

    def outputs(self, raw: Array) -> Array:
        """Convert (rows, width) raw values to the outputs.

        Returns:
            (rows, classes) or (rows, labels) probabilities, or (rows,) or (rows, outputs) values.
        """
        return self._outputs(self._predictions(raw))

    def answers(self, raw: Array) -> Array:
        """Convert (rows, width) raw values to what the task gets: probabilities are float32."""
        return self.outputs(raw).astype(np.float32)

    def loss(self, raw: Array, targets: Array, weights: Array | None = None) -> float:
        """Return the mean loss over the rows; 0 if none has a weight.

        It is the user's metric if there is one, else the cross entropy for classes and labels. For values it
        is the absolute, quantile, percentage or squared error, as the objective minimizes it. Errors are
        divided by the targets' standard deviation where that is known, except for MAPE.

        Args:
            raw: (rows, width) raw values.
            targets: (rows,) class indices or values, or (rows, outputs) values, as the data hold them.
            weights: (rows,) weights of the rows; None: all count the same.
        """
        targets = learned(targets, self.info)
        if self.metric is not None:
            return float(
                self.metric.get_final_error(*self.metric.evaluate(list(raw.T.copy()), targets, weights))
            )
        return _mean(self._losses(self.outputs(raw), targets), weights)

    @abstractmethod
    def _outputs(self, predictions: Array) -> Array:
        """Convert (rows, width) predictions of the link function to the outputs."""

    @abstractmethod
    def _losses(self, outputs: Array, targets: Array) -> Array:
        """Return the losses of the rows, (rows,) or (rows, outputs); see `loss`."""

    def _predictions(self, raw: Array) -> Array:
        if self.link == "identity":
            return raw
        if self.link == "exp":
            return np.asarray(np.exp(raw))
        if self.link == "softmax":
            return np.asarray(np.exp(raw - raw.max(axis=1, keepdims=True)))
        return np.asarray(np.exp(-np.logaddexp(0.0, -raw)))


class _Classes(Objective):
    @classmethod
    def of(cls, info: DataInfo) -> tuple[Mapping[str, str], str]:
        return _MULTICLASS if info.outputs > 2 else _BINARY, f"{info.outputs} classes"

    @property
    def width(self) -> int:
        return 1 if self.info.outputs == 2 else self.info.outputs

    def _outputs(self, predictions: Array) -> Array:
        if self.info.outputs == 2:
            return np.column_stack([1 - predictions[:, 0], predictions[:, 0]])
        return np.asarray(predictions / np.maximum(predictions.sum(axis=1, keepdims=True), _MIN_PROBABILITY))

    def _losses(self, outputs: Array, targets: Array) -> Array:
        chosen = outputs[np.arange(len(outputs)), targets]  # (rows,)
        return np.asarray(-np.log(np.maximum(chosen, _MIN_PROBABILITY)))


class _Labels(Objective):
    @classmethod
    def of(cls, info: DataInfo) -> tuple[Mapping[str, str], str]:
        return _LABELS, f"{info.outputs} labels"

    def _outputs(self, predictions: Array) -> Array:
        return predictions

    def _losses(self, outputs: Array, targets: Array) -> Array:
        own = np.where(targets > 0, outputs, 1 - outputs)  # (rows, labels)
        return np.asarray(-np.log(np.maximum(own, _MIN_PROBABILITY)))


class _Values(Objective):
    estimator: ClassVar[str] = "CatBoostRegressor"

    @classmethod
    def of(cls, info: DataInfo) -> tuple[Mapping[str, str], str]:
        return (_MULTI_REGRESSION, f"{info.outputs} values") if info.outputs > 1 else (_REGRESSION, "1 value")

    def _outputs(self, predictions: Array) -> Array:
        return predictions[:, 0] if self.info.outputs == 1 else predictions

    def answers(self, raw: Array) -> Array:
        return restored(self.outputs(raw), self.info)

    def _losses(self, outputs: Array, targets: Array) -> Array:
        values = targets.reshape(outputs.shape)
        errors: Array = (values - outputs) / self.info.target_scale
        kind, _, options = self.name.partition(":")
        if kind == "MAE":
            return np.abs(errors)
        if kind == "MAPE":
            return np.asarray(np.abs(values - outputs) / np.maximum(1, np.abs(values)))
        if kind == "Quantile":
            parameters = dict(part.split("=", 1) for part in options.split(";") if "=" in part)
            alpha = float(parameters.get("alpha", 0.5))
            return np.maximum(alpha * errors, (alpha - 1) * errors)
        return np.square(errors)


_OF_TASK: Mapping[str, type[Objective]] = {
    "classification": _Classes,
    "multilabel": _Labels,
    "regression": _Values,
}


def _mean(losses: Array, weights: Array | None) -> float:
    """Return the mean of (rows,) or (rows, outputs) losses, by the weights of the rows."""
    if weights is None:
        return float(losses.mean())
    by_row = losses.reshape(len(weights), -1).mean(axis=1)  # (rows,)
    return float(weights @ by_row / (weights.sum() or 1.0))


def build_objective(
    requested: str | None, info: DataInfo, *, custom: Any = None, metric: Any = None
) -> Objective:
    """Return the objective of a name, or the task's default if there is none or a custom one.

    Raises:
        ModelError: The objective does not fit the task, or higher values of the metric are better.
    """
    if metric is not None and metric.is_max_optimal():
        raise ModelError("model.params.metric: higher is better, but it is the loss; return its negative")
    make = _OF_TASK[info.task]
    allowed, targets = make.of(info)
    default = next(iter(allowed))
    name = default if requested is None or custom is not None else requested
    kind = name.partition(":")[0]
    if kind not in allowed:
        known = f"{', '.join(allowed)}, package.module:Class"
        raise ModelError(
            f"model.params.objective: {kind} does not fit targets of {targets}; allowed: {known}"
        )
    return make(name, allowed[kind], info, metric)
