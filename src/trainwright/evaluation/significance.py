"""Tests of whether the difference between two models could be due to chance.

All tests are paired: both models are measured on the same rows, or on the same folds. They are two-sided and
come with a 95% interval. Random numbers are counter-based keys, so the same predictions give the same results
on every machine.

    shares of rows        the exact McNemar test (McNemar, 1947): of the rows that exactly one model gets
    (accuracy)            right, does each model get half?
    means over rows       the sign-flip permutation test (Fisher, 1935): if the models were equally good, each
                          difference could equally well have the other sign. `r2` is tested by squared errors,
                          each output's as a share of its target's variance; `rmse` by squared errors too, but
                          with a single output only.
    any other metric      the paired bootstrap (Efron, 1979): rows are drawn with replacement. Simulated with
                          two equally good models (23 positive ones of 600 rows, 271 repeats), p was below 5%
                          in 6% of the repeats (area under the ROC curve, average precision) and 5% (F1).
    a metric over folds   the corrected resampled t-test (Nadeau and Bengio, 2003): folds share training rows,
                          so their plain variance is too small

With several models, all pairs are tested. Adjusting all these p-values with `holm` keeps the probability of
any false positive at the level of a single test (Holm, 1979). Adjusting only the tests that involve the best
model would not, because the best model is chosen on the same rows.

The tests are written out, and not SciPy's: every installation compares models, and SciPy is a dependency of
some extras only. The same resamples and signs serve all pairs. Our tests compare the results with SciPy's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.errors import InputError
from trainwright.evaluation.metrics import LOSS, adds_up, find_metric, without_prefix
from trainwright.order import random_keys, stream_seed
from trainwright.tasks.base import UNBOUNDED, Bounds, Metric, Scores, Task
from trainwright.types import Array

Floats = NDArray[np.float64]
Statistic = Callable[[Array], float | Sequence[float]]
Pair = tuple[int, int]

LEVEL = 0.05  # significance level
_FLIPS = 9999
_RESAMPLES = 1000
_MIN_RESAMPLES = 100
_RESAMPLED_ROWS = (
    5_000_000  # limit on rows * resamples, since each resample computes the metric again: some seconds
)
# With many pairs, more samples are drawn: otherwise no p-value could stay below 5% after Holm's factor.
_FLIPS_PER_PAIR, _RESAMPLES_PER_PAIR = 40, 80
_NORMAL_LIMIT = 50_000  # with at least this many rows, means are treated as normally distributed
_TOLERANCE = 1 - 1e-12  # sums of the same numbers in a different order differ in the last digits
_FLIP_STREAM, _BOOTSTRAP_STREAM = 1, 2


@dataclass(frozen=True)
class Significance:
    """The result of one test.

    Attributes:
        test: Name of the test.
        metric: Bare name of the metric.
        effect: The second model's metric minus the first model's, in the metric's units.
        interval: The effect's 95% interval.
        p_value: Probability of an effect at least this large if the models were equally good.
        pairs: Number of paired observations: rows or folds.
    """

    test: str
    metric: str
    effect: float
    interval: tuple[float, float]
    p_value: float
    pairs: int

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.interval[0]

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.interval[1]

    @property
    def significant(self) -> bool:
        """Return whether `p_value` is below 5%."""
        return self.p_value < LEVEL

    def to_json(self) -> dict[str, Any]:
        """Return the fields, the ends of the interval and `significant` as JSON."""
        plain = {name: value for name, value in asdict(self).items() if name != "interval"}
        return plain | {"low": self.low, "high": self.high, "significant": self.significant}


def same_rows(metric: str, first: Scores, second: Scores, seed: int = 0) -> Significance:
    """Compare two models on the same rows by a metric, with the test that fits the metric.

    Args:
        metric: Name of the metric, with or without a split's prefix (`f1`, `test_f1`), or its import path.
        first: Outputs and targets of the first model.
        second: Outputs of the second model, with the same targets.
        seed: Seed of the permutation test and of the bootstrap.

    Raises:
        InputError: The metric does not exist, or is not for this task.
    """
    return all_pairs(metric, [first, second], seed)[0, 1]


def all_pairs(metric: str, models: Sequence[Scores], seed: int = 0) -> dict[Pair, Significance]:
    """Compare all pairs of models on the same rows, as `same_rows` does.

    Args:
        metric: Name of the metric, with or without a split's prefix.
        models: Outputs and targets of each model; all have the same targets.
        seed: Seed of the permutation tests and of the bootstrap.

    Returns:
        The tests by the indices of both models, the lower index first.

    Raises:
        InputError: The metric does not exist, or is not for this task.
    """
    name = _computable(metric, models[0].task)
    measure = find_metric(name, models[0].task)
    pairs, rows = list(itertools.combinations(range(len(models)), 2)), len(models[0].targets)
    values = [measure.function(scores) for scores in models]
    effects = [values[second] - values[first] for first, second in pairs]
    flippable = [_flippable(measure, scores) for scores in models]
    wanted = _RESAMPLES if flippable[0] is not None else max(_RESAMPLES, _RESAMPLES_PER_PAIR * len(pairs))
    by_row = [_by_row(measure, scores) for scores in models]
    if by_row[0] is not None and rows >= _NORMAL_LIMIT:
        resampled: Sequence[Floats] = []
        intervals = [normal_interval(difference) for difference in _differences(by_row, pairs)]
    else:
        statistics = [_on_rows(measure, scores) for scores in models]
        resampled = list(
            bootstrap(lambda ids: [statistic(ids) for statistic in statistics], rows, seed, wanted).T
        )
        intervals = [quantile_interval(difference) for difference in _differences(resampled, pairs)]
    if all(values is not None and ((values == 0) | (values == 1)).all() for values in by_row):
        test = "exact McNemar"
        p_values = [mcnemar(difference) for difference in _differences(by_row, pairs)]
    elif flippable[0] is not None:
        test, p_values = "paired sign-flip permutation", sign_flips(_differences(flippable, pairs), seed)
    else:
        test = "paired bootstrap"
        both = zip(_differences(resampled, pairs), effects, strict=True)
        p_values = [bootstrap_p(difference, effect, wanted) for difference, effect in both]
    results = zip(effects, intervals, p_values, strict=True)
    return {
        pair: Significance(test, without_prefix(name), effect, interval, p_value, rows)
        for pair, (effect, interval, p_value) in zip(pairs, results, strict=True)
    }


def _differences(values: Sequence[Floats | None], pairs: Sequence[Pair]) -> Iterator[Floats]:
    """Yield for each pair of models the second one's values minus the first one's."""
    for first, second in pairs:
        subtrahend, minuend = values[first], values[second]
        if subtrahend is not None and minuend is not None:  # for one metric, all models have values or none
            yield minuend - subtrahend


def over_folds(
    metric: str, first: Sequence[float], second: Sequence[float], test_per_train: float
) -> Significance:
    """Compare two models by the values of a metric on the same folds, with the corrected resampled t-test.

    Args:
        metric: Name of the metric.
        first: (folds,) values of the first model.
        second: (folds,) values of the second model.
        test_per_train: Number of test rows per training row, which is 1 / (k - 1) in k-fold cross-validation.
    """
    differences = np.asarray(second, np.float64) - np.asarray(first, np.float64)
    effect, error = corrected_mean(differences, test_per_train)
    half_width = student_quantile(len(differences) - 1) * error if len(differences) > 1 else math.nan
    p_value = student_p(effect / error, len(differences) - 1) if error > 0 else (1.0 if effect == 0 else 0.0)
    p_value = math.nan if math.isnan(error) else p_value
    return Significance(
        "corrected resampled t",
        without_prefix(metric),
        effect,
        (effect - half_width, effect + half_width),
        p_value,
        len(differences),
    )


def corrected_mean(values: Array, test_per_train: float) -> tuple[float, float]:
    """Return the mean of (folds,) values and its standard error, corrected for overlapping training rows.

    The squared error is (1/k + test/train) s^2 (Nadeau and Bengio, "Inference for the generalization error",
    Machine Learning 52, 2003). It is NaN for fewer than two folds.
    """
    mean, count = float(np.mean(values)), len(values)
    if count < 2:
        return mean, math.nan
    return mean, math.sqrt((1 / count + test_per_train) * float(np.var(values, ddof=1)))


def fold_interval(values: Array, test_per_train: float, bounds: Bounds = UNBOUNDED) -> tuple[float, float]:
    """Return the 95% interval of the mean of (folds,) values, by Student's t and the corrected error.

    It ends at the bounds of the metric: what lies beyond them cannot be the mean, so that the rest holds it
    as often (Mandelkern 2002, "Setting Confidence Intervals for Bounded Parameters").
    """
    mean, error = corrected_mean(values, test_per_train)
    half_width = student_quantile(len(values) - 1) * error if len(values) > 1 else math.nan
    low, high = bounds
    return float(np.maximum(mean - half_width, low)), float(np.minimum(mean + half_width, high))  # NaN stays


def mcnemar(differences: Array) -> float:
    """Return the p-value of the exact McNemar test.

    Args:
        differences: (rows,) 1 where only the second model is right, -1 where only the first is, else 0.
    """
    only_first, only_second = int((differences < 0).sum()), int((differences > 0).sum())
    smaller, total = min(only_first, only_second), only_first + only_second
    # P(X <= smaller) for `total` tosses of a fair coin is an incomplete beta function.
    return min(1.0, 2 * _incomplete_beta(total - smaller, smaller + 1, 0.5)) if smaller < total / 2 else 1.0


def sign_flips(several: Iterable[Array], seed: int = 0) -> list[float]:
    """Return the p-values of several paired sign-flip tests that (rows,) differences have a mean of 0.

    A test uses all sign patterns for up to 13 rows, 9999 random ones plus the observed one (Phipson and
    Smyth, 2010) below 50,000 rows, and beyond that the normal limit, whose variance is known. Differences of
    0 do not count as rows. All tests are on the same rows and use the same random signs; more signs are drawn
    for more than 249 tests.
    """
    p_values: list[float] = []
    sampled: dict[int, Floats] = {}  # the tests that need random signs
    for index, values in enumerate(several):
        differences = np.asarray(values, np.float64)
        p_value = _analytic_p(differences[differences != 0])
        p_values.append(math.nan if p_value is None else p_value)
        if p_value is None:
            sampled[index] = differences
    if sampled:
        columns = np.stack(list(sampled.values()), axis=1)  # (rows, tests)
        for index, p_value in zip(sampled, _sampled_p(columns[columns.any(axis=1)], seed), strict=True):
            p_values[index] = p_value
    return p_values


def _analytic_p(differences: Floats) -> float | None:
    """Return the p-value of (rows,) non-zero differences; None if it needs random signs."""
    size, rows = float(np.abs(differences.sum())), len(differences)
    if rows == 0:
        return 1.0
    if rows >= _NORMAL_LIMIT:
        return math.erfc(size / math.sqrt(2 * float(differences @ differences)))
    if 2**rows <= _FLIPS:
        patterns = (np.arange(2**rows)[:, None] >> np.arange(rows)) & 1  # (2^rows, rows)
        return float(np.mean(np.abs((2 * patterns - 1) @ differences) >= size * _TOLERANCE))
    return None


def _sampled_p(columns: Floats, seed: int) -> list[float]:
    """Return the p-values of (rows, tests) differences, by random signs in portions that fit in memory."""
    rows, tests = columns.shape
    flips, words, totals = max(_FLIPS, _FLIPS_PER_PAIR * tests), -(-rows // 64), columns.sum(axis=0)
    portion = max(1, min(flips, 4_000_000 // rows))
    hits = np.zeros(tests, np.int64)
    for start in range(0, flips, portion):
        count = min(portion, flips - start)
        keys = random_keys(stream_seed(seed, _FLIP_STREAM, start), count * words).astype("<u8").view(np.uint8)
        bits = np.unpackbits(keys.reshape(count, -1), axis=1, count=rows)  # (flips of the portion, rows)
        hits += (np.abs(2 * (bits @ columns) - totals) >= np.abs(totals) * _TOLERANCE).sum(axis=0)
    return [(int(count) + 1) / (flips + 1) for count in hits]


def bootstrap(statistic: Statistic, rows: int, seed: int = 0, wanted: int = _RESAMPLES) -> Floats:
    """Compute a statistic on bootstrap samples of the rows.

    Args:
        statistic: A function of (rows,) int64 row ids that returns one value or several.
        rows: Number of rows.
        seed: Seed of the samples.
        wanted: Number of samples; if there are many rows fewer are drawn, but at least 100.

    Returns:
        (samples,) or (samples, values) float64.
    """
    fewer = max(_MIN_RESAMPLES, min(_RESAMPLES, _RESAMPLED_ROWS // max(1, rows)))
    count = wanted if wanted * rows <= _RESAMPLED_ROWS else fewer
    samples = (
        random_keys(stream_seed(seed, _BOOTSTRAP_STREAM, index), rows) % np.uint64(rows)
        for index in range(count)
    )
    return np.array([statistic(ids.astype(np.int64)) for ids in samples])


def bootstrap_p(resampled: Array, effect: float, wanted: int = _RESAMPLES) -> float:
    """Return the p-value of an effect from its bootstrap distribution.

    It is twice the smaller tail beyond 0. With fewer samples than wanted (that is, with many rows) tails
    would be too coarse, so the normal limit with the samples' standard deviation is used.

    Args:
        resampled: (samples,) differences; NaN values are ignored.
        effect: The observed difference.
        wanted: Number of samples that `bootstrap` was to draw.
    """
    real = resampled[~np.isnan(resampled)]
    if not len(real) or math.isnan(effect):
        return math.nan
    if len(resampled) < wanted:
        spread = float(real.std())
        return math.erfc(abs(effect) / spread / math.sqrt(2)) if spread > 0 else float(effect == 0)
    beyond = min(int((real <= 0).sum()), int((real >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (len(real) + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted by Holm's step-down method; NaN stays NaN and is not counted."""
    raw = np.asarray(p_values, np.float64)
    order = [int(index) for index in np.argsort(raw, kind="stable") if not math.isnan(raw[index])]
    adjusted, largest = raw.copy(), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * float(raw[index])))
        adjusted[index] = largest
    return [float(value) for value in adjusted]


# -- values per row


def _computable(metric: str, task: type[Task]) -> str:
    """Return the bare name of the metric to compute; the usual metric of the task stands for `loss`.

    It also stands for a user's own that adds up by itself, as that has no values by row.
    """
    if ":" in metric:
        return task.usual_metric if adds_up(metric) else metric
    name = task.usual_metric if without_prefix(metric) == LOSS else without_prefix(metric)
    if not task.metrics:
        raise InputError(
            f"the task {task.name} has no metric by row, so there is nothing to compare row by row: compare "
            "the losses of the two runs"
        )
    if name not in task.metrics:
        allowed = ", ".join([LOSS, *sorted(task.metrics)])
        raise InputError(f"unknown metric of {task.name}: {metric!r}; allowed: {allowed}")
    return name


def _by_row(metric: Metric, scores: Scores) -> Floats | None:
    """Return the (rows,) values that the metric is the mean of; None if it is not a mean over rows."""
    # With weights, no test of unweighted means fits: the bootstrap draws rows with their weights.
    return None if metric.by_row is None or scores.weights is not None else metric.by_row(scores)


def _flippable(metric: Metric, scores: Scores) -> Floats | None:
    """Return (rows,) values whose mean determines the metric for fixed targets; None if there are none."""
    if metric.paired is None or scores.weights is not None:
        return _by_row(metric, scores)
    return metric.paired(scores)


def _on_rows(metric: Metric, scores: Scores) -> Callable[[Array], float]:
    """Return the metric as a function of row ids."""
    by_row = _by_row(metric, scores)
    return lambda ids: float(by_row[ids].mean() if by_row is not None else metric.function(scores.take(ids)))


# -- intervals


def quantile_interval(resampled: Array) -> tuple[float, float]:
    """Return the 95% percentile interval of (samples,) values; NaN values are ignored."""
    real = resampled[~np.isnan(resampled)]
    if not len(real):
        return math.nan, math.nan
    low, high = np.quantile(real, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def normal_interval(differences: Floats) -> tuple[float, float]:
    """Return the 95% interval of the mean of (rows,) values, by the normal distribution."""
    mean = float(differences.mean())
    half_width = 1.959963984540054 * float(differences.std(ddof=1)) / math.sqrt(len(differences))
    return mean - half_width, mean + half_width


# -- Student's t


def student_p(t: float, degrees: int) -> float:
    """Return P(|T| > |t|) of Student's t distribution."""
    return _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def student_quantile(degrees: int) -> float:
    """Return the t with P(|T| > t) = 5%, by bisection."""
    low, high = 0.0, 1000.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if student_p(middle, degrees) > LEVEL else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Compute the regularized incomplete beta function I_x(a, b).

    Uses the continued fraction DLMF 8.17.22, evaluated by Lentz's method.
    """
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = a * math.log(x) + b * math.log1p(-x) + math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    fraction, c, d = 1.0, 1.0, 0.0
    for index in range(100_000):
        m = index // 2
        if index == 0:
            term = 1.0
        elif index % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / _not_zero(1 + term * d)
        c = _not_zero(1 + term / c)
        fraction *= c * d
        if abs(c * d - 1) < 1e-15 and index > 1:
            break
    return min(1.0, math.exp(front) * (fraction - 1) / a)


def _not_zero(value: float) -> float:
    """Replace values near zero, so that Lentz's method does not divide by zero."""
    return value if abs(value) > 1e-300 else 1e-300
