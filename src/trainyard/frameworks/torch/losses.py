"""Losses by name, each the mean over the samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from trainyard.errors import ModelError
from trainyard.types import DataInfo

Loss = Callable[[Tensor, Tensor], Tensor]

_REGRESSION: dict[str, Loss] = {
    "mse": functional.mse_loss,
    "mae": functional.l1_loss,
    "huber": functional.huber_loss,
}


def build_loss(name: str, info: DataInfo) -> Loss:
    """Return a function of float32 outputs (rows, outputs) and targets that gives the mean loss, ().

    Targets are (rows,), or (rows, outputs) for several values. Losses of regression are computed in units of
    the targets' standard deviation.

    Raises:
        ModelError: The loss does not fit the task.
    """
    if name == "auto":
        name = "cross_entropy" if info.task == "classification" else "mse"
    if (name == "cross_entropy") != (info.task == "classification"):
        allowed = "cross_entropy" if info.task == "classification" else ", ".join(_REGRESSION)
        raise ModelError(f"training.loss: {name} is not a loss for {info.task}; allowed: auto, {allowed}")
    if name == "cross_entropy":
        return functional.cross_entropy
    # The outputs of a single value are (rows, 1) or (rows,), its targets (rows,).
    regression, mean, scale = _REGRESSION[name], info.target_mean, info.target_scale
    if (mean, scale) == (0.0, 1.0):
        return lambda outputs, targets: regression(outputs.reshape(targets.shape), targets)
    return lambda outputs, targets: regression(outputs.reshape(targets.shape), (targets - mean) / scale)


def to_predictions(outputs: Tensor, info: DataInfo) -> Tensor:
    """Return class probabilities (rows, classes), or values (rows,) / (rows, outputs) in the data's unit."""
    if info.task == "classification":
        return torch.softmax(outputs, dim=1)
    values = outputs.reshape(len(outputs)) if info.outputs == 1 else outputs  # (rows,) or (rows, outputs)
    return values * info.target_scale + info.target_mean
