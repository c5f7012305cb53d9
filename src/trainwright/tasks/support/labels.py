"""Metrics of the probabilities of labels.

They agree with scikit-learn's functions of the same names for an indicator matrix, where a label is predicted
if its probability is above 0.5. Edge cases:

- precision, recall and F1 are 0.0 if their denominator is 0 (`zero_division=0`);
- `roc_auc` and `average_precision` are means over the labels that some rows have and others lack; NaN if
  there is no such label.

Weights of rows count as `sample_weight` does in scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trainwright.tasks.base import Floats, Scores
from trainwright.tasks.support.classes import (
    BinaryMetric,
    PerClass,
    binary_auc,
    binary_average_precision,
    ratio,
)

Average = Literal["macro", "micro", "weighted", "samples"]
AVERAGES: tuple[Average, ...] = ("macro", "micro", "weighted", "samples")
THRESHOLD = 0.5


def _predicted(scores: Scores) -> NDArray[np.bool_]:
    """Return which labels are predicted, (rows, labels)."""
    return np.asarray(scores.outputs > THRESHOLD)


def per_label(scores: Scores) -> PerClass:
    """Compute precision, recall and F1 of each label."""
    return _counted(scores, 0)


def _counted(scores: Scores, axis: int | None) -> PerClass:
    """Compute precision, recall and F1 of each label (axis 0), of each row (1), or of all cells (None)."""
    true, predicted = scores.targets > 0, _predicted(scores)
    # Within a row its weight is the same for all, so that it does not matter there.
    weights = None if scores.weights is None or axis == 1 else scores.weights[:, None]  # (rows, 1)
    hits, support, count = (
        np.atleast_1d((cells if weights is None else cells * weights).sum(axis=axis))
        for cells in (true & predicted, true, predicted)
    )
    return PerClass(
        ratio(hits, count), ratio(hits, support), ratio(2 * hits, support + count), support, count
    )


def averaged(field: Literal["precision", "recall", "f1"], average: Average) -> Callable[[Scores], float]:
    """Return the metric that averages one field of `PerClass` over labels, cells or rows."""

    def metric(scores: Scores) -> float:
        table = _counted(scores, {"micro": None, "samples": 1}.get(average, 0))
        values: Floats = getattr(table, field)
        if average == "weighted":
            return float(np.average(values, weights=table.support)) if table.support.any() else 0.0
        return float(scores.mean(values) if average == "samples" else np.mean(values))

    return metric


def is_exact(scores: Scores) -> Floats:
    """Return 1.0 for each row whose labels are all predicted correctly, else 0.0, (rows,)."""
    return np.asarray((_predicted(scores) == (scores.targets > 0)).all(axis=1), np.float64)


def subset_accuracy(scores: Scores) -> float:
    """Return the share of rows whose labels are all predicted correctly."""
    return float(scores.mean(is_exact(scores)))


def wrong_share(scores: Scores) -> Floats:
    """Return the share of each row's labels that are predicted wrongly, (rows,)."""
    return np.asarray((_predicted(scores) != (scores.targets > 0)).mean(axis=1), np.float64)


def hamming_loss(scores: Scores) -> float:
    """Return the share of all labels that are predicted wrongly."""
    return float(scores.mean(wrong_share(scores)))


def binary_cross_entropy(scores: Scores) -> Floats:
    """Return the binary cross-entropy of each row, (rows,), averaged over the labels.

    Probabilities are clipped to [eps, 1 - eps] of float32, the dtype in which models give them.
    """
    own = np.where(scores.targets > 0, scores.outputs, 1 - scores.outputs)
    epsilon = float(np.finfo(np.float32).eps)
    return np.asarray(-np.log(np.clip(own, epsilon, 1 - epsilon)).mean(axis=1))


def log_loss(scores: Scores) -> float:
    """Return the mean binary cross-entropy of the labels."""
    return float(scores.mean(binary_cross_entropy(scores)))


def _over_labels(metric: BinaryMetric) -> Callable[[Scores], float]:
    def mean(scores: Scores) -> float:
        true = scores.targets > 0
        usable = np.flatnonzero(true.any(axis=0) & ~true.all(axis=0))
        if not len(usable):
            return float("nan")
        return float(
            np.mean([metric(true[:, label], scores.outputs[:, label], scores.weights) for label in usable])
        )

    return mean


roc_auc = _over_labels(binary_auc)
average_precision = _over_labels(binary_average_precision)
