"""Losses of masks. Each pixel that counts weighs the same in a batch; of the Dice loss, each image does.

A loss gives two values for each row: a sum, and how much the row counts in the mean. So the loss of a batch
is the quotient of two sums, however the batch is cut into microbatches and virtual ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from trainwright.frameworks.torch.losses import classes as class_losses
from trainwright.types import NO_LABEL

# Gets logits (rows, classes, height, width) and masks (rows, height, width) int64; returns (rows, 2).
MaskLoss = Callable[[Tensor, Tensor], Tensor]
BY_PIXEL = ("cross_entropy", "focal")  # the losses that are means over pixels


def mask_loss(name: str, label_smoothing: float, focal_gamma: float) -> MaskLoss:
    """Return a loss by its name: `cross_entropy`, `focal` or `dice`."""
    if name == "dice":
        return _dice
    if name == "focal":
        pixel = partial(class_losses.focal, gamma=focal_gamma, smoothing=label_smoothing)
    else:
        pixel = partial(functional.cross_entropy, reduction="none", label_smoothing=label_smoothing)
    return partial(_over_pixels, pixel=pixel)


def mean(sums: Tensor) -> Tensor:
    """Return the mean of (rows, 2) sums and counts, (); 0 where nothing counts."""
    total, count = sums.sum(dim=0)
    quotient: Tensor = total / count.clamp(min=1)
    return quotient


def _over_pixels(logits: Tensor, masks: Tensor, pixel: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Return the sum over the pixels of each row that count, and their number, (rows, 2)."""
    counted = masks != NO_LABEL  # (rows, height, width)
    # With a row for each pixel, CUDA has deterministic kernels.
    flat = logits.movedim(1, -1).reshape(-1, logits.shape[1])  # (pixels, classes)
    losses = pixel(flat, masks.clamp(min=0).flatten()).reshape(masks.shape)  # (rows, height, width)
    sums = torch.where(counted, losses, 0.0).sum(dim=(1, 2))  # (rows,)
    return torch.stack([sums, counted.sum(dim=(1, 2)).to(sums)], dim=1)


def _dice(logits: Tensor, masks: Tensor) -> Tensor:
    """Return the Dice loss of each row, the mean over the classes, and 1, (rows, 2)."""
    counted = (masks != NO_LABEL).flatten(1)[:, None].to(logits)  # (rows, 1, pixels)
    probabilities = logits.softmax(dim=1).flatten(2) * counted  # (rows, classes, pixels)
    classes = functional.one_hot(masks.clamp(min=0).flatten(1), logits.shape[1]).transpose(1, 2)
    losses = class_losses.dice(probabilities, classes * counted).mean(dim=1)  # (rows,)
    return torch.stack([losses, torch.ones_like(losses)], dim=1)


def pixel_counts(logits: Tensor, masks: Tensor) -> Tensor:
    """Return for each row the pixels of each class that are hits, are predicted and are true.

    Args:
        logits: (rows, classes, height, width).
        masks: (rows, height, width) int64.

    Returns:
        (rows, 3 classes) float64.
    """
    rows, classes = logits.shape[:2]
    predicted, counted = logits.argmax(dim=1), masks != NO_LABEL  # (rows, height, width)
    first = torch.arange(rows, device=masks.device)[:, None, None] * classes  # the row's first counter

    def counts(numbers: Tensor, where: Tensor) -> Tensor:
        return torch.bincount((first + numbers)[where], minlength=rows * classes).reshape(rows, classes)

    hits = counts(predicted, counted & (predicted == masks))
    return torch.cat([hits, counts(predicted, counted), counts(masks, counted)], dim=1).double()
