"""The positive class in everything that singles one out, against scikit-learn's `pos_label`."""

from __future__ import annotations

import numpy as np
import pytest

from trainwright.errors import InputError
from trainwright.evaluation.metrics import evaluate_predictions
from trainwright.evaluation.tables import tables
from trainwright.plugins import task_for
from trainwright.tasks.support.positive import positive_of_two
from trainwright.types import DataInfo, Predictions, features_spec

sk = pytest.importorskip("sklearn.metrics")

LABELS = ("bad", "good")


def info(positive: int | None) -> DataInfo:
    return DataInfo("classification", features_spec((4,)), 2, LABELS, target="risk", positive=positive)


def drawn(rows: int = 400):
    """Scores that find some of the few rows that are bad."""
    rng = np.random.default_rng(4)
    targets = (rng.random(rows) > 0.1).astype(np.int64)
    good = 1 / (1 + np.exp(-np.round(rng.normal(size=rows) + 4 * targets - 1.5, 1)))
    return np.stack([1 - good, good], axis=1).astype(np.float32), targets


def evaluated(positive: int | None, names):
    outputs, targets = drawn()
    part = Predictions(np.arange(len(targets)), outputs, targets, 1.0)
    return evaluate_predictions([part], names, info(positive), "test")


@pytest.mark.parametrize("positive", [0, 1])
def test_metrics_agree_with_sklearn(positive):
    outputs, targets = drawn()
    true, guess = np.array(LABELS)[targets], np.array(LABELS)[outputs.argmax(axis=1)]
    label, other, scores = LABELS[positive], LABELS[1 - positive], outputs[:, positive]
    how = {"pos_label": label, "zero_division": 0}
    expected = {
        "f1": sk.f1_score(true, guess, **how),
        "precision": sk.precision_score(true, guess, **how),
        "recall": sk.recall_score(true, guess, **how),
        "f1_binary": sk.f1_score(true, guess, **how),
        "jaccard": sk.jaccard_score(true, guess, **how),
        "specificity": sk.recall_score(true, guess, pos_label=other),
        "average_precision": sk.average_precision_score(true, scores, pos_label=label),
        "roc_auc": sk.roc_auc_score(true == label, scores),
        "brier": sk.brier_score_loss(true, scores, pos_label=label),
        "sklearn.metrics:f1_score": sk.f1_score(true, guess, pos_label=label),
        "sklearn.metrics:average_precision_score": sk.average_precision_score(true, scores, pos_label=label),
        "sklearn.metrics:brier_score_loss": sk.brier_score_loss(true, scores, pos_label=label),
        "sklearn.metrics:roc_auc_score": sk.roc_auc_score(true == label, scores),  # it knows no pos_label
    }
    for name, value in expected.items():
        metrics = evaluated(positive, [name]).metrics
        assert metrics[f"test_{name.rpartition(':')[2]}"] == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("positive", [0, 1])
def test_tables_and_figures_are_of_the_positive_class(positive):
    _, targets = drawn()
    found = tables(evaluated(positive, ["f1"]), info(positive))
    assert found["positive"] == LABELS[positive]
    assert found["thresholds"]["name"] == LABELS[positive]
    assert found["thresholds"]["positive"] == (targets == positive).sum()
    drawn_of = {line["name"].partition(":")[0] for one in found["figures"] for line in one.get("lines", [])}
    assert drawn_of == {LABELS[positive]}
    (explained,) = task_for(info(positive)).explained_outputs(targets, 5)
    assert explained == (positive, LABELS[positive])


@pytest.mark.parametrize("positive", [0, 1])
def test_a_threshold_decides_for_the_positive_class(positive):
    outputs, _ = drawn()
    answers = np.array(task_for(info(positive)).columns_at(outputs, 0.2)["prediction"])
    assert ((answers == LABELS[positive]) == (outputs[:, positive] >= 0.2)).all()


def test_where_nothing_is_said_it_is_the_second_class():
    assert evaluated(None, ["f1"]).metrics == evaluated(1, ["f1"]).metrics


@pytest.mark.parametrize(
    ("labels", "counts", "positive"),
    [
        ([0, 1], [5, 95], 1),
        ([False, True], [5, 95], True),
        ([-1, 1], [5, 95], 1),
        (["0", "1"], [5, 95], "1"),
        (["FALSE", "TRUE"], [5, 95], "TRUE"),
        (["no", "yes"], [5, 95], "yes"),
        (["Bad", "good"], [95, 5], "Bad"),
        (["malignant", "zz"], [9, 1], "malignant"),
        (["fraud", "spam"], [5, 95], "fraud"),  # both say so
        ([1, 2], [70, 30], 2),  # 1 means nothing beside 2
        (["cat", "dog"], [5, 95], "cat"),
        (["cat", "dog"], [50, 50], "dog"),
        (["cat", "dog"], None, "dog"),
    ],
)
def test_without_a_setting_labels_and_rows_decide(labels, counts, positive):
    found = positive_of_two(None, labels, lambda: None if counts is None else np.array(counts))
    assert labels[found.code] == positive
    assert found.reason


@pytest.mark.parametrize(
    ("labels", "named", "positive"),
    [
        (["bad", "good"], "good", "good"),
        (["bad", "good"], "Bad", "bad"),
        ([0, 1], 0, 0),
        ([0, 1], "0", 0),
        ([0, 1], False, 0),
        ([False, True], False, False),
        ([False, True], "false", False),
        (["0", "1"], 0, "0"),
        (["A", "a"], "a", "a"),
    ],
)
def test_the_setting_names_a_label_as_it_is_written(labels, named, positive):
    found = positive_of_two(named, labels, lambda: None)
    assert labels[found.code] == positive
    assert not found.reason


def test_what_is_no_class_is_refused():
    with pytest.raises(InputError, match=r"evaluation\.positive: wrose is not a class .*; give bad or good"):
        positive_of_two("wrose", LABELS, lambda: None)


def test_it_is_for_two_classes_only():
    three = DataInfo("classification", features_spec((4,)), 3, ("a", "b", "c"), target="kind")
    with pytest.raises(InputError, match=r"evaluation.positive: a given.*two classes, but kind has 3"):
        task_for(three).positive_class("a", lambda: None)
    values = DataInfo("regression", features_spec((4,)), 1)
    with pytest.raises(InputError, match="two classes, but the task is regression"):
        task_for(values).positive_class("a", lambda: None)
    assert task_for(three).positive_class(None, lambda: None) is None
