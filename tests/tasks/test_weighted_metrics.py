"""Metrics by the weights of rows are scikit-learn's with `sample_weight`."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics as reference

from trainwright.evaluation.metrics import evaluate_predictions
from trainwright.types import DataInfo, Metrics, Predictions, features_spec

ROWS = 60


def _evaluated(info: DataInfo, outputs: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> Metrics:
    """Return all metrics of the task, named without the split."""
    from trainwright.plugins import task_of

    parts = [
        Predictions(ids, outputs[ids], targets[ids], float(len(ids)), weights=weights[ids])
        for ids in np.array_split(np.arange(ROWS), 3)
    ]
    result = evaluate_predictions(parts, list(task_of(info.task).metrics), info, "val")
    return {name.removeprefix("val_"): value for name, value in result.metrics.items()}


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(3)


@pytest.fixture
def weights(draw: np.random.Generator) -> np.ndarray:
    values = draw.integers(0, 4, ROWS).astype(np.float64)
    values[:3] = 0.25
    return values


@pytest.mark.parametrize("outputs", [1, 2])
def test_regression(outputs: int, draw: np.random.Generator, weights: np.ndarray) -> None:
    targets = draw.normal(size=(ROWS, outputs)).astype(np.float32)
    predicted = (targets + draw.normal(size=(ROWS, outputs))).astype(np.float32)
    info = DataInfo("regression", features_spec((2,)), outputs)
    shape = (ROWS,) if outputs == 1 else (ROWS, outputs)
    got = _evaluated(info, predicted.reshape(shape), targets.reshape(shape), weights)
    y, p = targets.astype(np.float64), predicted.astype(np.float64)
    expected = {
        "mse": reference.mean_squared_error(y, p, sample_weight=weights),
        "rmse": reference.root_mean_squared_error(y, p, sample_weight=weights),
        "mae": reference.mean_absolute_error(y, p, sample_weight=weights),
        "medae": reference.median_absolute_error(y, p, sample_weight=weights),
        "max_error": np.abs(y - p).max(),
        "mape": reference.mean_absolute_percentage_error(y, p, sample_weight=weights),
        "r2": reference.r2_score(y, p, sample_weight=weights),
        "explained_variance": reference.explained_variance_score(y, p, sample_weight=weights),
    }
    assert {name: got[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    assert got["loss"] == pytest.approx(ROWS / weights.sum())


@pytest.mark.parametrize("classes", [2, 3])
def test_classification(classes: int, draw: np.random.Generator, weights: np.ndarray) -> None:
    targets = draw.integers(0, classes, ROWS)
    outputs = draw.dirichlet(np.ones(classes), ROWS).astype(np.float64)
    info = DataInfo("classification", features_spec((2,)), classes)
    got = _evaluated(info, outputs, targets, weights)
    y, p, labels = targets, outputs.argmax(axis=1), np.arange(classes)
    kept = weights > 0  # a class of weight 0 would count in scikit-learn's macro means, too
    assert len(np.unique(y[kept])) == classes
    w = {"sample_weight": weights}
    binary = classes == 2
    score = outputs[:, 1] if binary else outputs
    expected = {
        "accuracy": reference.accuracy_score(y, p, **w),
        "balanced_accuracy": reference.balanced_accuracy_score(y, p, **w),
        "log_loss": reference.log_loss(y, outputs, labels=labels, **w),
        "mcc": reference.matthews_corrcoef(y, p, **w),
        "kappa": reference.cohen_kappa_score(y, p, **w),
        "f1_macro": reference.f1_score(y, p, average="macro", **w),
        "f1_weighted": reference.f1_score(y, p, average="weighted", **w),
        "precision_micro": reference.precision_score(y, p, average="micro", **w),
        "recall_macro": reference.recall_score(y, p, average="macro", **w),
        "roc_auc": np.mean(
            [reference.roc_auc_score(y == k, outputs[:, k], **w) for k in ([1] if binary else labels)]
        ),
        "average_precision": np.mean(
            [
                reference.average_precision_score(y == k, outputs[:, k], **w)
                for k in ([1] if binary else labels)
            ]
        ),
    }
    if binary:
        expected["brier"] = reference.brier_score_loss(y, score, **w)
    assert {name: got[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    if not binary:
        top = reference.top_k_accuracy_score(y, outputs, k=3, labels=labels, **w)
        assert got["top_3_accuracy"] == pytest.approx(top)


def test_multilabel(draw: np.random.Generator, weights: np.ndarray) -> None:
    targets = draw.integers(0, 2, (ROWS, 3)).astype(np.float32)
    outputs = draw.uniform(size=(ROWS, 3)).astype(np.float32)
    info = DataInfo("multilabel", features_spec((2,)), 3)
    got = _evaluated(info, outputs, targets, weights)
    y, p, w = targets.astype(int), (outputs > 0.5).astype(int), {"sample_weight": weights}
    expected = {
        "subset_accuracy": reference.accuracy_score(y, p, **w),
        "hamming_loss": reference.hamming_loss(y, p, **w),
        "roc_auc": reference.roc_auc_score(y, outputs, **w),
        "average_precision": reference.average_precision_score(y, outputs, **w),
        **{
            f"f1_{average}": reference.f1_score(y, p, average=average, zero_division=0, **w)
            for average in ("macro", "micro", "weighted", "samples")
        },
    }
    assert {name: got[name] for name in expected} == pytest.approx(expected, rel=1e-9)


def test_weights_of_one_change_nothing(draw: np.random.Generator) -> None:
    """Equal weights give the metrics without weights, up to rounding."""
    targets, outputs = draw.integers(0, 3, ROWS), draw.dirichlet(np.ones(3), ROWS)
    info = DataInfo("classification", features_spec((2,)), 3)
    parts = [Predictions(np.arange(ROWS), outputs, targets, 1.0)]
    names = ["accuracy", "f1_macro", "roc_auc", "average_precision", "log_loss", "mcc"]
    plain = evaluate_predictions(parts, names, info, "val").metrics
    got = _evaluated(info, outputs, targets, np.full(ROWS, 2.0))
    assert {name: got[name] for name in names} == pytest.approx(
        {name: plain[f"val_{name}"] for name in names}, rel=1e-12
    )
