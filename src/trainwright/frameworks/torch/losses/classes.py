"""Losses of classes and labels beyond the cross entropy, and the smoothing of targets.

Each is a function of logits and targets that returns the loss of each sample, so that the loss of a batch is
the mean of those of its parts, and samples can be weighted.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_SMOOTH = 1.0  # added above and below the line: without it, a sample without any label has no gradient


def smoothed_labels(targets: Tensor, smoothing: float) -> Tensor:
    """Return targets of 0 and 1 moved towards a half by a share, as Keras's binary cross entropy does."""
    return targets * (1 - smoothing) + smoothing / 2 if smoothing else targets


def focal(logits: Tensor, targets: Tensor, gamma: float, smoothing: float = 0.0) -> Tensor:
    """Return the focal loss of classes for each sample, (rows,).

    It is -(1 - p)^gamma log(p), where p is the probability of the true class (Lin et al., "Focal loss for
    dense object detection", ICCV 2017); their alpha is a weight of the classes. With gamma 0 it is the cross
    entropy.

    Args:
        logits: (rows, classes).
        targets: (rows,) int64 class indices, or (rows, classes) probabilities of the classes.
        gamma: How much less a sample counts that is predicted well.
        smoothing: The share of the probability that is spread over all classes.
    """
    shares = (
        targets if targets.is_floating_point() else functional.one_hot(targets, logits.shape[1]).to(logits)
    )
    if smoothing:
        shares = shares * (1 - smoothing) + smoothing / logits.shape[1]
    log_p = functional.log_softmax(logits, dim=1)  # (rows, classes)
    # 1 - p by expm1, which keeps its digits where p is near 1.
    return -(shares * _power(-torch.expm1(log_p), gamma) * log_p).sum(dim=1)


def binary_focal(logits: Tensor, targets: Tensor, gamma: float, smoothing: float = 0.0) -> Tensor:
    """Return the focal loss of each label, (rows, labels).

    Args:
        logits: (rows, labels).
        targets: (rows, labels) of 0 and 1.
        gamma: How much less a label counts that is predicted well.
        smoothing: How far targets move towards one half, as a share of the way.
    """
    targets = smoothed_labels(targets, smoothing)
    positive, negative = functional.logsigmoid(logits), functional.logsigmoid(-logits)
    return -(
        targets * _power(negative.exp(), gamma) * positive
        + (1 - targets) * _power(positive.exp(), gamma) * negative
    )


def dice(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return one minus the Dice coefficient of each set in a sample, (rows, sets).

    The coefficient is 2 sum(p t) / (sum(p^2) + sum(t^2)) (Milletari et al., "V-Net", 3DV 2016), with 1 added
    above and below the line.

    Args:
        probabilities: (rows, sets, members).
        targets: (rows, sets, members) of 0 and 1.
    """
    both = (probabilities * targets).sum(dim=-1)
    each = (probabilities * probabilities).sum(dim=-1) + (targets * targets).sum(dim=-1)
    return 1 - (2 * both + _SMOOTH) / (each + _SMOOTH)


def label_dice(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the Dice loss of the set of labels of each sample, (rows,).

    Args:
        logits: (rows, labels).
        targets: (rows, labels) of 0 and 1.
    """
    return dice(logits.sigmoid().unsqueeze(1), targets.unsqueeze(1))[:, 0]


def _power(base: Tensor, exponent: float) -> Tensor:
    """Return base ** exponent, for a base of at least 0; its gradient at 0 is finite from exponent 1 on."""
    if exponent in (0.0, 1.0):
        return torch.ones_like(base) if exponent == 0.0 else base
    return base.clamp(min=torch.finfo(base.dtype).tiny).pow(exponent)
