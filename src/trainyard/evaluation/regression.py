"""Metrics of predicted values.

They agree with scikit-learn's functions of the same names. With several outputs, each metric is the mean over
the outputs (`max_error`: the maximum). `r2` and `explained_variance` are NaN for fewer than two rows; for a
constant target they are 1.0 if the predictions are exact, else 0.0.
"""

from __future__ import annotations

import numpy as np

from trainyard.evaluation.scores import Scores
from trainyard.types import Array


def _errors(scores: Scores) -> Array:
    """Return targets - outputs, (rows, outputs) float64."""
    return scores.targets - scores.outputs


def mse(scores: Scores) -> float:
    """Return the mean squared error."""
    return float(np.mean(_errors(scores) ** 2))


def rmse(scores: Scores) -> float:
    """Return the root mean squared error: the mean over the outputs of each output's root."""
    return float(np.mean(np.sqrt(np.mean(_errors(scores) ** 2, axis=0))))


def mae(scores: Scores) -> float:
    """Return the mean absolute error."""
    return float(np.mean(np.abs(_errors(scores))))


def medae(scores: Scores) -> float:
    """Return the median absolute error over the rows, averaged over the outputs."""
    return float(np.mean(np.median(np.abs(_errors(scores)), axis=0)))


def max_error(scores: Scores) -> float:
    """Return the largest absolute error."""
    return float(np.max(np.abs(_errors(scores))))


def mape(scores: Scores) -> float:
    """Return the mean absolute error as a share of the absolute target."""
    epsilon = np.finfo(np.float64).eps  # a target of 0 gives a huge value instead of infinity
    return float(np.mean(np.abs(_errors(scores)) / np.maximum(np.abs(scores.targets), epsilon)))


def r2(scores: Scores) -> float:
    """Return the coefficient of determination."""
    return _explained(scores, np.sum(_errors(scores) ** 2, axis=0))


def explained_variance(scores: Scores) -> float:
    """Return the explained share of the variance; unlike in `r2`, a constant error does not count."""
    errors = _errors(scores)
    return _explained(scores, np.sum((errors - errors.mean(axis=0)) ** 2, axis=0))


def _explained(scores: Scores, unexplained: Array) -> float:
    """Return 1 - `unexplained` (outputs,) / total sum of squares, averaged over the outputs."""
    if len(scores.targets) < 2:
        return float("nan")
    total = np.sum((scores.targets - scores.targets.mean(axis=0)) ** 2, axis=0)
    left = np.divide(unexplained, total, out=(unexplained > 0).astype(np.float64), where=total > 0)
    return float(np.mean(1.0 - left))
