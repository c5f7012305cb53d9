"""Metrics of predicted values.

They agree with scikit-learn's functions of the same names. With several outputs, each metric is the mean over
the outputs (`max_error`: the maximum). `r2` and `explained_variance` are NaN for fewer than two rows; for a
constant target they are 1.0 if the predictions are exact, else 0.0; so is `d2_absolute_error`. Metrics of
logarithms and ratios are NaN where a target or a prediction is out of their domain (`rmsle`: -1 or less,
`poisson_deviance`: a target below 0 or a prediction of 0 or less), and correlations where one is constant.
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


def msle(scores: Scores) -> float:
    """Return the mean squared error of log(1 + value)."""
    return float(np.mean(_squared_log(scores)))


def rmsle(scores: Scores) -> float:
    """Return the root mean squared error of log(1 + value): the mean over the outputs of each one's root."""
    return float(np.mean(np.sqrt(np.mean(_squared_log(scores), axis=0))))


def _squared_log(scores: Scores) -> Floats:
    """Return the squared errors of log(1 + value), (rows, outputs); NaN if a value is -1 or less."""
    if min(scores.targets.min(), scores.outputs.min()) <= -1:
        return np.full(scores.targets.shape, np.nan)
    return np.asarray((np.log1p(scores.targets) - np.log1p(scores.outputs)) ** 2)


def smape(scores: Scores) -> float:
    """Return the symmetric mean absolute percentage error: |error| / mean(|target|, |prediction|)."""
    size = (np.abs(scores.targets) + np.abs(scores.outputs)) / 2
    shares = np.divide(np.abs(_errors(scores)), size, out=np.zeros(size.shape), where=size > 0)
    return float(np.mean(shares))


def wape(scores: Scores) -> float:
    """Return the sum of the absolute errors as a share of the sum of the absolute targets."""
    total = np.abs(scores.targets).sum(axis=0)  # (outputs,)
    return float(np.mean(np.abs(_errors(scores)).sum(axis=0) / total)) if total.all() else float("nan")


def poisson_deviance(scores: Scores) -> float:
    """Return the mean Poisson deviance."""
    true, guess = scores.targets, scores.outputs
    if true.min() < 0 or guess.min() <= 0:
        return float("nan")
    logs = np.where(true > 0, true * np.log(np.where(true > 0, true, 1) / guess), 0.0)
    return float(np.mean(2 * (logs - true + guess)))


def gamma_deviance(scores: Scores) -> float:
    """Return the mean Gamma deviance."""
    true, guess = scores.targets, scores.outputs
    if min(true.min(), guess.min()) <= 0:
        return float("nan")
    return float(np.mean(2 * (np.log(guess / true) + true / guess - 1)))


def pearson(scores: Scores) -> float:
    """Return Pearson's correlation of targets and predictions, averaged over the outputs."""
    return _correlation(scores.targets, scores.outputs)


def spearman(scores: Scores) -> float:
    """Return Spearman's rank correlation of targets and predictions, averaged over the outputs."""
    return _correlation(_ranks(scores.targets), _ranks(scores.outputs))


def _ranks(values: Array) -> Floats:
    """Return the ranks within each column, (rows, outputs); equal values share their mean rank."""

    def of_column(column: Array) -> Floats:
        _, distinct, counts = np.unique(column, return_inverse=True, return_counts=True)
        return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[distinct])

    return np.stack([of_column(column) for column in values.T], axis=1)


def _correlation(first: Array, second: Array) -> float:
    """Return the mean over the columns of two (rows, outputs) arrays of their correlation."""
    one, other = first - first.mean(axis=0), second - second.mean(axis=0)
    spread = np.sqrt(np.sum(one**2, axis=0) * np.sum(other**2, axis=0))  # (outputs,)
    return float(np.mean(np.sum(one * other, axis=0) / spread)) if spread.all() else float("nan")


def r2(scores: Scores) -> float:
    """Return the coefficient of determination."""
    return _explained(scores, np.sum(_errors(scores) ** 2, axis=0))


def d2_absolute_error(scores: Scores) -> float:
    """Return the share of the absolute error that is explained, compared with predicting the median."""
    if len(scores.targets) < 2:
        return float("nan")
    total = np.sum(np.abs(scores.targets - np.median(scores.targets, axis=0)), axis=0)
    return _share_explained(np.sum(np.abs(_errors(scores)), axis=0), total)


def explained_variance(scores: Scores) -> float:
    """Return the explained share of the variance; unlike in `r2`, a constant error does not count."""
    errors = _errors(scores)
    return _explained(scores, np.sum((errors - errors.mean(axis=0)) ** 2, axis=0))


def _explained(scores: Scores, unexplained: Array) -> float:
    """Return 1 - `unexplained` (outputs,) / total sum of squares, averaged over the outputs."""
    if len(scores.targets) < 2:
        return float("nan")
    total = np.sum((scores.targets - scores.targets.mean(axis=0)) ** 2, axis=0)
    return _share_explained(unexplained, total)


def _share_explained(unexplained: Array, total: Array) -> float:
    """Return 1 - unexplained / total, (outputs,) both, averaged over the outputs."""
    left = np.divide(unexplained, total, out=(unexplained > 0).astype(np.float64), where=total > 0)
    return float(np.mean(1.0 - left))
