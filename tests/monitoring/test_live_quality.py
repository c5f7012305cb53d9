"""Quality by labels that come later, against metrics and intervals computed from all rows at once."""

import numpy as np
import pytest
from sklearn import metrics

from trainwright.errors import InputError
from trainwright.evaluation.intervals import wilson
from trainwright.monitoring.feedback import Feedback
from trainwright.types import DataInfo, features_spec

CLASSES = DataInfo("classification", features_spec((2,), "float32"), 2, ["no", "yes"], ["a", "b"], "y")
AMOUNT = DataInfo("regression", features_spec((2,), "float32"), 1, None, ["a", "b"], "y")


def served(feedback: Feedback, requests: int, rows: int = 5) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    positive = draw.random((requests, rows)).astype(np.float32)
    targets = (draw.random((requests, rows)) < positive).astype(np.int64)
    for i in range(requests):
        feedback.predicted(f"r{i}", np.stack([1 - positive[i], positive[i]], axis=1))
    return positive, targets


def test_quality_is_that_of_all_rows() -> None:
    feedback = Feedback(CLASSES, ["accuracy", "roc_auc", "loss"], {"accuracy": 0.99})
    positive, targets = served(feedback, 60)
    for i in range(40):
        assert feedback.labeled(f"r{i}", targets[i]) == 5
    found = feedback.quality()
    assert (found["waiting"], found["known"]) == (100, 200)
    p, y = positive[:40].ravel(), targets[:40].ravel()
    accuracy = metrics.accuracy_score(y, p > 0.5)
    one = found["metrics"]["accuracy"]
    assert one["value"] == pytest.approx(accuracy)
    assert (one["low"], one["high"]) == pytest.approx(wilson(accuracy, 200))
    assert one["worse"] is True
    assert one["expected"] == 0.99
    two = found["metrics"]["roc_auc"]
    assert two["value"] == pytest.approx(metrics.roc_auc_score(y, p))
    assert two["low"] < two["value"] < two["high"]
    assert two["worse"] is None
    assert "loss" not in found["metrics"]


def test_quality_that_is_as_expected_is_not_worse() -> None:
    feedback = Feedback(AMOUNT, ["rmse"], {"rmse": 1.0})
    draw = np.random.default_rng(1)
    for i in range(100):
        values = draw.normal(size=3)
        feedback.predicted(str(i), values)
        feedback.labeled(str(i), values + draw.normal(size=3))
    one = feedback.quality()["metrics"]["rmse"]
    assert one["low"] < 1 < one["high"]
    assert one["worse"] is False


def test_memory_is_bounded() -> None:
    feedback = Feedback(CLASSES, ["accuracy"], rows=50)
    _, targets = served(feedback, 100)
    assert feedback.quality()["waiting"] == 50
    with pytest.raises(InputError, match=r"no prediction of request 'r89' waits"):
        feedback.labeled("r89", targets[89])
    for i in range(90, 100):
        feedback.labeled(f"r{i}", targets[i])
    feedback.predicted("more", np.full((30, 2), 0.5, np.float32))
    feedback.labeled("more", np.zeros(30, np.int64))
    assert feedback.quality()["known"] <= 50


def test_targets_come_once_and_fit() -> None:
    feedback = Feedback(CLASSES, ["accuracy"])
    assert feedback.quality()["metrics"] == {}
    _, targets = served(feedback, 2)
    with pytest.raises(InputError, match=r"4 targets given for request 'r0', which has 5 rows"):
        feedback.labeled("r0", targets[0][:4])
    feedback.labeled("r0", targets[0])
    with pytest.raises(InputError, match="came already"):
        feedback.labeled("r0", targets[0])


def test_outputs_that_are_not_finite_are_left_out() -> None:
    feedback = Feedback(AMOUNT, ["mae"])
    feedback.predicted("a", np.array([1.0, np.nan, 3.0]))
    feedback.labeled("a", np.array([2.0, 2.0, 4.0]))
    assert feedback.quality()["metrics"]["mae"]["value"] == 1
