"""Tests against scipy's, against published values, and against what chance alone does."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from trainwright.errors import InputError
from trainwright.evaluation import significance
from trainwright.evaluation.significance import (
    all_pairs,
    bootstrap,
    bootstrap_p,
    corrected_mean,
    fold_interval,
    holm,
    mcnemar,
    over_folds,
    same_rows,
    sign_flips,
)
from trainwright.tasks.base import Scores
from trainwright.tasks.classification import ClassificationTask
from trainwright.tasks.regression import RegressionTask

QUICK = settings(max_examples=100, deadline=None)


def classes(rows: int, noise: float, seed: int = 0, kinds: int = 3) -> tuple[Scores, Scores]:
    """Two models on the same rows, the second one with `noise` more."""
    draw = np.random.default_rng(seed)
    targets = draw.integers(0, kinds, rows)
    first = draw.random((rows, kinds)) + 0.7 * np.eye(kinds)[targets]
    second = np.abs(first + draw.normal(0, noise, first.shape))
    one, other = (values / values.sum(axis=1, keepdims=True) for values in (first, second))
    return tuple(Scores(ClassificationTask, some.astype(np.float32), targets) for some in (one, other))


def values(rows: int, worse: float, seed: int = 0) -> tuple[Scores, Scores]:
    draw = np.random.default_rng(seed)
    targets = draw.normal(size=(rows, 1))
    first = targets + draw.normal(0, 1, (rows, 1))
    second = first + draw.normal(0, worse, (rows, 1))
    return Scores(RegressionTask, first, targets), Scores(RegressionTask, second, targets)


# -- McNemar


def answers(one: int, other: int, both: int = 5, none: int = 5) -> np.ndarray:
    """The difference of two models: right by the first alone, by the second alone, by both, by none."""
    first = np.repeat([1, 0, 1, 0], [one, other, both, none])
    second = np.repeat([0, 1, 1, 0], [one, other, both, none])
    return second - first


@QUICK
@given(st.integers(0, 400), st.integers(0, 400))
def test_mcnemar_is_the_binomial_test_of_the_rows_that_differ(one: int, other: int) -> None:
    expected = stats.binomtest(one, one + other).pvalue if one + other else 1.0
    assert mcnemar(answers(one, other)) == pytest.approx(expected, rel=1e-9)


def test_mcnemar_of_many_rows_is_the_binomial_test() -> None:
    assert mcnemar(answers(100_000, 101_000)) == pytest.approx(
        stats.binomtest(100_000, 201_000).pvalue, rel=1e-6
    )


def test_mcnemar_against_a_published_value() -> None:
    """Agresti, Categorical Data Analysis, 2nd ed., table 10.1 (approval of the prime minister).

    86 against 150.
    """
    assert mcnemar(answers(86, 150, 794, 570)) == pytest.approx(3.72e-5, rel=0.01)


# -- sign flips


def sign_flip(differences: np.ndarray, seed: int = 0) -> float:
    return sign_flips([differences], seed)[0]


@QUICK
@given(st.lists(st.integers(-20, 20), min_size=1, max_size=13))
def test_few_rows_are_tested_exactly(differences: list[int]) -> None:
    found = np.array(differences, np.float64)
    expected = 1.0
    if found.any() and len(found) > 1:
        expected = stats.permutation_test(
            (found,), np.sum, permutation_type="samples", n_resamples=np.inf
        ).pvalue
    assert sign_flip(found) == pytest.approx(expected)


def test_many_rows_are_sampled_and_more_rows_are_normal(monkeypatch: pytest.MonkeyPatch) -> None:
    found = np.random.default_rng(1).normal(0.1, 1, 500)
    expected = stats.ttest_1samp(found, 0).pvalue
    assert sign_flip(found) == pytest.approx(expected, abs=0.01)
    assert sign_flip(found) == sign_flip(found)
    assert sign_flip(found, seed=1) != sign_flip(found)
    monkeypatch.setattr(significance, "_NORMAL_LIMIT", 500)
    assert sign_flip(found) == pytest.approx(expected, abs=0.01)


def test_the_smallest_p_value_counts_what_was_observed() -> None:
    assert sign_flip(np.ones(200)) == pytest.approx(1e-4)
    assert sign_flip(np.zeros(200)) == 1.0


# -- the bootstrap


def test_the_bootstrap_of_a_mean_has_its_standard_error() -> None:
    found = np.random.default_rng(2).normal(0.2, 1, 400)
    drawn = bootstrap(lambda ids: float(found[ids].mean()), len(found))
    assert len(drawn) == 1000
    assert drawn.mean() == pytest.approx(found.mean(), abs=0.01)
    assert drawn.std() == pytest.approx(found.std() / 20, rel=0.08)
    low, high = stats.bootstrap(
        (found,), np.mean, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    assert np.quantile(drawn, [0.025, 0.975]) == pytest.approx([low, high], abs=0.02)


def test_p_values_of_the_bootstrap() -> None:
    assert bootstrap_p(np.ones(1000), 1.0) == pytest.approx(2 / 1001)
    assert bootstrap_p(np.r_[np.ones(500), -np.ones(500)], 0.0) == 1.0
    assert bootstrap_p(np.zeros(1000), 0.0) == 1.0
    few = np.random.default_rng(3).normal(2, 1, 100)  # of many rows: by the normal limit
    assert bootstrap_p(few, 2.0) == pytest.approx(2 * stats.norm.sf(2 / few.std()))
    assert math.isnan(bootstrap_p(np.full(1000, np.nan), math.nan))


def test_fewer_samples_of_more_rows() -> None:
    assert len(bootstrap(lambda ids: 0.0, 10_000)) == 500
    assert len(bootstrap(lambda ids: 0.0, 1_000_000)) == 100


# -- the metric decides


@pytest.mark.parametrize(
    ("metric", "test"),
    [
        ("accuracy", "exact McNemar"),
        ("test_log_loss", "paired sign-flip permutation"),
        ("loss", "paired sign-flip permutation"),
        ("brier", "paired sign-flip permutation"),
        ("val_f1", "paired bootstrap"),
        ("roc_auc", "paired bootstrap"),
    ],
)
def test_models_of_classes_are_compared_row_by_row(metric: str, test: str) -> None:
    first, second = classes(400, 0.5)
    found = same_rows(metric, first, second)
    assert (found.test, found.pairs) == (test, 400)
    function = ClassificationTask.metrics[found.metric].function
    assert found.effect == pytest.approx(function(second) - function(first))
    assert found.low < found.effect < found.high
    assert found.significant
    assert found.to_json()["significant"] is True
    assert found == same_rows(metric, first, second)
    back = same_rows(metric, second, first)
    assert (back.effect, back.low, back.high) == pytest.approx((-found.effect, -found.high, -found.low))
    assert back.p_value == pytest.approx(found.p_value)


@pytest.mark.parametrize(
    ("metric", "mean"), [("mse", True), ("rmse", False), ("mae", True), ("r2", False), ("loss", True)]
)
def test_models_of_values_are_compared_row_by_row(metric: str, mean: bool) -> None:
    first, second = values(300, 0.6)
    found = same_rows(metric, first, second)
    assert found.test == "paired sign-flip permutation"
    assert found.low < found.effect < found.high
    assert found.significant
    assert same_rows("medae", first, second).test == "paired bootstrap"
    if mean:  # what is a mean of rows has the interval of a mean
        name = {"mae": "mae"}.get(metric, "mse")
        errors = [
            np.abs(one.outputs - one.targets)[:, 0] ** (1 if name == "mae" else 2) for one in (first, second)
        ]
        reach = 1.96 * np.std(errors[1] - errors[0], ddof=1) / np.sqrt(300)
        assert (found.high - found.low) / 2 == pytest.approx(reach, rel=0.1)


def test_many_rows_take_the_normal_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = classes(1500, 0.2)
    drawn = [same_rows(metric, first, second) for metric in ("accuracy", "log_loss")]
    monkeypatch.setattr(significance, "_NORMAL_LIMIT", 1000)
    for one, metric in zip(drawn, ("accuracy", "log_loss"), strict=True):
        limit = same_rows(metric, first, second)
        assert (limit.low, limit.high) == pytest.approx((one.low, one.high), abs=0.1 * (one.high - one.low))
        assert limit.p_value == pytest.approx(one.p_value, abs=0.002)


def test_models_that_are_the_same() -> None:
    first, _ = classes(50, 0.1)
    for metric in ("accuracy", "log_loss", "f1"):
        found = same_rows(metric, first, first)
        assert (found.effect, found.p_value, found.significant) == (0.0, 1.0, False)


def test_metrics_that_do_not_fit() -> None:
    first, second = classes(50, 0.1)
    for metric in ("rmse", "nonsense"):
        with pytest.raises(InputError, match=f"unknown metric of classification: '{metric}'"):
            same_rows(metric, first, second)


@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "f1"])
def test_chance_is_called_significant_one_time_in_twenty(
    metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two models of equal skill, again and again. The exact McNemar test is known to be cautious."""
    monkeypatch.setattr(significance, "_FLIPS", 199)
    alarms = 0
    for seed in range(200):
        draw = np.random.default_rng(seed)
        targets = draw.integers(0, 2, 80)
        outputs = draw.random((2, 80, 2)) + 0.4 * np.eye(2)[targets]
        shares = [(one / one.sum(axis=1, keepdims=True)).astype(np.float32) for one in outputs]
        both = [Scores(ClassificationTask, share, targets) for share in shares]
        monkeypatch.setattr(significance, "_RESAMPLES", 199)
        alarms += same_rows(metric, both[0], both[1], seed).significant
    assert alarms <= 20


# -- several outputs


def two_targets(rows: int = 200) -> tuple[Scores, Scores, Scores]:
    """Targets in units of 1000 and of 1.

    The first model is bad at the small one, where the others are alike.
    """
    draw = np.random.default_rng(0)
    targets = draw.normal(0, [1000, 1], (rows, 2))
    spreads = ([300, 1.2], [300, 0.05], [300, 0.05])
    first, second, third = (
        Scores(RegressionTask, targets + draw.normal(0, spread, (rows, 2)), targets) for spread in spreads
    )
    return first, second, third


def test_r2_of_several_outputs_weighs_them_by_their_variance() -> None:
    first, second, third = two_targets()
    found = same_rows("r2", first, second)
    assert found.test == "paired sign-flip permutation"
    assert found.p_value == pytest.approx(1e-4)
    assert same_rows("mse", first, second).p_value > 0.01  # of the great one alone
    assert same_rows("r2", second, third).p_value > 0.01
    shares = [
        np.mean((one.outputs - one.targets) ** 2 / np.var(one.targets, axis=0), axis=1)
        for one in (first, second)
    ]
    assert found.effect == pytest.approx(-np.mean(shares[1] - shares[0]))  # a mean of what is flipped
    one, other = (Scores(RegressionTask, model.outputs, model.targets * [1, 0]) for model in (first, second))
    assert same_rows("r2", one, other).test == "paired bootstrap"


def test_rmse_of_several_outputs_is_bootstrapped() -> None:
    first, second, _ = two_targets()
    found = same_rows("rmse", first, second)
    assert found.test == "paired bootstrap"
    assert (found.p_value < 0.05) == (found.low > 0 or found.high < 0)


# -- over folds


def test_the_corrected_t_test_counts_the_rows_that_folds_share() -> None:
    first, second = [0.80, 0.82, 0.79, 0.81, 0.83], [0.85, 0.84, 0.83, 0.88, 0.84]
    differences = np.subtract(second, first)
    found = over_folds("test_accuracy", first, second, 0.25)
    error = math.sqrt((1 / 5 + 1 / 4) * differences.var(ddof=1))
    assert found.p_value == pytest.approx(2 * stats.t.sf(differences.mean() / error, 4))
    low, high = stats.t.interval(0.95, 4, differences.mean(), error)
    assert (found.low, found.high) == pytest.approx((low, high))
    assert (found.metric, found.pairs, found.test) == ("accuracy", 5, "corrected resampled t")
    plain = stats.ttest_rel(second, first).pvalue
    assert over_folds("accuracy", first, second, 0.0).p_value == pytest.approx(plain)
    assert found.p_value > plain


def test_folds_that_leave_nothing_to_chance() -> None:
    assert over_folds("f1", [0.5, 0.6], [0.5, 0.6], 1.0).p_value == 1.0
    assert over_folds("f1", [0.5, 0.5], [0.75, 0.75], 1.0).p_value == 0.0
    assert math.isnan(over_folds("f1", [0.5], [0.6], 1.0).p_value)
    assert math.isnan(over_folds("f1", [0.5, math.nan], [0.6, 0.7], 1.0).p_value)


def test_the_interval_of_a_mean_over_folds() -> None:
    scores = np.array([0.9, 0.95, 0.85, 1.0, 0.9])
    mean, error = corrected_mean(scores, 0.25)
    assert fold_interval(scores, 0.25) == pytest.approx(stats.t.interval(0.95, 4, mean, error))
    assert error == pytest.approx(math.sqrt(0.45) * scores.std(ddof=1))
    low, high = stats.t.interval(0.95, 4, mean, error)
    assert high > 1
    assert fold_interval(scores, 0.25, (0.0, 1.0)) == pytest.approx((low, 1.0))
    assert fold_interval(1 - scores, 0.25, (0.0, 1.0)) == pytest.approx((0.0, 1 - low))
    assert np.isnan(fold_interval(scores[:1], 0.25, (0.0, 1.0))).all()


# -- several at once


def test_p_values_are_adjusted_by_holms_method() -> None:
    """Adjusted values as statsmodels' multipletests(method="holm") and R's p.adjust give them."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []
    some = holm([math.nan, 0.02, 0.04])
    assert math.isnan(some[0])
    assert some[1:] == pytest.approx([0.04, 0.04])


@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "f1"])
def test_all_pairs_are_those_of_two(metric: str) -> None:
    models = [classes(120, 0.5, seed=1)[0], *(classes(120, noise, seed=1)[1] for noise in (0.3, 0.6))]
    found = all_pairs(metric, models)
    assert list(found) == [(0, 1), (0, 2), (1, 2)]
    for (i, j), test in found.items():
        alone = same_rows(metric, models[i], models[j])
        assert (test.effect, test.test, test.low, test.high) == (
            alone.effect,
            alone.test,
            alone.low,
            alone.high,
        )
        assert test.p_value == pytest.approx(alone.p_value, abs=0.01)


def test_several_sign_flips_are_each_as_alone() -> None:
    """Each as alone, whether its p-value is drawn, counted or known."""
    columns = np.random.default_rng(4).normal(0.1, 1, (300, 4))
    columns[12:, 1], columns[:, 2] = 0, 0
    found = sign_flips(columns.T)
    assert found == [sign_flip(columns[:, index]) for index in range(4)]
    assert found[2] == 1.0


def test_of_many_pairs_enough_is_drawn_to_see_any() -> None:
    """10 models on few rows, of which one is far better: Holm's factor is 45, and 45 * 2 / 1001 above 5%."""
    good, _ = classes(60, 0.1)
    bad = [
        Scores(ClassificationTask, np.roll(good.outputs, shift, axis=0), good.targets)
        for shift in range(1, 10)
    ]
    tests = all_pairs("f1", [good, *bad])
    assert tests[0, 1].test == "paired bootstrap"
    assert max(holm([test.p_value for test in tests.values()])[:9]) < 0.05


@pytest.mark.parametrize("count", [2, 5, 10])
def test_the_best_of_equal_models_is_seldom_called_better(count: int) -> None:
    """As a benchmark does it.

    The best is chosen on the rows that it is tested on. Holm over the tests with it alone would
    give false alarms in 8% and 11% with 5 and with 10 models."""
    draw, alarms = np.random.default_rng(count), 0
    for _ in range(200):
        wrong = draw.random((count, 500)) > 0.8
        order = np.argsort(wrong.mean(axis=1), kind="stable")
        right = [1 - wrong[index].astype(np.int64) for index in order]
        p_values = [mcnemar(other - one) for one, other in itertools.combinations(right, 2)]
        alarms += min(holm(p_values)[: count - 1]) < 0.05
    assert alarms <= 16  # of 200, 10 are expected at most


# -- special functions


@QUICK
@given(st.floats(0.05, 5000), st.floats(0.05, 5000), st.floats(0.0, 1.0))
def test_the_incomplete_beta_function_is_that_of_scipy(a: float, b: float, x: float) -> None:
    expected = special.betainc(a, b, x)
    assert significance._incomplete_beta(a, b, x) == pytest.approx(expected, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("degrees", [1, 2, 4, 9, 100])
def test_quantiles_of_students_t_are_those_of_scipy(degrees: int) -> None:
    assert significance.student_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-9)


def test_it_needs_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] in ("scipy", "sklearn")]:
        monkeypatch.setitem(sys.modules, name, None)
    first: Any
    first, second = classes(60, 0.3)
    assert same_rows("f1", first, second).pairs == 60
