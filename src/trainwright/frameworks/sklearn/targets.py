"""Targets of each task as scikit-learn takes them: its kind of estimators, their outputs, and the loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from trainwright.types import Array, DataInfo

# Lower bound of a probability in the loss, so that a wrong vote costs 15.9 and not infinity.
MIN_PROBABILITY = float(np.finfo(np.float32).eps)


class Targets:
    """The targets of some data; here one value for each row, or several."""

    estimators: ClassVar[str] = "regression"  # which of the two kinds predicts them, as in models.json
    by_trees: ClassVar[bool] = True  # whether a forest's outputs are the mean over its trees
    are_labels: ClassVar[bool] = False

    def __init__(self, info: DataInfo) -> None:
        self.info = info

    @property
    def several(self) -> bool:
        """Return whether a row has several targets."""
        return self.info.outputs > 1

    def fit(self, estimator: Any) -> bool:
        """Return whether an estimator is of the kind that predicts them."""
        from sklearn.base import is_classifier, is_regressor

        return bool({"classification": is_classifier, "regression": is_regressor}[self.estimators](estimator))

    def outputs(self, estimator: Any, features: Array) -> Array:
        """Return an estimator's outputs, float64; see `outputs.outputs_of`."""
        values = np.asarray(estimator.predict(features), dtype=np.float64)
        return values.reshape(len(features), -1) if self.several else values.reshape(len(features))

    def complete(self, estimator: Any, outputs: Array) -> Array:  # noqa: ARG002 - it has learned all values
        """Add what the training rows have not shown an estimator to its outputs."""
        return outputs

    def losses(self, outputs: Array, targets: Array) -> Array:
        """Return the loss of each row, (rows,)."""
        errors: Array = (outputs - targets.astype(np.float64).reshape(outputs.shape)) ** 2
        return errors if errors.ndim == 1 else errors.mean(axis=1)


class _Classes(Targets):
    """Each row is of one class."""

    estimators: ClassVar[str] = "classification"

    @property
    def several(self) -> bool:
        return False

    def outputs(self, estimator: Any, features: Array) -> Array:
        classes = np.asarray(estimator.classes_)
        if hasattr(estimator, "predict_proba"):
            probabilities = np.asarray(estimator.predict_proba(features), dtype=np.float64)
            # Radius neighbors give NaN for a row without neighbors: all classes are then equally probable.
            return np.where(np.isnan(probabilities), 1 / len(classes), probabilities)
        if hasattr(estimator, "decision_function"):
            values = np.asarray(estimator.decision_function(features), dtype=np.float64)
            if values.ndim == 1:
                values = np.stack([np.zeros_like(values), values], axis=1)
            if values.shape[1] == len(classes):
                shifted = np.exp(values - values.max(axis=1, keepdims=True))
                return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
        votes: Array = np.asarray(estimator.predict(features))[:, None] == classes
        return votes.astype(np.float64)

    def complete(self, estimator: Any, outputs: Array) -> Array:
        """Add a column of zeros for every class that no training row has."""
        if len(estimator.classes_) == self.info.outputs:
            return outputs
        probabilities = np.zeros((len(outputs), self.info.outputs))
        probabilities[:, np.asarray(estimator.classes_, dtype=np.int64)] = outputs
        return probabilities

    def losses(self, outputs: Array, targets: Array) -> Array:
        return np.asarray(-np.log(np.maximum(outputs[np.arange(len(targets)), targets], MIN_PROBABILITY)))


class _Labels(Targets):
    """Each row has any number of labels. Classifiers predict them too."""

    estimators: ClassVar[str] = "classification"
    by_trees: ClassVar[bool] = False
    are_labels: ClassVar[bool] = True

    def outputs(self, estimator: Any, features: Array) -> Array:
        """Return the probability of each label, (rows, labels) float64.

        Some estimators give one (rows, 2) array for each label, in which a label that all or no training rows
        have has one column.
        """
        if not hasattr(estimator, "predict_proba"):
            if hasattr(estimator, "decision_function"):
                return np.asarray(1 / (1 + np.exp(-np.asarray(estimator.decision_function(features)))))
            return np.asarray(estimator.predict(features), dtype=np.float64)
        by_label = estimator.predict_proba(features)
        if not isinstance(by_label, list):
            return np.asarray(by_label, dtype=np.float64)
        columns = [
            own[:, 1] if own.shape[1] == 2 else np.full(len(features), float(known[0]))
            for own, known in zip(by_label, estimator.classes_, strict=True)
        ]
        return np.stack(columns, axis=1).astype(np.float64)

    def losses(self, outputs: Array, targets: Array) -> Array:
        own = np.where(targets > 0, outputs, 1 - outputs)  # (rows, labels)
        return np.asarray(-np.log(np.maximum(own, MIN_PROBABILITY)).mean(axis=1))


_OF_TASK: Mapping[str, type[Targets]] = {
    "classification": _Classes,
    "multilabel": _Labels,
    "regression": Targets,
}


def targets_of(info: DataInfo) -> Targets:
    """Return the targets of some data."""
    return _OF_TASK[info.task](info)
