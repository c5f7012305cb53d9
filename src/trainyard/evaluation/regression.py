"""Metrics of predicted values.

They agree with scikit-learn's functions of the same names; with several outputs each is the mean over the outputs.
`r2` and `explained_variance` are NaN for fewer than two rows; for constant targets they are 1.0 where the
predictions are exact, else 0.0.
"""

from __future__ import annotations

import numpy as np

from trainyard.evaluation.scores import Scores
from trainyard.types import Array


def _errors(scores: Scores) -> Array:
    return scores.targets - scores.outputs


def mse(scores: Scores) -> float:
    return float(np.mean(_errors(scores) ** 2))


def rmse(scores: Scores) -> float:
    return float(np.mean(np.sqrt(np.mean(_errors(scores) ** 2, axis=0))))


def mae(scores: Scores) -> float:
    return float(np.mean(np.abs(_errors(scores))))


def medae(scores: Scores) -> float:
    return float(np.mean(np.median(np.abs(_errors(scores)), axis=0)))


def max_error(scores: Scores) -> float:
    return float(np.max(np.abs(_errors(scores))))


def mape(scores: Scores) -> float:
    epsilon = np.finfo(np.float64).eps  # a target of 0 gives a huge value rather than infinity
    return float(np.mean(np.abs(_errors(scores)) / np.maximum(np.abs(scores.targets), epsilon)))


def r2(scores: Scores) -> float:
    return _explained(scores, np.sum(_errors(scores) ** 2, axis=0))


def explained_variance(scores: Scores) -> float:
    errors = _errors(scores)
    return _explained(scores, np.sum((errors - errors.mean(axis=0)) ** 2, axis=0))


def _explained(scores: Scores, unexplained: Array) -> float:
    """The share of the targets' sum of squares that is not left in `unexplained`, (outputs,)."""
    if len(scores.targets) < 2:
        return float("nan")
    total = np.sum((scores.targets - scores.targets.mean(axis=0)) ** 2, axis=0)
    left = np.divide(unexplained, total, out=(unexplained > 0).astype(np.float64), where=total > 0)
    return float(np.mean(1.0 - left))
