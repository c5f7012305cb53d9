"""Quality by labels that come later, against metrics and intervals computed by others."""

import numpy as np
import pytest
from sklearn import metrics

from trainwright.evaluation.intervals import wilson
from trainwright.monitoring.feedback import quality
from trainwright.types import DataInfo, features_spec

CLASSES = DataInfo("classification", features_spec((2,), "float32"), 2, ["no", "yes"], ["a", "b"], "y")
AMOUNT = DataInfo("regression", features_spec((2,), "float32"), 1, None, ["a", "b"], "y")


def test_quality_is_that_of_all_rows() -> None:
    draw = np.random.default_rng(0)
    p = draw.random(200).astype(np.float32)
    y = (draw.random(200) < p).astype(np.int64)
    found = quality(np.stack([1 - p, p], 1), y, CLASSES, ["accuracy", "roc_auc", "loss"], {"accuracy": 0.99})
    accuracy = metrics.accuracy_score(y, p > 0.5)
    one = found["accuracy"]
    assert one["value"] == pytest.approx(accuracy)
    assert (one["low"], one["high"]) == pytest.approx(wilson(accuracy, 200))
    assert one["worse"] is True
    assert one["expected"] == 0.99
    two = found["roc_auc"]
    assert two["value"] == pytest.approx(metrics.roc_auc_score(y, p))
    assert two["low"] < two["value"] < two["high"]
    assert two["worse"] is None
    assert "loss" not in found


def test_quality_that_is_as_expected_is_not_worse() -> None:
    draw = np.random.default_rng(1)
    values = draw.normal(size=300)
    one = quality(values, values + draw.normal(size=300), AMOUNT, ["test_rmse"], {"rmse": 1.0})["rmse"]
    assert one["low"] < 1 < one["high"]
    assert one["worse"] is False


def test_outputs_that_are_not_finite_are_left_out() -> None:
    found = quality(np.array([1.0, np.nan, 3.0]), np.array([2.0, 2.0, 4.0]), AMOUNT, ["mae"])
    assert found["mae"]["value"] == 1
    assert quality(np.empty(0), np.empty(0), AMOUNT, ["mae"]) == {}
