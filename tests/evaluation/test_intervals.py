"""The intervals of metrics over the rows of an evaluation."""

import numpy as np
import pytest

from trainwright.evaluation.intervals import intervals, wilson
from trainwright.evaluation.metrics import EvaluationResult, evaluate_predictions
from trainwright.evaluation.tables import tables
from trainwright.types import DataInfo, Predictions, SplitName, features_spec

CLASSES = DataInfo("classification", features_spec((2,)), 2, ("no", "yes"))
VALUES = DataInfo("regression", features_spec((2,)), 1)


def classified(rows: int, seed: int = 0, split: SplitName = "test") -> EvaluationResult:
    rng = np.random.default_rng(seed)
    positive = rng.random(rows)
    targets = (rng.random(rows) < positive).astype(np.int64)
    outputs = np.stack([1 - positive, positive], axis=1).astype(np.float32)
    names = ["accuracy", "log_loss", "roc_auc", "f1"]
    return evaluate_predictions([Predictions(np.arange(rows), outputs, targets, 1.0)], names, CLASSES, split)


def test_each_metric_has_the_interval_of_its_kind():
    made = tables(classified(400), CLASSES)
    told = made["intervals"]
    assert {name: one["method"] for name, one in told.items()} == {
        "test_accuracy": "Wilson",
        "test_log_loss": "normal",
        "test_roc_auc": "bootstrap",
        "test_f1": "bootstrap",
    }
    for name, one in told.items():
        assert one["low"] < made["metrics"][name] < one["high"]


def test_the_same_predictions_have_the_same_intervals():
    assert tables(classified(300), CLASSES)["intervals"] == tables(classified(300), CLASSES)["intervals"]


@pytest.mark.parametrize("rows", [400, 20_000])
def test_intervals_hold_the_value_of_other_rows_about_as_often_as_they_say(rows):
    """Also where fewer rows are drawn than there are."""
    truth = classified(400_000, seed=99).metrics
    names = ["test_accuracy", "test_roc_auc"]
    tries = 60 if rows < 1000 else 12
    hits = dict.fromkeys(names, 0)
    for seed in range(tries):
        told = intervals(classified(rows, seed), CLASSES, names)
        for name in names:
            hits[name] += told[name]["low"] <= truth[name] <= told[name]["high"]
    assert min(hits.values()) >= 0.8 * tries


def test_a_perfect_share_has_an_interval():
    low, high = wilson(1.0, 20)
    assert 0.8 < low < 0.9
    assert high == pytest.approx(1.0)


def _answered(true: int, hits: int, alarms: int, rows: int = 226) -> EvaluationResult:
    """An evaluation with `hits` of `true` rows of the positive class found, and some false alarms."""
    targets = (np.arange(rows) < true).astype(np.int64)
    positive = 0.2 + 0.01 * targets
    positive[:hits] = positive[rows - alarms :] = 0.9
    outputs = np.stack([1 - positive, positive], axis=1).astype(np.float32)
    names = ["recall", "precision", "specificity", "f1", "recall_macro", "precision_binary"]
    return evaluate_predictions([Predictions(np.arange(rows), outputs, targets, 1.0)], names, CLASSES, "test")


@pytest.mark.parametrize(("hits", "alarms"), [(0, 3), (5, 2), (23, 0)])
def test_recall_and_precision_are_shares_of_the_rows_of_a_class_and_of_those_answered_so(hits, alarms):
    told = tables(_answered(23, hits, alarms), CLASSES)["intervals"]
    counts = {"recall": (hits, 23), "precision": (hits, hits + alarms), "specificity": (203 - alarms, 203)}
    counts["precision_binary"] = counts["precision"]
    for name, (right, rows) in counts.items():
        one = told[f"test_{name}"]
        low, high = np.clip(wilson(right / rows, rows), 0, 1)
        assert (one["low"], one["high"], one["method"]) == (
            pytest.approx(low),
            pytest.approx(high),
            "Wilson",
        )
        assert one["low"] < one["high"]
    assert told.get("test_recall_macro", {"method": "bootstrap"})["method"] == "bootstrap"


def test_no_interval_has_no_width():
    """The F1 of a class that is never found is 0 on all resamples; the precision of no answer is no share."""
    told = tables(_answered(23, 0, 0), CLASSES)["intervals"]
    assert told.keys() == {"test_recall", "test_specificity"}
    assert 0.1 < told["test_recall"]["high"] < 0.2


def test_training_rows_and_single_rows_have_none():
    assert tables(classified(50, split="train"), CLASSES)["intervals"] == {}
    assert tables(classified(1), CLASSES)["intervals"] == {}


def test_intervals_end_at_the_bounds_of_the_metric():
    rng = np.random.default_rng(0)
    targets = rng.normal(size=8)
    outputs = (targets + 0.001 * rng.normal(size=8)).astype(np.float32)[:, None]
    parts = [Predictions(np.arange(8), outputs, targets.astype(np.float32), 1.0)]
    told = tables(evaluate_predictions(parts, ["r2", "mae"], VALUES, "val"), VALUES)["intervals"]
    assert told["val_r2"]["high"] <= 1
    assert told["val_mae"]["low"] >= 0
