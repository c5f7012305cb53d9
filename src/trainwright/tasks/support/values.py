"""Metrics of predicted values.

They agree with scikit-learn's functions of the same names, which are not called: it is a dependency of some
extras only. With several outputs, each metric is the mean over
the outputs (`max_error`: the maximum). `r2` and `explained_variance` are NaN for fewer than two rows; for a
constant target they are 1.0 if the predictions are exact, else 0.0; so is `d2_absolute_error`. Metrics of
logarithms and ratios are NaN where a target or a prediction is out of their domain (`rmsle`: -1 or less,
`poisson_deviance`: a target below 0 or a prediction of 0 or less), and correlations where one is constant.
Weights of rows count as `sample_weight` does there: `max_error` ignores them, and `medae` is the weighted
median.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainwright.tasks.base import Floats, Scores
from trainwright.types import Array


def _errors(scores: Scores) -> Array:
    """Return targets - outputs, (rows, outputs) float64."""
    return scores.targets - scores.outputs


def squared(scores: Scores) -> Floats:
    """Return the squared errors, (rows,), averaged over the outputs; their mean is `mse`."""
    return np.asarray(np.mean(_errors(scores) ** 2, axis=1), np.float64)


def pinball(quantile: float) -> Callable[[Scores], Floats]:
    """Return a function that returns the pinball losses at a quantile, (rows,), averaged over the outputs."""

    def by_row(scores: Scores) -> Floats:
        errors = _errors(scores)
        losses = np.maximum(quantile * errors, (quantile - 1) * errors)
        return np.asarray(np.mean(losses, axis=1), np.float64)

    return by_row


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


def msle(scores: Scores) -> float:
    """Return the mean squared error of log(1 + value)."""
    return _overall(scores, _squared_log(scores))


def rmsle(scores: Scores) -> float:
    """Return the root mean squared error of log(1 + value): the mean over the outputs of each one's root."""
    return float(np.mean(np.sqrt(scores.mean(_squared_log(scores)))))


def _squared_log(scores: Scores) -> Floats:
    """Return the squared errors of log(1 + value), (rows, outputs); NaN if a value is -1 or less."""
    if min(scores.targets.min(), scores.outputs.min()) <= -1:
        return np.full(scores.targets.shape, np.nan)
    return np.asarray((np.log1p(scores.targets) - np.log1p(scores.outputs)) ** 2)


def smape(scores: Scores) -> float:
    """Return the symmetric mean absolute percentage error: |error| / mean(|target|, |prediction|)."""
    size = (np.abs(scores.targets) + np.abs(scores.outputs)) / 2
    shares = np.divide(np.abs(_errors(scores)), size, out=np.zeros(size.shape), where=size > 0)
    return _overall(scores, shares)


def wape(scores: Scores) -> float:
    """Return the sum of the absolute errors as a share of the sum of the absolute targets."""
    total = _sum(scores, np.abs(scores.targets))  # (outputs,)
    errors = _sum(scores, np.abs(_errors(scores)))
    return float(np.mean(errors / total)) if total.all() else float("nan")


def poisson_deviance(scores: Scores) -> float:
    """Return the mean Poisson deviance."""
    true, guess = scores.targets, scores.outputs
    if true.min() < 0 or guess.min() <= 0:
        return float("nan")
    logs = np.where(true > 0, true * np.log(np.where(true > 0, true, 1) / guess), 0.0)
    return _overall(scores, 2 * (logs - true + guess))


def gamma_deviance(scores: Scores) -> float:
    """Return the mean Gamma deviance."""
    true, guess = scores.targets, scores.outputs
    if min(true.min(), guess.min()) <= 0:
        return float("nan")
    return _overall(scores, 2 * (np.log(guess / true) + true / guess - 1))


def pearson(scores: Scores) -> float:
    """Return Pearson's correlation of targets and predictions, averaged over the outputs."""
    return _correlation(scores, scores.targets, scores.outputs)


def spearman(scores: Scores) -> float:
    """Return Spearman's rank correlation of targets and predictions, averaged over the outputs."""
    return _correlation(scores, _ranks(scores.targets), _ranks(scores.outputs))


def _ranks(values: Array) -> Floats:
    """Return the ranks within each column, (rows, outputs); equal values share their mean rank."""

    def of_column(column: Array) -> Floats:
        _, distinct, counts = np.unique(column, return_inverse=True, return_counts=True)
        return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[distinct])

    return np.stack([of_column(column) for column in values.T], axis=1)


def _correlation(scores: Scores, first: Array, second: Array) -> float:
    """Return the mean over the columns of two (rows, outputs) arrays of their correlation, by the weights."""
    one, other = first - scores.mean(first), second - scores.mean(second)
    spread = np.sqrt(_sum(scores, one**2) * _sum(scores, other**2))  # (outputs,)
    return float(np.mean(_sum(scores, one * other) / spread)) if spread.all() else float("nan")


def r2(scores: Scores) -> float:
    """Return the coefficient of determination."""
    return _explained(scores, _sum(scores, _errors(scores) ** 2))


def d2_absolute_error(scores: Scores) -> float:
    """Return the share of the absolute error that is explained, compared with predicting the median."""
    if len(scores.targets) < 2:
        return float("nan")
    medians = (
        np.median(scores.targets, axis=0)
        if scores.weights is None
        else np.array([_weighted_median(column, scores.weights) for column in scores.targets.T])
    )
    total = _sum(scores, np.abs(scores.targets - medians))
    return _share_explained(_sum(scores, np.abs(_errors(scores))), total)


def explained_variance(scores: Scores) -> float:
    """Return the explained share of the variance; unlike in `r2`, a constant error does not count."""
    errors = _errors(scores)
    return _explained(scores, _sum(scores, (errors - scores.mean(errors)) ** 2))


def _explained(scores: Scores, unexplained: Array) -> float:
    """Return 1 - `unexplained` (outputs,) / total sum of squares, averaged over the outputs."""
    if len(scores.targets) < 2:
        return float("nan")
    total = _sum(scores, (scores.targets - scores.mean(scores.targets)) ** 2)
    return _share_explained(unexplained, total)


def _share_explained(unexplained: Array, total: Array) -> float:
    """Return 1 - unexplained / total, (outputs,) both, averaged over the outputs."""
    left = np.divide(unexplained, total, out=(unexplained > 0).astype(np.float64), where=total > 0)
    return float(np.mean(1.0 - left))
