"""Each cut of a batch gives its loss and its gradient, whatever the model: to rounding, which float64 shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from trainwright.config import load
from trainwright.frameworks.torch import outputs as torch_outputs
from trainwright.frameworks.torch.learner import TorchLearner
from trainwright.frameworks.torch.optim.update import Update
from trainwright.runs.catalog import Catalog
from trainwright.runs.objects import Objects
from trainwright.runs.wiring import build

BATCH = 12
CUTS = [(5, 1), (1, 1), (3, 4)]  # microbatch_size, virtual_ranks
UNET = {"type": "unet", "params": {"depth": 1, "base_width": 3, "normalization": "group"}}
SMALL_TEXT = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "dropout": 0.0}
# Each with the data that it reads; the names of losses after it.
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "mlp": ("digits", {"type": "mlp", "params": {"hidden": [8], "normalization": "layer"}}, "auto"),
    "mlp, focal": ("digits", {"type": "mlp", "params": {"hidden": [8]}}, "focal"),
    "mlp, values": ("diabetes", {"type": "mlp", "params": {"hidden": [8]}}, "mse"),
    "transformer": ("iris", {"type": "transformer", "params": SMALL_TEXT}, "auto"),
    "cnn": (
        "digits",
        {"type": "cnn", "params": {"filters": [3, 4], "hidden": [6], "normalization": "group"}},
        "auto",
    ),
    "unet": ("masks", UNET, "cross_entropy"),
    "unet, focal": ("masks", UNET, "focal"),
    "unet, dice": ("masks", UNET, "dice"),
    "gpt": ("text", {"type": "gpt", "params": SMALL_TEXT}, "auto"),
    "lstm": ("texts", {"type": "lstm", "params": {"hidden_size": 6, "embedding_dim": 5}}, "auto"),
    "text_transformer": ("texts", {"type": "text_transformer", "params": SMALL_TEXT}, "auto"),
}


def data(name: str, folder: Path) -> dict[str, Any]:
    """Return the section `data` of a small data set, after writing its file."""
    draw, path = np.random.default_rng(0), folder / name
    if name == "masks":
        masks = draw.integers(0, 3, (20, 16, 16))
        for row in range(20):
            masks[row, : row % 16] = -100  # so that images differ in how many pixels count
        images = draw.normal(size=(20, 16, 16, 3)).astype(np.float32)
        np.savez(path.with_suffix(".npz"), X=images, y=masks)
        return {"type": "npz", "path": f"{path}.npz"}
    if name == "text":
        path.write_text("the quick brown fox jumps over the lazy dog. " * 40)
        return {"type": "text", "path": str(path), "length": 11}
    if name == "texts":
        rows = [f"{'word ' * draw.integers(0, 5)}{'ab'[i % 2]},{i % 2}" for i in range(40)]
        path.with_suffix(".csv").write_text("\n".join(["text,target", *rows]))
        return {"type": "text_table", "path": f"{path}.csv", "text": "text", "max_length": 24}
    return {"type": name}


def loss_and_gradient(
    config: dict[str, Any], cut: tuple[int, int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, Tensor]:
    """Return the loss of the first step, and the gradient that its update gets, flat."""
    training = {**config["training"], "microbatch_size": cut[0]}
    whole = {**config, "training": training, "distributed": {"virtual": {"data": cut[1]}}}
    learner = build(load(whole, adapters=Catalog()).config, 1, Objects()).learner
    assert isinstance(learner, TorchLearner)
    gradients: list[Tensor] = []

    def keep(update: Update, step: int, lr: float) -> None:
        gradients.extend(one.grad.flatten() for one in update.parameters if one.grad is not None)

    monkeypatch.setattr(Update, "__call__", keep)
    module = learner.model().native.to(dtype)
    if dtype == torch.float64:
        monkeypatch.setattr(torch_outputs, "as_float", lambda outputs: outputs)
        module.register_forward_pre_hook(_as_double, with_kwargs=True)
    loss = float(learner.step(0, 1.0).loss.sum())
    return loss, torch.cat(gradients)


def _as_double(module: nn.Module, args: Any, kwargs: Any) -> Any:
    return tuple(one.double() if one.is_floating_point() else one for one in args), kwargs


@pytest.mark.parametrize("name", CASES)
def test_each_cut_gives_the_loss_and_the_gradient_of_the_whole_batch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, model, loss = CASES[name]
    training = {"batch_size": BATCH, "max_steps": 1, "optimizer": "sgd", "loss": loss, "threads": 1}
    config = {"data": data(source, tmp_path), "model": model, "training": {**training, "device": "cpu"}}
    for dtype, limit in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        whole, gradient = loss_and_gradient(config, (BATCH, 1), dtype, monkeypatch)
        for cut in CUTS:
            value, cut_gradient = loss_and_gradient(config, cut, dtype, monkeypatch)
            assert value == pytest.approx(whole, rel=limit), cut
            difference = (cut_gradient - gradient).norm() / gradient.norm()
            assert difference < limit, (cut, dtype, float(difference))
