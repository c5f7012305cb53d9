"""Objectives: the link from raw values to outputs, and the loss that is reported.

They are of libraries that leave both to us where the objective is the user's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trainwright.errors import ModelError
from trainwright.tasks.support.precision import restored
from trainwright.types import Array, DataInfo

_MIN_PROBABILITY = 1e-15  # keeps the cross entropy finite


@dataclass(frozen=True)
class Objective(ABC):
    """An objective of a library for the targets of one task.

    Args:
        name: The library's name of it.
        link: The function from raw values to predictions: identity, exp, sigmoid or softmax.
        info: The data.
        error: Of values, the error that is reported, as the objective minimizes it: `squared`, `absolute`,
            `quantile` or `relative`.
        alpha: The quantile.
    """

    name: str
    link: str
    info: DataInfo
    error: str = "squared"
    alpha: float = 0.5

    @property
    def width(self) -> int:
        """The number of raw values of a row."""
        return self.width_of(self.info)

    @classmethod
    def width_of(cls, info: DataInfo) -> int:
        """Return the number of raw values of a row of some data."""
        return info.outputs

    def predictions(self, raw: Array) -> Array:
        """Convert (rows, width) float64 raw values to predictions, (rows, width)."""
        if self.link == "identity":
            return raw
        if self.link == "exp":
            return np.asarray(np.exp(raw))
        if self.link == "softmax":
            powers: Array = np.exp(raw - raw.max(axis=1, keepdims=True))
            return np.asarray(powers / powers.sum(axis=1, keepdims=True))
        return np.asarray(np.exp(-np.logaddexp(0.0, -raw)))

    @abstractmethod
    def outputs(self, predictions: Array) -> Array:
        """Convert (rows, width) predictions to the outputs.

        Returns:
            (rows, classes) or (rows, labels) probabilities, or (rows,) or (rows, outputs) values.
        """

    def answers(self, predictions: Array) -> Array:
        """Convert (rows, width) predictions to what the task gets: probabilities are float32."""
        return self.outputs(predictions).astype(np.float32)

    @abstractmethod
    def losses(self, outputs: Array, targets: Array) -> Array:
        """Return the losses of the rows, (rows,) or (rows, outputs).

        It is the cross entropy for classes and labels. Errors of values are divided by the targets' standard
        deviation where that is known, except for `relative`.
        """


class _Classes(Objective):
    @classmethod
    def width_of(cls, info: DataInfo) -> int:
        return 1 if info.outputs == 2 else info.outputs

    def outputs(self, predictions: Array) -> Array:
        if self.width == 1:
            return np.column_stack([1 - predictions[:, 0], predictions[:, 0]])
        if self.link == "softmax":
            return predictions
        return np.asarray(predictions / np.maximum(predictions.sum(axis=1, keepdims=True), _MIN_PROBABILITY))

    def losses(self, outputs: Array, targets: Array) -> Array:
        chosen = outputs[np.arange(len(outputs)), targets]  # (rows,)
        return np.asarray(-np.log(np.maximum(chosen, _MIN_PROBABILITY)))


class _Labels(Objective):
    def outputs(self, predictions: Array) -> Array:
        return predictions

    def losses(self, outputs: Array, targets: Array) -> Array:
        chosen = np.where(targets > 0, outputs, 1 - outputs)  # (rows, labels)
        return np.asarray(-np.log(np.maximum(chosen, _MIN_PROBABILITY)))


class _Values(Objective):
    def outputs(self, predictions: Array) -> Array:
        return predictions[:, 0] if self.info.outputs == 1 else predictions

    def answers(self, predictions: Array) -> Array:
        return restored(self.outputs(predictions), self.info)

    def losses(self, outputs: Array, targets: Array) -> Array:
        values = targets.reshape(outputs.shape)
        if self.error == "relative":
            return np.asarray(np.abs(values - outputs) / np.maximum(1, np.abs(values)))
        errors: Array = (values - outputs) / self.info.target_scale
        if self.error == "absolute":
            return np.abs(errors)
        if self.error == "quantile":
            return np.maximum(self.alpha * errors, (self.alpha - 1) * errors)
        return np.square(errors)


OF_TASK: Mapping[str, type[Objective]] = {
    "classification": _Classes,
    "multilabel": _Labels,
    "regression": _Values,
}


def check_fits(name: str, allowed: Mapping[str, str], targets: str, form: str) -> None:
    """Check that an objective is one of those that fit the targets.

    Args:
        name: The library's name of it.
        allowed: The objectives that fit.
        targets: What the targets are, for the message.
        form: The form of the user's own ones, for the message.

    Raises:
        ModelError: It is none of them.
    """
    if name not in allowed:
        known = f"{', '.join(allowed)}, package.module:{form}"
        raise ModelError(
            f"model.params.objective: {name} does not fit targets of {targets}; allowed: {known}"
        )


def mean_loss(losses: Array, weights: Array | None) -> float:
    """Return the mean of (rows,) or (rows, outputs) losses by the weights of the rows; 0 if none has one."""
    if weights is None:
        return float(losses.mean())
    by_row = losses.reshape(len(weights), -1).mean(axis=1)  # (rows,)
    return float(weights @ by_row / (weights.sum() or 1.0))
