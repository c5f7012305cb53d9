"""Segmentation passes the suite of tasks; its metrics are those of scikit-learn over all pixels that count."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import torch

from late import Late
from trainwright.errors import DataError, InputError
from trainwright.evaluation.metrics import evaluate_predictions
from trainwright.frameworks.torch.losses.pixels import pixel_counts
from trainwright.tasks.base import Task
from trainwright.tasks.segmentation import SegmentationTask
from trainwright.testing.task_suite import TaskSuite
from trainwright.types import NO_LABEL, Array, DataInfo, Predictions, features_spec

sk: Any = Late(lambda: importlib.import_module("sklearn.metrics"))
SHAPE = (5, 7)


def info(classes: int = 4, labels: list[Any] | None = None) -> DataInfo:
    return DataInfo("segmentation", features_spec((1, *SHAPE)), classes, labels, target_shape=SHAPE)


def logits_and_masks(rows: int, seed: int, classes: int = 4) -> tuple[Array, Array]:
    """Return logits of a mediocre model, and masks of which some pixels do not count."""
    drawn, true = np.random.default_rng(seed), np.random.default_rng(0).integers(0, classes, (rows, *SHAPE))
    logits = drawn.normal(size=(rows, classes, *SHAPE)) + 2 * np.moveaxis(np.eye(classes)[true], -1, 1)
    true[np.random.default_rng(1).random(true.shape) < 0.2] = NO_LABEL
    return logits.astype(np.float32), true


def sums(rows: int, seed: int, classes: int = 4) -> Array:
    """Return the sums that stand for the predictions, with a loss of 2 a pixel."""
    logits, masks = (torch.from_numpy(one) for one in logits_and_masks(rows, seed, classes))
    pixels = (masks != NO_LABEL).sum(dim=(1, 2)).numpy()
    return np.column_stack([2.0 * pixels, pixels, pixel_counts(logits, masks).numpy()])


class TestSegmentation(TaskSuite):
    def make(self) -> Task:
        return SegmentationTask(info(4, ["sky", "road", "car", "tree"]))

    def drawn(self, rows: int, seed: int) -> tuple[Array, Array]:
        return sums(rows, seed), np.empty((rows, 0))


def evaluated(rows: int, classes: int = 4, **labels: Any) -> dict[str, float]:
    task = SegmentationTask(info(classes, **labels))
    part = Predictions(np.arange(rows), sums(rows, 3, classes), np.empty((rows, 0)), 0.0)
    return dict(evaluate_predictions([part], list(task.metrics), task.info, "val").metrics)


def test_metrics_are_those_of_scikit_learn_on_all_pixels_that_count() -> None:
    found = evaluated(9)
    logits, masks = logits_and_masks(9, 3)
    true, predicted = (one[masks != NO_LABEL] for one in (masks, logits.argmax(axis=1)))
    dice = sk.f1_score(true, predicted, average=None)
    iou = sk.jaccard_score(true, predicted, average=None)
    expected = {"loss": 2.0, "pixel_accuracy": sk.accuracy_score(true, predicted)}
    expected |= {"iou": iou.mean(), "dice": dice.mean()}
    expected |= {f"iou_{i}": iou[i] for i in range(4)} | {f"dice_{i}": dice[i] for i in range(4)}
    recall = sk.recall_score(true, predicted, average=None)
    expected |= {f"pixel_accuracy_{i}": recall[i] for i in range(4)}
    assert found == pytest.approx({f"val_{name}": value for name, value in expected.items()}, rel=1e-12)


def test_a_class_that_does_not_occur_is_left_out_of_means() -> None:
    task = SegmentationTask(info(3))
    masks, predicted = np.array([[[0, 0, 1, 1]]]), np.array([[[0, 1, 1, 1]]])
    logits = np.moveaxis(np.eye(3)[predicted], -1, 1)
    counts = pixel_counts(torch.from_numpy(logits), torch.from_numpy(masks)).numpy()
    scores = task.scores(np.column_stack([[0.0], [4.0], counts]), np.empty((1, 0)))
    assert task.metrics["iou"].function(scores) == sk.jaccard_score(
        masks.ravel(), predicted.ravel(), average="macro"
    )
    alone = task.by_target(scores)["2"]
    assert np.isnan(task.metrics["dice"].function(alone))


def test_numbers_of_masks_are_classes_in_order() -> None:
    train, val = np.array([[[0, 255, 128]]], np.uint8), np.array([[[128, 7, 0]]], np.uint8)
    labels, encoded = SegmentationTask.encode_arrays({"train": train, "val": val}, 255)
    assert labels == [0, 7, 128]
    assert encoded["train"].tolist() == [[[0, NO_LABEL, 2]]]
    assert encoded["val"].tolist() == [[[2, 1, 0]]]
    with pytest.raises(DataError, match="hold only 128: there is nothing to learn"):
        SegmentationTask.encode_arrays({"train": np.full((1, 2, 2), 128)}, None)


def test_predictions_are_masks_with_the_numbers_of_the_data() -> None:
    task = SegmentationTask(info(2, [0, 255]))
    probabilities = np.array([[[[0.8, 0.3]], [[0.2, 0.7]]]], np.float32)  # (1, 2, 1, 2)
    (mask,) = task.columns(probabilities)["prediction"]
    assert (mask.dtype, mask.tolist()) == (np.uint8, [[0, 255]])
    (mask,) = task.columns_at(probabilities, 0.2)["prediction"]
    assert mask.tolist() == [[255, 255]]
    with pytest.raises(InputError, match="there are 4"):
        SegmentationTask(info(4)).columns_at(probabilities, 0.2)
