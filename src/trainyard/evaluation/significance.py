"""Whether two models differ, or chance alone can be what makes them seem to.

All tests are paired: both models are measured on the same rows, or on the same folds. They are two-sided, give intervals of
95%, and draw what is random from raw counter-based keys, so the same predictions give the same numbers everywhere.

    accuracy                  the exact McNemar test (McNemar, 1947): of the rows that one model alone gets right, is it half?
    means of losses by row    the sign-flip permutation test (Fisher, 1935): were the models alike, each difference could as
                              well have the other sign. Of `r2` these are squared errors, each output's as a share of its
                              target's variance; of `rmse`, which of several outputs is no such mean, with one output only.
    any other metric          the paired bootstrap (Efron, 1979): rows are drawn again with replacement
    a metric over folds       the corrected resampled t-test (Nadeau and Bengio, 2003): folds share training rows, so their
                              plain variance is too small

Of several models each two are tested, and `holm` of all these tests keeps the chance of any false alarm at the level of a
single one (Holm, 1979). That holds for those with the best model, too; of these tests alone it would not, as which model is
the best is found on the same rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainyard.errors import InputError
from trainyard.evaluation.metrics import LOSS, METRICS, bare
from trainyard.evaluation.scores import Scores
from trainyard.order import random_keys, stream_seed
from trainyard.types import Array

Floats = NDArray[np.float64]
Statistic = Callable[[Array], float | Sequence[float]]
Pair = tuple[int, int]

LEVEL = 0.05
_FLIPS = 9999
_RESAMPLES = 1000
_LEAST_RESAMPLES = 100
_RESAMPLED_ROWS = 5_000_000  # of a metric that is computed anew each time: some seconds
_FLIPS_PER_PAIR, _RESAMPLES_PER_PAIR = (
    40,
    80,
)  # of many pairs more are drawn, lest Holm's factor leave no p-value below 5%
_LIMIT = 50_000  # rows from which on means are normal for all that can be seen, and nothing need be drawn
_CLOSE = 1 - 1e-12  # sums of the same numbers in another order differ in the last digits
_FLIP_STREAM, _BOOTSTRAP_STREAM = 1, 2


@dataclass(frozen=True)
class Significance:
    """One test.

    `effect` is the metric of the second model less that of the first, in its own unit; `interval` is the 95% interval of the
    effect; `p_value` is the chance of such an effect, or a greater one, between models that are alike;
    `pairs` counts what the test is over: rows, or folds.
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
        """Whether `p_value` is below 5%."""
        return self.p_value < LEVEL

    def to_json(self) -> dict[str, Any]:
        plain = {name: value for name, value in asdict(self).items() if name != "interval"}
        return plain | {"low": self.low, "high": self.high, "significant": self.significant}


def same_rows(metric: str, first: Scores, second: Scores, seed: int = 0) -> Significance:
    """Compares two models on the same rows by a metric (`f1`, `test_f1`), with the test that fits it.

    Args:
        first: of the first model; `first.targets` are those of `second`, too.
        seed: of what is drawn.

    Raises:
        InputError: there is no such metric, or the outputs do not fit it.
    """
    return all_pairs(metric, [first, second], seed)[0, 1]


def all_pairs(metric: str, models: Sequence[Scores], seed: int = 0) -> dict[Pair, Significance]:
    """Compares each two of several models on the same rows, as `same_rows` does; by their places, the lower one first.

    Raises:
        InputError: there is no such metric, or the outputs do not fit it.
    """
    name = _computable(metric, models[0])
    pairs, rows = list(itertools.combinations(range(len(models)), 2)), len(models[0].targets)
    values = [METRICS[name].function(scores) for scores in models]
    effects = [values[second] - values[first] for first, second in pairs]
    flipped = [_flipped(name, scores) for scores in models]
    wanted = _RESAMPLES if flipped[0] is not None else max(_RESAMPLES, _RESAMPLES_PER_PAIR * len(pairs))
    by_row = [_by_row(name, scores) for scores in models]
    if by_row[0] is not None and rows >= _LIMIT:
        drawn: Sequence[Floats] = []
        intervals = [_normal_interval(difference) for difference in _differences(by_row, pairs)]
    else:
        statistics = [_on_rows(name, scores) for scores in models]
        drawn = list(
            bootstrap(lambda ids: [statistic(ids) for statistic in statistics], rows, seed, wanted).T
        )
        intervals = [_quantiles(difference) for difference in _differences(drawn, pairs)]
    if name == "accuracy":
        test, targets = "exact McNemar", models[0].targets
        p_values = [
            mcnemar(models[first].predicted, models[second].predicted, targets) for first, second in pairs
        ]
    elif flipped[0] is not None:
        test, p_values = "paired sign-flip permutation", sign_flips(_differences(flipped, pairs), seed)
    else:
        test = "paired bootstrap"
        both = zip(_differences(drawn, pairs), effects, strict=True)
        p_values = [bootstrap_p(difference, effect, wanted) for difference, effect in both]
    found = zip(effects, intervals, p_values, strict=True)
    return {
        pair: Significance(test, name, effect, interval, p_value, rows)
        for pair, (effect, interval, p_value) in zip(pairs, found, strict=True)
    }


def _differences(values: Sequence[Floats | None], pairs: Sequence[Pair]) -> Iterator[Floats]:
    """Of what each model has, the second's less the first's."""
    for first, second in pairs:
        one, other = values[first], values[second]
        if one is not None and other is not None:  # what one model has, all have
            yield other - one


def over_folds(
    metric: str, first: Sequence[float], second: Sequence[float], test_per_train: float
) -> Significance:
    """Compares two models by the values of a metric on the same folds, with the corrected resampled t-test.

    Args:
        test_per_train: the number of test rows for each training row, 1 / (k - 1) in k-fold cross-validation.
    """
    differences = np.asarray(second, np.float64) - np.asarray(first, np.float64)
    effect, error = corrected_mean(differences, test_per_train)
    reach = _student_quantile(len(differences) - 1) * error if len(differences) > 1 else math.nan
    p_value = _student_p(effect / error, len(differences) - 1) if error > 0 else (1.0 if effect == 0 else 0.0)
    p_value = math.nan if math.isnan(error) else p_value
    return Significance(
        "corrected resampled t",
        bare(metric),
        effect,
        (effect - reach, effect + reach),
        p_value,
        len(differences),
    )


def corrected_mean(values: Array, test_per_train: float) -> tuple[float, float]:
    """The mean of (folds,) values, and its standard error, corrected for the training rows that folds share.

    Nadeau and Bengio, "Inference for the generalization error", Machine Learning 52, 2003: (1/k + test/train) s^2.
    The error is NaN for fewer than two folds.
    """
    mean, count = float(np.mean(values)), len(values)
    return mean, math.sqrt(
        (1 / count + test_per_train) * float(np.var(values, ddof=1))
    ) if count > 1 else math.nan


def fold_interval(values: Array, test_per_train: float) -> tuple[float, float]:
    """The 95% interval of the mean of (folds,) values, by Student's t and the corrected error."""
    mean, error = corrected_mean(values, test_per_train)
    reach = _student_quantile(len(values) - 1) * error if len(values) > 1 else math.nan
    return mean - reach, mean + reach


def mcnemar(first: Array, second: Array, targets: Array) -> float:
    """The p-value of the exact McNemar test, of two models' predicted classes, all (rows,)."""
    first_right, second_right = first == targets, second == targets
    one, other = int((first_right & ~second_right).sum()), int((second_right & ~first_right).sum())
    few, both = min(one, other), one + other
    # P(X <= few) of `both` tosses of a fair coin is an incomplete beta function.
    return min(1.0, 2 * _incomplete_beta(both - few, few + 1, 0.5)) if few < both / 2 else 1.0


def sign_flip(differences: Array, seed: int = 0) -> float:
    """The p-value of the paired sign-flip test of (rows,) differences having a mean of 0.

    All sign patterns up to 13 rows; 9999 drawn ones (the observed one counted, too: Phipson and Smyth, 2010) up to 50,000
    rows; the normal limit, whose variance is known, beyond.
    """
    return sign_flips([differences], seed)[0]


def sign_flips(several: Iterable[Array], seed: int = 0) -> list[float]:
    """The p-values of several such tests on the same rows, with the same signs; of more than 249 tests more are drawn."""
    p_values: list[float] = []
    drawn: dict[int, Floats] = {}
    for index, differences in enumerate(several):
        found = np.asarray(differences, np.float64)
        p_value = _undrawn_p(found[found != 0])
        p_values.append(math.nan if p_value is None else p_value)
        if p_value is None:
            drawn[index] = found
    if drawn:
        columns = np.stack(list(drawn.values()), axis=1)
        for index, p_value in zip(drawn, _drawn_p(columns[columns.any(axis=1)], seed), strict=True):
            p_values[index] = p_value
    return p_values


def _undrawn_p(found: Floats) -> float | None:
    """That of (rows,) differences other than 0; None where signs must be drawn for it."""
    size, rows = float(np.abs(found.sum())), len(found)
    if rows == 0:
        return 1.0
    if rows >= _LIMIT:
        return math.erfc(size / math.sqrt(2 * float(found @ found)))
    if 2**rows <= _FLIPS:
        patterns = (np.arange(2**rows)[:, None] >> np.arange(rows)) & 1
        return float(np.mean(np.abs((2 * patterns - 1) @ found) >= size * _CLOSE))
    return None


def _drawn_p(columns: Floats, seed: int) -> list[float]:
    """Those of (rows, tests) differences, by random signs, in portions that fit in memory."""
    rows, tests = columns.shape
    flips, words, totals = max(_FLIPS, _FLIPS_PER_PAIR * tests), -(-rows // 64), columns.sum(axis=0)
    portion = max(1, min(flips, 4_000_000 // rows))
    hits = np.zeros(tests, np.int64)
    for start in range(0, flips, portion):
        count = min(portion, flips - start)
        keys = random_keys(stream_seed(seed, _FLIP_STREAM, start), count * words).astype("<u8").view(np.uint8)
        bits = np.unpackbits(keys.reshape(count, -1), axis=1, count=rows)
        hits += (np.abs(2 * (bits @ columns) - totals) >= np.abs(totals) * _CLOSE).sum(axis=0)
    return [(int(count) + 1) / (flips + 1) for count in hits]


def bootstrap(statistic: Statistic, rows: int, seed: int = 0, wanted: int = _RESAMPLES) -> Floats:
    """`statistic`, or several, of `wanted` samples of row ids, drawn with replacement; of many rows fewer, but at least 100."""
    few = max(_LEAST_RESAMPLES, min(_RESAMPLES, _RESAMPLED_ROWS // max(1, rows)))
    count = wanted if wanted * rows <= _RESAMPLED_ROWS else few
    drawn = (
        random_keys(stream_seed(seed, _BOOTSTRAP_STREAM, index), rows) % np.uint64(rows)
        for index in range(count)
    )
    return np.array([statistic(ids.astype(np.int64)) for ids in drawn])


def bootstrap_p(drawn: Array, effect: float, wanted: int = _RESAMPLES) -> float:
    """The p-value by resampled differences (samples,), of which those that are NaN are left out.

    Twice the smaller share beyond 0; of fewer samples than wanted, which are of many rows, the normal limit with their
    standard deviation: shares of so few would be coarse.
    """
    real = drawn[~np.isnan(drawn)]
    if not len(real) or math.isnan(effect):
        return math.nan
    if len(drawn) < wanted:
        spread = float(real.std())
        return math.erfc(abs(effect) / spread / math.sqrt(2)) if spread > 0 else float(effect == 0)
    beyond = min(int((real <= 0).sum()), int((real >= 0).sum()))
    return min(1.0, 2 * (beyond + 1) / (len(real) + 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values adjusted for being several, by Holm's step-down method; NaN stays NaN and is not counted."""
    found = np.asarray(p_values, np.float64)
    order = [int(index) for index in np.argsort(found, kind="stable") if not math.isnan(found[index])]
    adjusted, most = found.copy(), 0.0
    for rank, index in enumerate(order):
        most = max(most, min(1.0, (len(order) - rank) * float(found[index])))
        adjusted[index] = most
    return [float(value) for value in adjusted]


# -- what a metric is made of, row by row


def _squared(scores: Scores) -> Floats:
    return np.asarray(np.mean((scores.outputs - scores.targets) ** 2, axis=1), np.float64)


def _absolute(scores: Scores) -> Floats:
    return np.asarray(np.mean(np.abs(scores.outputs - scores.targets), axis=1), np.float64)


def _relative(scores: Scores) -> Floats:
    smallest = np.finfo(np.float64).eps
    errors = np.abs(scores.outputs - scores.targets) / np.maximum(np.abs(scores.targets), smallest)
    return np.asarray(np.mean(errors, axis=1), np.float64)


def _right(scores: Scores) -> Floats:
    right: Floats = (scores.predicted == scores.targets).astype(np.float64)
    return right


def _surprise(scores: Scores) -> Floats:
    own = scores.true_probability
    epsilon = np.finfo(own.dtype).eps
    surprise: Floats = -np.log(np.clip(own, epsilon, 1 - epsilon)).astype(np.float64)
    return surprise


def _brier(scores: Scores) -> Floats:
    errors = scores.outputs.astype(np.float64)
    errors[np.arange(len(errors)), scores.targets] -= 1.0
    total: Floats = np.sum(errors**2, axis=1)
    return total / 2 if scores.outputs.shape[1] == 2 else total


_MEANS: dict[str, Callable[[Scores], Floats]] = {
    "accuracy": _right,
    "log_loss": _surprise,
    "brier": _brier,
    "mse": _squared,
    "mae": _absolute,
    "mape": _relative,
}
_USUAL_LOSS = {"classification": "log_loss", "regression": "mse"}


def _computable(metric: str, scores: Scores) -> str:
    """The name of the metric to compute; the frameworks' own `loss` is taken for the usual one of the task."""
    task = "classification" if scores.targets.ndim == 1 else "regression"
    name = _USUAL_LOSS[task] if bare(metric) == LOSS else bare(metric)
    if name not in METRICS or METRICS[name].task != task:
        raise InputError(f"no metric of {task} is named {metric!r}")
    return name


def _by_row(name: str, scores: Scores) -> Floats | None:
    """(rows,) what the metric is the mean of; None where it is no mean."""
    by_row = _MEANS.get(name)
    return None if by_row is None else by_row(scores)


def _flipped(name: str, scores: Scores) -> Floats | None:
    """(rows,) values whose mean tells the metric, given the targets; None where there are none such."""
    if name in ("rmse", "r2") and scores.outputs.shape[1] == 1:
        return _squared(scores)
    if name == "r2":
        variances = np.var(scores.targets, axis=0)
        if not variances.all():  # a constant target counts by whether it is met exactly
            return None
        return np.asarray(np.mean((scores.outputs - scores.targets) ** 2 / variances, axis=1), np.float64)
    return _by_row(name, scores)


def _on_rows(name: str, scores: Scores) -> Callable[[Array], float]:
    """The metric of some of the rows."""
    by_row, function = _by_row(name, scores), METRICS[name].function
    return lambda ids: float(by_row[ids].mean()) if by_row is not None else function(_taken(scores, ids))


def _taken(scores: Scores, ids: Array) -> Scores:
    return Scores(scores.outputs[ids], scores.targets[ids])


# -- intervals


def _quantiles(drawn: Array) -> tuple[float, float]:
    """The 95% percentile interval."""
    real = drawn[~np.isnan(drawn)]
    if not len(real):
        return math.nan, math.nan
    low, high = np.quantile(real, [LEVEL / 2, 1 - LEVEL / 2])
    return float(low), float(high)


def _normal_interval(differences: Floats) -> tuple[float, float]:
    mean, reach = (
        float(differences.mean()),
        1.959963984540054 * float(differences.std(ddof=1)) / math.sqrt(len(differences)),
    )
    return mean - reach, mean + reach


# -- Student's t


def _student_p(t: float, degrees: int) -> float:
    """The chance of |T| > |t|."""
    return _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


def _student_quantile(degrees: int) -> float:
    """The t with P(|T| > t) = 5%, by bisection."""
    low, high = 0.0, 1000.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _student_p(middle, degrees) > LEVEL else (low, middle)
    return (low + high) / 2


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22) with Lentz's method."""
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
    return value if abs(value) > 1e-300 else 1e-300
