"""Losses of masks: each cut of a batch gives the step of a loop by hand over the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from test_torch_reference import draw_weights, epoch_order
from torch import Tensor
from torch.nn import functional

from trainwright.config import load
from trainwright.datasets.samples.arrays import Arrays
from trainwright.errors import ModelError
from trainwright.frameworks.base import LearnerInputs
from trainwright.frameworks.torch.learner import TorchLearner
from trainwright.frameworks.torch.models.unet import Unet
from trainwright.order import SampleOrder
from trainwright.runs.catalog import Catalog
from trainwright.types import NO_LABEL, DataInfo, features_spec

ROWS, SHAPE, CLASSES, SEED = 8, (6, 5), 3, 3
INFO = DataInfo("segmentation", features_spec((1, *SHAPE)), CLASSES, target_shape=SHAPE)
MODEL = {"depth": 1, "base_width": 2, "normalization": "group"}


def rows() -> dict[str, np.ndarray]:
    """Return images and masks, of which more and more pixels do not count."""
    drawn = np.random.default_rng(0)
    images = drawn.normal(size=(ROWS, 1, *SHAPE)).astype(np.float32)
    masks = drawn.integers(0, CLASSES, (ROWS, *SHAPE))
    for row in range(ROWS):
        masks[row, : row % 6 + (row == 7) * 6] = NO_LABEL  # the last one has none left
    return {"features": images, "target": masks}


def learner(training: dict[str, Any], ranks: int = 1) -> TorchLearner:
    whole = {
        "experiment": {"seed": SEED},
        "data": {"type": "npz", "path": "x.npz"},
        "model": {"type": "unet", "params": MODEL},
        "training": {"device": "cpu", "optimizer": {"type": "sgd"}, "max_steps": 1, "batch_size": 8}
        | training,
        "distributed": {"virtual": {"data": ranks}},
    }
    config = load(whole, adapters=Catalog()).config
    order = SampleOrder(ROWS, 8, SEED)
    return TorchLearner(LearnerInputs(config, INFO, config.model.params, 1, {"train": Arrays(rows())}, order))


def cross_entropy(logits: Tensor, masks: Tensor) -> Tensor:
    return functional.cross_entropy(logits, masks, ignore_index=NO_LABEL)


def smoothed(logits: Tensor, masks: Tensor) -> Tensor:
    return functional.cross_entropy(logits, masks, ignore_index=NO_LABEL, label_smoothing=0.1)


def focal(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the mean of -(1 - p)^3 log(p) over the pixels that count."""
    p = logits.softmax(1).gather(1, masks.clamp(min=0)[:, None])[:, 0]
    return (-((1 - p) ** 3) * p.log())[masks != NO_LABEL].mean()


def dice(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the mean over images and classes of 1 - (2 sum(p t) + 1) / (sum(p^2) + sum(t^2) + 1)."""
    losses = []
    for scores, mask in zip(logits, masks, strict=True):
        counts = mask != NO_LABEL
        for i in range(CLASSES):
            p, t = scores.softmax(0)[i][counts], (mask[counts] == i).float()
            losses.append(1 - (2 * (p * t).sum() + 1) / ((p * p).sum() + (t * t).sum() + 1))
    return torch.stack(losses).mean()


LOSSES: dict[str, tuple[dict[str, Any], Callable[[Tensor, Tensor], Tensor]]] = {
    "cross_entropy": ({}, cross_entropy),
    "smoothed": ({"label_smoothing": 0.1}, smoothed),
    "focal": ({"loss": "focal", "focal_gamma": 3.0}, focal),
    "dice": ({"loss": "dice"}, dice),
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("microbatch", "ranks"), [(8, 1), (3, 1), (1, 2)])
def test_each_cut_of_a_batch_gives_the_step_by_hand(name: str, microbatch: int, ranks: int) -> None:
    options, function = LOSSES[name]
    ours = learner({**options, "microbatch_size": microbatch}, ranks)
    (loss,) = ours.read([ours.step(0, 1.0).loss])
    model = draw_weights(Unet((1, *SHAPE), CLASSES, 1, 2, normalization="group"), SEED)
    ids = epoch_order(SEED, 0, ROWS)[:8]
    images, masks = (torch.from_numpy(array[ids]) for array in rows().values())
    expected = function(model(images), masks)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    for own, other in zip(ours.model().native.parameters(), model.parameters(), strict=True):
        assert other.grad is not None
        torch.testing.assert_close(own.detach(), (other - other.grad).detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", LOSSES)
def test_an_evaluation_has_the_loss_of_all_its_pixels(name: str) -> None:
    options, function = LOSSES[name]
    ours = learner({**options, "microbatch_size": 1})  # so that 4 rows are predicted at once
    parts = list(ours.model().predict(Arrays(rows())))
    assert [len(part.ids) for part in parts] == [4, 4]
    outputs = np.concatenate([part.outputs for part in parts])  # (rows, 2 + 3 classes)
    images, masks = (torch.from_numpy(array) for array in rows().values())
    with torch.no_grad():
        expected = function(ours.model().native.eval()(images), masks)
    assert outputs[:, 0].sum() / outputs[:, 1].sum() == pytest.approx(expected.item(), rel=1e-5)


def test_a_loss_of_the_users_gets_outputs_and_batch() -> None:
    ours = learner({"loss": "test_pixel_losses:mine", "microbatch_size": 1})
    (loss,) = ours.read([ours.step(0, 0.0).loss])
    outputs = np.concatenate([part.outputs for part in ours.model().predict(Arrays(rows()))])
    assert outputs[:, 0].mean() == pytest.approx(loss, rel=1e-6)
    assert (outputs[:, 1] == 1).all()


def mine(outputs: Tensor, batch: Any) -> Tensor:
    """Return the mean square of the logits of each row, (rows,)."""
    assert batch["target"].shape[1:] == SHAPE
    return (outputs**2).mean(dim=(1, 2, 3))


def test_losses_of_other_tasks_are_refused() -> None:
    with pytest.raises(ModelError, match="mse is not a loss for segmentation; allowed: auto, cross_entropy"):
        learner({"loss": "mse"})


@pytest.mark.parametrize("shape", [(3, 16, 16), (3, 13, 21), (9, 7), (1, 5, 9)])
@pytest.mark.parametrize("normalization", ["batch", "group", "none"])
def test_a_unet_gives_a_logit_for_each_pixel_of_images_of_any_size(
    shape: tuple[int, ...], normalization: str
) -> None:
    torch.manual_seed(0)
    model = Unet(shape, 4, depth=2, base_width=3, normalization=normalization)
    images = torch.rand(2, *shape)
    outputs = model(images)
    assert outputs.shape == (2, 4, *shape[-2:])
    outputs.sum().backward()
    assert all(one.grad is not None for one in model.parameters())
    model.eval()
    # Zeros below and on the right are what the padding is.
    padded = functional.pad(images, (0, -shape[-1] % 4, 0, -shape[-2] % 4))
    larger = Unet(padded.shape[1:], 4, depth=2, base_width=3, normalization=normalization).eval()
    larger.load_state_dict(model.state_dict())
    torch.testing.assert_close(larger(padded)[:, :, : shape[-2], : shape[-1]], model(images))
