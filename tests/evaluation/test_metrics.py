"""Every metric against scikit-learn's, on drawn data and at the edges."""

from __future__ import annotations

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
from scipy.stats import spearmanr

from trainwright import plugins
from trainwright.errors import InputError, ModelError
from trainwright.evaluation import metrics
from trainwright.evaluation.metrics import evaluate_predictions
from trainwright.types import DataInfo, Predictions, features_spec

sk = pytest.importorskip("sklearn.metrics")


def classes(count: int) -> DataInfo:
    return DataInfo("classification", features_spec((4,)), count, tuple(range(count)))


def values(count: int = 1) -> DataInfo:
    return DataInfo("regression", features_spec((4,)), count)


def predicted(outputs, targets, loss=1.0) -> Predictions:
    return Predictions(np.arange(len(targets)), outputs, targets, loss)


def drawn_classes(seed: int, rows: int, count: int):
    rng = np.random.default_rng(seed)
    targets = rng.integers(0, count, rows)
    raw = rng.normal(size=(rows, count)) + 1.5 * np.eye(count)[targets]
    outputs = np.exp(np.round(raw, 1))  # rounded, so that equal scores occur
    return (outputs / outputs.sum(axis=1, keepdims=True)).astype(np.float32), targets


def score(name: str, outputs, targets, info: DataInfo) -> float:
    return evaluate_predictions([predicted(outputs, targets)], [name], info, "val").metrics[f"val_{name}"]


def references(outputs, targets) -> dict[str, float]:
    """What scikit-learn says, for targets in which every class occurs."""
    guess, count = outputs.argmax(axis=1), outputs.shape[1]
    ranked = outputs[:, 1] if count == 2 else outputs
    onehot = targets if count == 2 else np.eye(count)[targets]
    precise = outputs.astype(np.float64)
    found = {
        "accuracy": sk.accuracy_score(targets, guess),
        "balanced_accuracy": sk.balanced_accuracy_score(targets, guess),
        "roc_auc": sk.roc_auc_score(onehot, ranked),
        "average_precision": sk.average_precision_score(onehot, ranked),
        "log_loss": sk.log_loss(targets, precise / precise.sum(axis=1, keepdims=True)),
        "brier": sk.brier_score_loss(targets, ranked, labels=list(range(count))),
        "mcc": sk.matthews_corrcoef(targets, guess),
        "kappa": sk.cohen_kappa_score(targets, guess),
    }
    usual = "binary" if count == 2 else "macro"  # scikit-learn's own default is binary
    found["jaccard"] = sk.jaccard_score(targets, guess, average=usual, zero_division=0)
    rates = [sk.recall_score(targets != label, guess != label) for label in range(count)]
    found["specificity"] = rates[1] if count == 2 else np.mean(rates)
    for field in ("f1", "precision", "recall"):
        function = getattr(sk, f"{field}_score")
        found[field] = function(targets, guess, average=usual, zero_division=0)
        for average in ("macro", "micro", "weighted", *(["binary"] if count == 2 else [])):
            found[f"{field}_{average}"] = function(targets, guess, average=average, zero_division=0)
    return found


@pytest.mark.parametrize("count", [2, 3, 10])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_classification_agrees_with_sklearn(count, seed):
    outputs, targets = drawn_classes(seed, 300, count)
    found = evaluate_predictions(
        [predicted(outputs, targets)], metrics.names("classification"), classes(count), "val"
    ).metrics
    for name, expected in references(outputs, targets).items():
        assert found[f"val_{name}"] == pytest.approx(expected, rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("k", [3, 5])
def test_top_k_agrees_with_sklearn(k):
    rng = np.random.default_rng(3)
    outputs, targets = rng.dirichlet(np.ones(9), 200).astype(np.float32), rng.integers(0, 9, 200)
    expected = sk.top_k_accuracy_score(targets, outputs, k=k, labels=range(9))
    assert score(f"top_{k}_accuracy", outputs, targets, classes(9)) == pytest.approx(expected)


def test_top_k_of_equal_probabilities_counts_the_first_classes():
    outputs = np.full((4, 4), 0.25, np.float32)
    assert score("top_3_accuracy", outputs, np.arange(4), classes(4)) == 0.75
    assert score("accuracy", outputs, np.arange(4), classes(4)) == 0.25


def per_output(function, true, guess) -> float:
    """The mean of a function of (rows,) targets and predictions over the outputs."""
    columns = zip(true.reshape(guess.shape).T, guess.T, strict=True)
    return float(np.mean([function(y, p) for y, p in columns]))


@pytest.mark.parametrize("outputs", [1, 2])
def test_metrics_of_positive_values_agree_with_sklearn(outputs):
    rng = np.random.default_rng(5)
    true = np.round(rng.gamma(2, 2, (120, outputs)), 1).astype(np.float32) + np.float32(0.1)
    guess = (true * rng.uniform(0.5, 2, true.shape)).astype(np.float32)
    references = {
        "msle": sk.mean_squared_log_error,
        "rmsle": sk.root_mean_squared_log_error,
        "poisson_deviance": lambda true, guess: per_output(sk.mean_poisson_deviance, true, guess),
        "gamma_deviance": lambda true, guess: per_output(sk.mean_gamma_deviance, true, guess),
    }
    for name, function in references.items():
        expected = function(true.astype(np.float64), guess.astype(np.float64))
        assert score(name, guess, true, values(outputs)) == pytest.approx(expected, rel=1e-6), name
    counts = np.array([[0.0], [1.0], [3.0]], np.float32)
    assert score("poisson_deviance", counts + 0.5, counts, values()) == pytest.approx(
        sk.mean_poisson_deviance(counts[:, 0], counts[:, 0] + 0.5), rel=1e-6
    )


def test_correlations_of_a_constant_are_undefined():
    true, guess = np.array([1.0, 2.0, 2.0], np.float32), np.ones(3, np.float32)
    assert math.isnan(score("pearson", guess, true, values()))
    assert math.isnan(score("spearman", guess, true, values()))
    assert score("smape", np.zeros(3, np.float32), np.zeros(3, np.float32), values()) == 0.0


@pytest.mark.parametrize("outputs", [1, 3])
def test_regression_agrees_with_sklearn(outputs):
    rng = np.random.default_rng(7)
    true = rng.normal(3, 2, (150, outputs)).astype(np.float32)
    guess = (true + rng.normal(0, 1, true.shape)).astype(np.float32)
    if outputs == 1:
        true = true[:, 0]  # (rows,) targets beside (rows, 1) outputs
    found = evaluate_predictions(
        [predicted(guess, true)], metrics.names("regression"), values(outputs), "test"
    ).metrics
    expected = {
        "mse": sk.mean_squared_error,
        "rmse": sk.root_mean_squared_error,
        "mae": sk.mean_absolute_error,
        "medae": sk.median_absolute_error,
        "mape": sk.mean_absolute_percentage_error,
        "r2": sk.r2_score,
        "explained_variance": sk.explained_variance_score,
        "d2_absolute_error": sk.d2_absolute_error_score,
        "pearson": lambda true, guess: per_output(lambda y, p: np.corrcoef(y, p)[0, 1], true, guess),
        "spearman": lambda true, guess: per_output(lambda y, p: spearmanr(y, p).statistic, true, guess),
        "smape": lambda true, guess: np.mean(
            2
            * np.abs(true.reshape(guess.shape) - guess)
            / (np.abs(true.reshape(guess.shape)) + np.abs(guess))
        ),
        "wape": lambda true, guess: per_output(
            lambda y, p: np.abs(y - p).sum() / np.abs(y).sum(), true, guess
        ),
    }
    for name, function in expected.items():
        assert found[f"test_{name}"] == pytest.approx(
            function(true.astype(np.float64), guess.astype(np.float64)), rel=1e-6
        ), name
    assert math.isnan(found["test_rmsle"]), "some values are below -1"
    assert math.isnan(found["test_gamma_deviance"])
    assert found["test_max_error"] == pytest.approx(np.abs(true.reshape(guess.shape) - guess).max())


@pytest.mark.parametrize(("guess", "expected"), [([2.0, 2.0, 2.0], 1.0), ([2.0, 2.0, 3.0], 0.0)])
def test_r2_of_constant_targets_agrees_with_sklearn(guess, expected):
    true = np.array([2.0, 2.0, 2.0], np.float32)
    assert score("r2", np.array(guess, np.float32), true, values()) == expected == sk.r2_score(true, guess)


def test_r2_of_one_row_is_nan():
    assert math.isnan(score("r2", np.ones(1, np.float32), np.ones(1, np.float32), values()))


def test_classes_that_do_not_occur_are_left_out_of_macro_means_as_in_sklearn():
    outputs, targets = drawn_classes(5, 60, 5)
    outputs[:, 4], targets = 0.0, targets % 3
    guess = outputs.argmax(axis=1)
    for field in ("f1", "precision", "recall"):
        expected = getattr(sk, f"{field}_score")(targets, guess, average="macro", zero_division=0)
        assert score(field, outputs, targets, classes(5)) == pytest.approx(expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sklearn warns that some predicted classes never occur
        assert score("balanced_accuracy", outputs, targets, classes(5)) == pytest.approx(
            sk.balanced_accuracy_score(targets, guess)
        )


def test_a_class_never_predicted_has_precision_zero():
    outputs = np.array([[0.9, 0.1]] * 4, np.float32)
    targets = np.array([0, 0, 0, 1])
    assert score("precision_macro", outputs, targets, classes(2)) == pytest.approx((3 / 4 + 0.0) / 2)
    assert score("precision", outputs, targets, classes(2)) == 0.0
    assert score("f1_binary", outputs, targets, classes(2)) == 0.0
    assert score("mcc", outputs, targets, classes(2)) == 0.0


@pytest.mark.parametrize("name", ["roc_auc", "average_precision", "kappa"])
def test_one_class_alone_makes_it_nan(name):
    outputs = np.array([[0.9, 0.1], [0.8, 0.2]], np.float32)
    assert math.isnan(score(name, outputs, np.array([0, 0]), classes(2)))


def test_roc_auc_leaves_out_a_class_without_rows():
    outputs, targets = drawn_classes(9, 80, 4)
    targets = np.where(targets == 3, 0, targets)
    expected = np.mean([sk.roc_auc_score(targets == index, outputs[:, index]) for index in range(3)])
    assert score("roc_auc", outputs, targets, classes(4)) == pytest.approx(expected)


def test_binary_metrics_of_three_classes_are_nan():
    outputs, targets = drawn_classes(1, 30, 3)
    assert math.isnan(score("f1_binary", outputs, targets, classes(3)))


def test_log_loss_of_a_certain_error_is_finite():
    outputs = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
    found = score("log_loss", outputs, np.array([1, 1]), classes(2))
    assert found == pytest.approx(sk.log_loss([1, 1], outputs, labels=[0, 1]), rel=1e-5)
    assert found < 10


def test_parts_are_joined_and_the_loss_is_the_mean_over_rows():
    outputs, targets = drawn_classes(0, 100, 3)
    parts = [
        Predictions(np.arange(0, 64), outputs[:64], targets[:64], 64.0),
        Predictions(np.arange(64, 100), outputs[64:], targets[64:], 36.0 * 3),
    ]
    result = evaluate_predictions(iter(parts), ["val_f1", "loss", "f1"], classes(3), "val")
    assert list(result.metrics) == ["val_loss", "val_f1"]
    assert result.metrics["val_loss"] == pytest.approx((64 + 108) / 100)
    assert result.metrics["val_f1"] == score("f1", outputs, targets, classes(3))
    np.testing.assert_array_equal(result.ids, np.arange(100))
    assert result.outputs.shape == (100, 3)
    assert result.split == "val"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_outputs_that_are_not_finite_make_every_metric_nan(bad):
    outputs, targets = drawn_classes(0, 10, 3)
    outputs[4, 1] = bad
    found = evaluate_predictions(
        [predicted(outputs, targets, loss=math.nan)], metrics.names("classification"), classes(3), "val"
    ).metrics
    assert len(found) == 1 + len(metrics.names("classification"))
    assert all(math.isnan(value) for value in found.values())


def test_no_rows_make_every_metric_nan():
    assert all(
        math.isnan(value)
        for value in evaluate_predictions([], ["accuracy"], classes(3), "test").metrics.values()
    )


def test_what_a_model_measures_itself_is_added_where_no_metric_of_ours_has_the_name():
    parts = [
        predicted(np.eye(3, dtype=np.float32)[[0, 1]], np.array([0, 1]))._replace(measures={"auc": 0.5}),
        predicted(np.eye(3, dtype=np.float32)[[2]], np.array([2]))._replace(
            measures={"auc": 0.75, "accuracy": 0.1, "loss": 9.0}
        ),
    ]
    found = evaluate_predictions(parts, ["accuracy"], classes(3), "val").metrics
    assert found == {"val_loss": 2 / 3, "val_accuracy": 1.0, "val_auc": 0.75}
    parts[1].outputs[0, 0] = np.nan
    assert math.isnan(evaluate_predictions(parts, [], classes(3), "val").metrics["val_auc"])
    assert "test_auc" not in evaluate_predictions(parts[:0], [], classes(3), "test").metrics


def test_outputs_of_the_wrong_shape_are_the_models_fault():
    with pytest.raises(ModelError, match=r"\(10, 2\); expected \(10, 3\)"):
        evaluate_predictions(
            [predicted(np.zeros((10, 2), np.float32), np.zeros(10, np.int64))],
            ["accuracy"],
            classes(3),
            "val",
        )
    with pytest.raises(ModelError, match=r"\(10, 2\); expected \(10, 1\)"):
        evaluate_predictions(
            [predicted(np.zeros((10, 2), np.float32), np.zeros(10, np.float32))], ["rmse"], values(), "val"
        )


def test_modes():
    assert {
        name: metrics.mode_of(name)
        for name in ("val_loss", "val_f1", "test_accuracy", "f1", "train_loss", "log_loss", "r2")
    } == {
        "val_loss": "min",
        "val_f1": "max",
        "test_accuracy": "max",
        "f1": "max",
        "train_loss": "min",
        "log_loss": "min",
        "r2": "max",
    }


def test_an_unknown_metric_names_the_nearest():
    with pytest.raises(
        InputError,
        match=r"unknown metric 'val_acuracy'; did you mean 'accuracy'\? Allowed: accuracy, .* \.\.\. \(`trainwright config names metric`",
    ):
        metrics.mode_of("val_acuracy")
    with pytest.raises(InputError, match="unknown metric 'val_'"):
        metrics.mode_of("val_")


def test_a_metric_of_the_other_task_is_refused():
    with pytest.raises(
        InputError,
        match=r"'rmse' is for regression, but the task is classification; allowed: loss, accuracy, f1 .*names metric`",
    ):
        metrics.check_metric("rmse", "classification")


def test_names_and_defaults():
    tasks = plugins.names("task")
    assert {"classification", "regression", "multilabel", "language_modeling"} <= set(tasks)
    assert set(metrics.names()) == {name for task in tasks for name in metrics.names(task)}
    assert set(metrics.names("regression")).isdisjoint(metrics.names("classification"))
    for task in tasks:
        cls = plugins.task_of(task)
        assert set(metrics.default_metrics(task)) <= set(metrics.names(task))
        assert cls.usual_metric in cls.metrics or not cls.metrics


def test_metrics_of_one_name_have_one_mode():
    modes: dict[str, set[str]] = {}
    for task in plugins.names("task"):
        for name, metric in plugins.task_of(task).metrics.items():
            modes.setdefault(name, set()).add(metric.mode)
    assert {name for name, found in modes.items() if len(found) > 1} == set()
    assert len(modes) > 30


def test_no_heavy_library_is_imported():
    code = "import sys, trainwright.evaluation.tables; print(*{'sklearn', 'pandas', 'torch', 'scipy'} & set(sys.modules))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == ""
    )
