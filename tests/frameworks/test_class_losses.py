"""The losses of classes and labels, against formulas in float64 and torch's own."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import trainwright
from small_runs import SMALL
from trainwright.errors import ModelError
from trainwright.frameworks.torch.losses import base as losses
from trainwright.frameworks.torch.losses.base import LossOptions
from trainwright.tasks.classification import ClassificationTask
from trainwright.tasks.multilabel import MultilabelTask
from trainwright.types import TARGET, DataInfo, features_spec

ROWS, CLASSES = 40, 5


def task_of(name: str) -> Any:
    info = DataInfo(name, features_spec((4,)), CLASSES)
    return (ClassificationTask if name == "classification" else MultilabelTask)(info)


def drawn(name: str) -> tuple[Any, Any]:
    random = np.random.default_rng(1)
    logits = random.normal(size=(ROWS, CLASSES)).astype(np.float32) * 3
    codes = random.integers(0, CLASSES, ROWS)
    labels = (random.random((ROWS, CLASSES)) < 0.3).astype(np.float32)
    return logits, codes if name == "classification" else labels


def by_formula(name: str, loss: str, gamma: float = 2.0, smoothing: float = 0.0) -> Any:
    """The loss of each row, (rows,) float64, from probabilities."""
    logits, targets = drawn(name)
    logits = logits.astype(np.float64)
    if name == "classification":
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        share = np.eye(CLASSES)[targets] * (1 - smoothing) + smoothing / CLASSES
        return (share * (1 - p) ** gamma * -np.log(p)).sum(axis=1)
    p, t = 1 / (1 + np.exp(-logits)), targets * (1 - smoothing) + smoothing / 2
    if loss == "dice":
        return 1 - (2 * (p * t).sum(axis=1) + 1) / ((p**2).sum(axis=1) + (t**2).sum(axis=1) + 1)
    each = -t * (1 - p) ** gamma * np.log(p) - (1 - t) * p**gamma * np.log(1 - p)
    return each.mean(axis=1)


CASES = [
    ("classification", "focal", {}),
    ("classification", "focal", {"focal_gamma": 0.5, "label_smoothing": 0.1}),
    ("classification", "cross_entropy", {"label_smoothing": 0.1}),
    ("multilabel", "focal", {}),
    ("multilabel", "focal", {"focal_gamma": 3.0, "label_smoothing": 0.1}),
    ("multilabel", "binary_cross_entropy", {"label_smoothing": 0.1}),
    ("multilabel", "dice", {}),
]


@pytest.mark.parametrize(("name", "loss", "options"), CASES)
def test_losses_and_their_weighted_sums_are_those_of_formulas(name: str, loss: str, options: Any) -> None:
    logits, targets = map(torch.from_numpy, drawn(name))
    gamma = options.get("focal_gamma", 2.0) if loss == "focal" else 0.0
    expected = by_formula(name, loss, gamma, options.get("label_smoothing", 0.0))  # (rows,)
    mean = losses.build_loss(loss, task_of(name), LossOptions(**options))(logits, {TARGET: targets})
    assert float(mean) == pytest.approx(expected.mean(), rel=1e-5)
    weights = np.random.default_rng(2).random(ROWS)
    build = losses.build_weighted_loss(loss, task_of(name), LossOptions(**options))
    total = build(logits, {TARGET: targets}, torch.from_numpy(weights))
    assert float(total) == pytest.approx((expected * weights).sum(), rel=1e-5)


def test_focal_without_gamma_is_torchs_cross_entropy_with_smoothing_and_weights_of_classes() -> None:
    logits, targets = map(torch.from_numpy, drawn("classification"))
    options = {"label_smoothing": 0.1, "focal_gamma": 0.0}
    mean = losses.build_loss("focal", task_of("classification"), LossOptions(**options))(
        logits, {TARGET: targets}
    )
    assert float(mean) == pytest.approx(
        float(functional.cross_entropy(logits, targets, label_smoothing=0.1)), rel=1e-6
    )
    alpha = torch.tensor([1.0, 2.0, 0.5, 3.0, 1.5])
    plain = losses.build_weighted_loss("focal", task_of("classification"), LossOptions(focal_gamma=0.0))
    weights = alpha[targets].double()
    ours = plain(logits, {TARGET: targets}, weights) / weights.sum()
    assert float(ours) == pytest.approx(
        float(functional.cross_entropy(logits, targets, weight=alpha)), rel=1e-6
    )


@pytest.mark.parametrize(("name", "loss", "options"), [case for case in CASES if case[1] != "cross_entropy"])
def test_gradients_are_finite_where_a_model_is_certain(name: str, loss: str, options: Any) -> None:
    logits = torch.tensor([[200.0, -200.0, 0.0, -200.0, 200.0]] * 2, requires_grad=True)
    targets = (
        torch.tensor([0, 1]) if name == "classification" else torch.tensor([[1.0, 0, 0, 1, 0], [0.0] * 5])
    )
    losses.build_loss(loss, task_of(name), LossOptions(**options))(logits, {TARGET: targets}).backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize(
    ("name", "loss", "options", "message"),
    [
        ("classification", "dice", {}, "dice is not a loss for classification"),
        (
            "multilabel",
            "dice",
            {"label_smoothing": 0.1},
            r"label_smoothing: 0\.1 given, but the loss is dice",
        ),
        ("classification", "auto", {"focal_gamma": 1.0}, "set training.loss: focal"),
    ],
)
def test_options_that_do_not_fit_are_refused(name: str, loss: str, options: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        losses.build_loss(loss, task_of(name), LossOptions(**options))


def test_a_run_takes_its_options(tmp_path: Path) -> None:
    training = {"loss": "focal", "focal_gamma": 1.0, "label_smoothing": 0.1, "max_steps": 3}
    given = {f"training.{key}": value for key, value in training.items()}
    weighted = {**given, "training.class_weights": {"0": 2.0}, "training.microbatch_size": 5}
    one, two = (trainwright.train(SMALL, how, runs_dir=tmp_path) for how in (given, weighted))
    other = trainwright.train(SMALL, given | {"training.focal_gamma": 3.0}, runs_dir=tmp_path)
    assert len({one.digest, two.digest, other.digest}) == 3
