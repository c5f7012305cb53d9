"""Metrics of predicted values.

They agree with scikit-learn's functions of the same names. With several outputs, each metric is the mean over
the outputs (`max_error`: the maximum). `r2` and `explained_variance` are NaN for fewer than two rows; for a
constant target they are 1.0 if the predictions are exact, else 0.0. Weights of rows count as `sample_weight`
does there: `max_error` ignores them, and `medae` is the weighted median.
"""

from __future__ import annotations

import numpy as np

from trainyard.tasks.base import Floats, Scores
from trainyard.types import Array


def _errors(scores: Scores) -> Array:
    """Return targets - outputs, (rows, outputs) float64."""
    return scores.targets - scores.outputs


def squared(scores: Scores) -> Floats:
    """Return the squared errors, (rows,), averaged over the outputs; their mean is `mse`."""
    return np.asarray(np.mean(_errors(scores) ** 2, axis=1), np.float64)


def squared_if_single(scores: Scores) -> Floats | None:
    """Return the squared errors, (rows,), if there is one output: they decide `rmse`, too."""
    return squared(scores) if scores.outputs.shape[1] == 1 else None


def squared_by_variance(scores: Scores) -> Floats | None:
    """Return the squared errors as shares of the targets' variances, (rows,): they decide `r2`.

    None for a constant target: then `r2` only says whether the predictions are exact.
    """
    if scores.outputs.shape[1] == 1:
        return squared(scores)
    variances = np.var(scores.targets, axis=0)  # (outputs,)
    if not variances.all():
        return None
    return np.asarray(np.mean(_errors(scores) ** 2 / variances, axis=1), np.float64)


def absolute(scores: Scores) -> Floats:
    """Return the absolute errors, (rows,), averaged over the outputs; their mean is `mae`."""
    return np.asarray(np.mean(np.abs(_errors(scores)), axis=1), np.float64)


def relative(scores: Scores) -> Floats:
    """Return the absolute errors as shares of the targets, (rows,); their mean is `mape`."""
    smallest = np.finfo(np.float64).eps
    errors = np.abs(_errors(scores)) / np.maximum(np.abs(scores.targets), smallest)
    return np.asarray(np.mean(errors, axis=1), np.float64)


def _overall(scores: Scores, values: Array) -> float:
    """Return the mean of (rows, outputs) values over the rows, by their weights, and the outputs."""
    return float(np.mean(values) if scores.weights is None else np.mean(scores.mean(values)))


def _sum(scores: Scores, values: Array) -> Array:
    """Return the sum of (rows, outputs) values over the rows, by their weights: (outputs,)."""
    return np.asarray(np.sum(values, axis=0) if scores.weights is None else scores.weights @ values)


def _weighted_median(values: Array, weights: Array) -> float:
    """Return the median of (rows,) values by their weights.

    It is the first value with half of the weight at or before it; where that is exactly half, the mean of it
    and the next one.
    """
    order = np.argsort(values, kind="stable")
    order = order[weights[order] > 0]
    ordered, total = values[order], np.cumsum(weights[order])
    first = int(np.searchsorted(total, total[-1] / 2))
    is_exact = total[first] - total[-1] / 2 <= np.finfo(np.float64).eps
    following = min(first + 1, len(ordered) - 1) if is_exact else first
    return float((ordered[first] + ordered[following]) / 2)


def mse(scores: Scores) -> float:
    """Return the mean squared error."""
    return _overall(scores, _errors(scores) ** 2)


def rmse(scores: Scores) -> float:
    """Return the root mean squared error: the mean over the outputs of each output's root."""
    return float(np.mean(np.sqrt(scores.mean(_errors(scores) ** 2))))


def mae(scores: Scores) -> float:
    """Return the mean absolute error."""
    return _overall(scores, np.abs(_errors(scores)))


def medae(scores: Scores) -> float:
    """Return the median absolute error over the rows, averaged over the outputs."""
    errors = np.abs(_errors(scores))
    if scores.weights is None:
        return float(np.mean(np.median(errors, axis=0)))
    return float(np.mean([_weighted_median(column, scores.weights) for column in errors.T]))


def max_error(scores: Scores) -> float:
    """Return the largest absolute error."""
    return float(np.max(np.abs(_errors(scores))))


def mape(scores: Scores) -> float:
    """Return the mean absolute error as a share of the absolute target."""
    epsilon = np.finfo(np.float64).eps  # a target of 0 gives a huge value instead of infinity
    return _overall(scores, np.abs(_errors(scores)) / np.maximum(np.abs(scores.targets), epsilon))


def r2(scores: Scores) -> float:
    """Return the coefficient of determination."""
    return _explained(scores, _sum(scores, _errors(scores) ** 2))


def explained_variance(scores: Scores) -> float:
    """Return the explained share of the variance; unlike in `r2`, a constant error does not count."""
    errors = _errors(scores)
    return _explained(scores, _sum(scores, (errors - scores.mean(errors)) ** 2))


def _explained(scores: Scores, unexplained: Array) -> float:
    """Return 1 - `unexplained` (outputs,) / total sum of squares, averaged over the outputs."""
    if len(scores.targets) < 2:
        return float("nan")
    total = _sum(scores, (scores.targets - scores.mean(scores.targets)) ** 2)
    left = np.divide(unexplained, total, out=(unexplained > 0).astype(np.float64), where=total > 0)
    return float(np.mean(1.0 - left))
