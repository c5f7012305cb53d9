"""Objectives: what the raw values of the trees mean, and the loss that is reported of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from trainyard.errors import ModelError
from trainyard.types import Array, DataInfo

_VALUES = {  # objective: link
    **dict.fromkeys(("RMSE", "MAE", "Quantile", "Expectile", "Huber", "MAPE", "LogCosh", "Lq"), "identity"),
    **dict.fromkeys(("Poisson", "Tweedie"), "exp"),
}
_SEVERAL_VALUES = {"MultiRMSE": "identity"}
_TWO_CLASSES = {"Logloss": "sigmoid", "CrossEntropy": "sigmoid", "Focal": "sigmoid"}
_MORE_CLASSES = {"MultiClass": "softmax", "MultiClassOneVsAll": "sigmoid"}
_LEAST = 1e-15  # of a probability, so that one wrong certainty does not make a loss infinite


@dataclass(frozen=True)
class Objective:
    """What is learned: `name` as CatBoost calls it, with its parameters; or the usual one, whose metric a custom one is
    watched by. `metric` is a metric of the user's that is reported as the loss.
    """

    name: str
    link: str
    info: DataInfo
    metric: Any = None

    def outputs(self, raw: Array) -> Array:
        """(rows, width) raw values -> (rows, classes) probabilities, or (rows,) or (rows, outputs) values."""
        predictions = self._predictions(raw)
        if self.info.task == "regression":
            return predictions[:, 0] if self.info.outputs == 1 else predictions
        if self.info.outputs == 2:
            return np.column_stack([1 - predictions[:, 0], predictions[:, 0]])
        return np.asarray(predictions / np.maximum(predictions.sum(axis=1, keepdims=True), _LEAST))

    def loss(self, raw: Array, targets: Array) -> float:
        """The mean over the rows: of the user's metric; of the cross entropy; of the error that fits the objective, in units of
        the targets' standard deviation if that is known (MAPE's has no unit).
        """
        if self.metric is not None:
            return float(
                self.metric.get_final_error(*self.metric.evaluate(list(raw.T.copy()), targets, None))
            )
        outputs = self.outputs(raw)
        if self.info.task == "classification":
            return float(-np.log(np.maximum(outputs[np.arange(len(outputs)), targets], _LEAST)).mean())
        wanted = targets.reshape(outputs.shape)
        errors: Array = (wanted - outputs) / self.info.target_scale
        kind, _, listed = self.name.partition(":")
        if kind == "MAE":
            return float(np.abs(errors).mean())
        if kind == "MAPE":
            return float((np.abs(wanted - outputs) / np.maximum(1, np.abs(wanted))).mean())
        if kind == "Quantile":
            parameters = dict(part.split("=", 1) for part in listed.split(";") if "=" in part)
            alpha = float(parameters.get("alpha", 0.5))
            return float(np.maximum(alpha * errors, (alpha - 1) * errors).mean())
        return float(np.square(errors).mean())

    def _predictions(self, raw: Array) -> Array:
        if self.link == "identity":
            return raw
        if self.link == "exp":
            return np.asarray(np.exp(raw))
        if self.link == "softmax":
            return np.asarray(np.exp(raw - raw.max(axis=1, keepdims=True)))
        return np.asarray(np.exp(-np.logaddexp(0.0, -raw)))


def build_objective(
    given: str | None, info: DataInfo, *, custom: Any = None, metric: Any = None
) -> Objective:
    """The objective of that name, or the task's usual one.

    Raises:
        ModelError: it is not one for this task; or more of the metric is better.
    """
    if metric is not None and metric.is_max_optimal():
        raise ModelError(
            "model.params.metric: more of it is better, but it is reported as the loss; turn its sign"
        )
    several = info.outputs > 1
    if info.task == "regression":
        allowed = _SEVERAL_VALUES if several else _VALUES
    else:
        allowed = _MORE_CLASSES if info.outputs > 2 else _TWO_CLASSES
    usual = next(iter(allowed))
    name = usual if given is None or custom is not None else given
    kind = name.partition(":")[0]
    if kind not in allowed:
        what = f"{info.outputs} {'classes' if info.task == 'classification' else 'values' if several else 'value'}"
        raise ModelError(
            f"model.params.objective: {kind} is not for targets of {what}; allowed: {', '.join(allowed)}, package.module:Class"
        )
    return Objective(name, allowed[kind], info, metric)
