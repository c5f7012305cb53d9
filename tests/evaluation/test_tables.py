"""The JSON that a report is drawn from."""

from __future__ import annotations

import json
import math

import numpy as np

from trainwright.evaluation.metrics import EvaluationResult, evaluate_predictions
from trainwright.evaluation.tables import tables
from trainwright.tasks.classification import MAX_CONFUSION
from trainwright.tasks.regression import MAX_POINTS
from trainwright.tasks.support.columns import as_json
from trainwright.types import DataInfo, Predictions, features_spec

LABELS = DataInfo("classification", features_spec((2,)), 3, ("cat", "dog", "eel"))
OUTPUTS = np.array([[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.05, 0.9, 0.05], [0.2, 0.2, 0.6]], np.float32)
TARGETS = np.array([0, 1, 2, 2])


def classified() -> EvaluationResult:
    return evaluate_predictions(
        [Predictions(np.array([10, 11, 12, 13]), OUTPUTS, TARGETS, 4.0)],
        ["accuracy", "roc_auc"],
        LABELS,
        "test",
    )


def test_classification():
    made = tables(classified(), LABELS)
    assert made["split"] == "test"
    assert made["rows"] == 4
    assert made["confusion"] == {"labels": ["cat", "dog", "eel"], "matrix": [[1, 0, 0], [1, 0, 0], [0, 1, 1]]}
    assert made["per_class"][0] == {
        "label": "cat",
        "precision": 0.5,
        "recall": 1.0,
        "f1": 2 / 3,
        "support": 1,
    }
    assert made["per_class"][1]["precision"] == 0.0
    assert made["scatter"] is None
    assert [(row["row"], row["true"], row["predicted"]) for row in made["worst"]] == [
        (12, "eel", "dog"),
        (11, "dog", "cat"),
    ]
    json.dumps(made, allow_nan=False)


def test_regression_keeps_evenly_spaced_points():
    info = DataInfo("regression", features_spec((2,)), 1)
    true = np.arange(10_001, dtype=np.float32)
    guess = true.copy()
    guess[500] += 50
    result = evaluate_predictions(
        [Predictions(np.arange(10_001), guess[:, None], true, 1.0)], ["r2"], info, "val"
    )
    made = tables(result, info)
    points = made["scatter"]
    assert len(points["true"]) == len(points["predicted"]) == MAX_POINTS
    assert points["true"][0] == 0
    assert points["true"][-1] == 10_000
    assert made["worst"][0] == {"row": 500, "true": 500.0, "predicted": 550.0, "error": 50.0}
    assert made["confusion"] is None
    assert made == tables(result, info)
    json.dumps(made, allow_nan=False)


def test_values_that_json_cannot_hold():
    result = EvaluationResult(
        "val", {"val_loss": math.nan}, np.full((2, 3), np.nan), np.zeros(2, np.int64), np.arange(2)
    )
    made = tables(result, LABELS)
    assert made["metrics"] == {"val_loss": "NaN"}
    assert made["confusion"] is None
    json.dumps(made, allow_nan=False)


def test_labels_of_any_kind():
    assert [as_json(value) for value in (np.int64(3), np.bool_(True), np.str_("a"), 2.5, ("x", 1))] == [
        3,
        True,
        "a",
        2.5,
        "('x', 1)",
    ]


def test_a_matrix_of_too_many_classes_is_left_out():
    count = MAX_CONFUSION + 1
    info = DataInfo("classification", features_spec((2,)), count, range(count))
    outputs = np.eye(count, dtype=np.float32)
    made = tables(
        evaluate_predictions(
            [Predictions(np.arange(count), outputs, np.arange(count), 0.0)], [], info, "val"
        ),
        info,
    )
    assert made["confusion"] is None
    assert len(made["per_class"]) == count
    assert made["worst"] == []
