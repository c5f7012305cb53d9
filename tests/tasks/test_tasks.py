"""Each task passes the suite; metrics of labels against scikit-learn, those of tokens against formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainwright.errors import DataError, ModelError
from trainwright.evaluation.metrics import evaluate_predictions
from trainwright.evaluation.significance import same_rows
from trainwright.tasks.base import Task
from trainwright.tasks.classification import ClassificationTask
from trainwright.tasks.custom_loss import CustomLossTask
from trainwright.tasks.language_modeling import LanguageModelingTask
from trainwright.tasks.multilabel import MultilabelTask
from trainwright.tasks.regression import RegressionTask
from trainwright.tasks.support.columns import infer_task, infer_task_of_matrix
from trainwright.testing.task_suite import TaskSuite
from trainwright.types import INPUT_IDS, Array, ArraySpec, DataInfo, Predictions, features_spec

LENGTH = 16


def noise(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


class TestClassification(TaskSuite):
    def make(self) -> Task:
        return ClassificationTask(DataInfo("classification", features_spec((4,)), 3, ["cat", "dog", "eel"]))

    def drawn(self, rows: int, seed: int) -> tuple[Array, Array]:
        targets = np.arange(rows) % 3
        raw = np.exp(noise(seed, rows, 3) + np.eye(3)[targets])
        return (raw / raw.sum(axis=1, keepdims=True)).astype(np.float32), targets


class TestTwoClasses(TestClassification):
    def make(self) -> Task:
        return ClassificationTask(DataInfo("classification", features_spec((4,)), 2, [False, True]))

    def drawn(self, rows: int, seed: int) -> tuple[Array, Array]:
        targets = np.arange(rows) % 2
        positive = 1 / (1 + np.exp(-noise(seed, rows) - 2 * targets + 1))
        return np.stack([1 - positive, positive], axis=1).astype(np.float32), targets


class TestCustomLoss(TaskSuite):
    def make(self) -> Task:
        return CustomLossTask(DataInfo("custom_loss", features_spec((4,)), 4, target=""))

    def drawn(self, rows: int, seed: int) -> tuple[Array, Array]:
        return np.abs(noise(seed, rows, 1)), np.empty((rows, 0))


class TestRegression(TaskSuite):
    def make(self) -> Task:
        return RegressionTask(DataInfo("regression", features_spec((4,)), 1, target="price"))

    def drawn(self, rows: int, seed: int) -> tuple[Array, Array]:
        targets = noise(0, rows) + 5
        return targets.astype(np.float32) + 0.3 * noise(seed, rows).astype(np.float32), targets


class TestSeveralValues(TestRegression):
    def make(self) -> Task:
        return RegressionTask(DataInfo("regression", features_spec((4,)), 2))

    def drawn(self, rows: int, seed: int) -> tuple[Array, Array]:
        targets = noise(0, rows, 2) + 5
        return targets.astype(np.float32) + 0.3 * noise(seed, rows, 2).astype(np.float32), targets


class TestMultilabel(TaskSuite):
    def make(self) -> Task:
        return MultilabelTask(DataInfo("multilabel", features_spec((4,)), 4, ["a", "b", "c", "d"]))

    def drawn(self, rows: int, seed: int) -> tuple[Array, Array]:
        targets = (noise(0, rows, 4) > 0.3).astype(np.float32)
        return (1 / (1 + np.exp(-noise(seed, rows, 4) - 2 * targets + 1))).astype(np.float32), targets


class TestLanguageModeling(TaskSuite):
    def make(self) -> Task:
        return LanguageModelingTask(
            DataInfo("language_modeling", {INPUT_IDS: ArraySpec((LENGTH,), "int64")}, 256, target="labels")
        )

    def drawn(self, rows: int, seed: int) -> tuple[Array, Array]:
        nats = LENGTH * (1 + np.abs(noise(seed, rows)))
        hits = np.random.default_rng(seed).integers(0, LENGTH, rows)
        return np.stack([nats, np.full(rows, float(LENGTH)), hits], axis=1), np.empty((rows, 0))


# -- labels, against scikit-learn


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_metrics_of_labels_are_those_of_scikit_learn(seed: int) -> None:
    sk = pytest.importorskip("sklearn.metrics")
    drawn = np.random.default_rng(seed)
    true = (drawn.random((40, 5)) > [0.2, 0.5, 0.9, 0.5, 1.0]).astype(np.float32)  # no row has the last label
    outputs = np.round(drawn.random((40, 5)), 1).astype(np.float32)  # with ties, and values at the threshold
    task = MultilabelTask(DataInfo("multilabel", features_spec((4,)), 5))
    part = Predictions(np.arange(40), outputs, true, 1.0)
    found = evaluate_predictions([part], list(task.metrics), task.info, "val").metrics
    predicted = (outputs > 0.5).astype(int)
    expected = {
        "subset_accuracy": sk.accuracy_score(true, predicted),
        "hamming_loss": sk.hamming_loss(true, predicted),
        "roc_auc": sk.roc_auc_score(true[:, :4], outputs[:, :4], average="macro"),
        "average_precision": sk.average_precision_score(true[:, :4], outputs[:, :4], average="macro"),
    }
    scores = {"f1": sk.f1_score, "precision": sk.precision_score, "recall": sk.recall_score}
    for name, score in scores.items():
        expected[name] = score(true, predicted, average="macro", zero_division=0)
        for average in ("macro", "micro", "weighted", "samples"):
            expected[f"{name}_{average}"] = score(true, predicted, average=average, zero_division=0)
    clipped = np.clip(outputs.astype(np.float64), np.finfo(np.float32).eps, 1 - np.finfo(np.float32).eps)
    expected["log_loss"] = float(-(true * np.log(clipped) + (1 - true) * np.log(1 - clipped)).mean())
    assert {name: found[f"val_{name}"] for name in expected} == pytest.approx(expected, rel=1e-6)
    assert {f"val_{name}" for name in expected} | {"val_loss"} == set(found)


def test_probabilities_of_labels_must_be_probabilities() -> None:
    task = MultilabelTask(DataInfo("multilabel", features_spec((4,)), 2))
    with pytest.raises(ModelError, match="from -1 to 2; expected probabilities"):
        task.check_outputs(np.array([[-1.0, 2.0]]), np.zeros((1, 2)))
    with pytest.raises(ModelError, match=r"\(1, 3\); expected \(1, 2\): one probability per label"):
        task.check_outputs(np.zeros((1, 3)), np.zeros((1, 2)))


def test_the_worst_rows_are_those_of_the_most_confident_mistakes() -> None:
    task = MultilabelTask(DataInfo("multilabel", features_spec((4,)), 2, ["red", "big"]))
    outputs, targets = np.array([[0.9, 0.2], [0.4, 0.99], [0.1, 0.6]]), np.array([[0, 0], [1, 0], [0, 1]])
    worst = task.tables(task.scores(outputs, targets), np.array([10, 11, 12]))["worst"]
    assert [(row["row"], row["true"], row["predicted"]) for row in worst] == [
        (11, "not big", "big"),
        (10, "not red", "red"),
    ]
    assert [row["probability"] for row in worst] == pytest.approx([0.99, 0.9])


def test_shares_of_rows_are_compared_by_mcnemar() -> None:
    drawn = np.random.default_rng(0)
    true = (drawn.random((300, 3)) > 0.5).astype(np.float32)
    info = DataInfo("multilabel", features_spec((4,)), 3)
    good, bad = (
        MultilabelTask(info).scores(np.where(drawn.random((300, 3)) < noise_, 1 - true, true), true)
        for noise_ in (0.02, 0.3)
    )
    assert same_rows("subset_accuracy", good, bad).test == "exact McNemar"
    assert same_rows("hamming_loss", good, bad).test == "paired sign-flip permutation"
    assert same_rows("f1", good, bad).test == "paired bootstrap"


# -- tokens, against formulas


def test_bits_per_byte_are_those_of_the_whole_text() -> None:
    """Rows count by their tokens: the mean over rows would be another number."""
    info = DataInfo("language_modeling", {INPUT_IDS: ArraySpec((4,), "int64")}, 256, target="labels")
    outputs = np.array([[8.0, 4.0, 1.0], [1.0, 1.0, 1.0]])
    part = Predictions(np.arange(2), outputs, np.empty((2, 0)), 0.0)
    found = evaluate_predictions([part], list(LanguageModelingTask.metrics), info, "val").metrics
    assert found == pytest.approx(
        {
            "val_loss": 9 / 5,
            "val_bits_per_byte": 9 / 5 / math.log(2),
            "val_perplexity": math.exp(9 / 5),
            "val_token_accuracy": 2 / 5,
        }
    )


# -- which task


@pytest.mark.parametrize(
    ("values", "task"),
    [
        (np.array(["a", "b"] * 20, object), "classification"),
        (np.array([True, False] * 20), "classification"),
        (np.array([0, 1, 2] * 20), "classification"),
        (np.array([0.5, 1.5] * 20), "regression"),
        (np.arange(60), "regression"),
    ],
)
def test_the_task_of_a_column(values: Array, task: str) -> None:
    assert infer_task(values) == task


def test_the_task_of_a_matrix() -> None:
    both = np.array([[0, 1], [1, 1], [0, 0]])
    task, warnings = infer_task_of_matrix(both, "the targets")
    assert (task, len(warnings)) == ("multilabel", 1)
    assert "2 columns of 0 and 1" in warnings[0]
    assert "one-hot" not in warnings[0]
    assert "one-hot" in infer_task_of_matrix(np.eye(3)[[0, 1, 2, 1]], "the targets")[1][0]
    assert infer_task_of_matrix(both * 2.5, "the targets") == ("regression", [])


def test_a_column_is_no_matrix_of_labels() -> None:
    with pytest.raises(DataError, match="the target is one column, but the task is multilabel"):
        MultilabelTask.check_column(np.zeros(4), "the target")
    with pytest.raises(DataError, match="needs text"):
        LanguageModelingTask.check_column(np.zeros(4), "the target")
