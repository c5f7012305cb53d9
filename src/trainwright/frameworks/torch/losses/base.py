"""Losses by name, as the mean over the samples of a batch, as a weighted sum, or as a sum over labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from trainwright.errors import ModelError
from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.losses import classes as class_losses
from trainwright.frameworks.torch.losses import pixels as pixel_losses
from trainwright.frameworks.torch.losses import tokens as token_losses
from trainwright.frameworks.torch.losses.custom import custom_loss
from trainwright.frameworks.torch.outputs import Outputs, class_logits, first_output, model_loss
from trainwright.frameworks.torch.state.custom import CustomLosses
from trainwright.tasks.base import Task
from trainwright.types import TARGET, DataInfo

Loss = Callable[[Outputs, Tensors], Tensor]  # gets float32 outputs and the batch; returns the mean, ()

# Gets also the weights of the samples, (rows,); returns the weighted sum of their losses, ().
WeightedLoss = Callable[[Outputs, Tensors, Tensor], Tensor]

_REGRESSION: dict[str, Callable[..., Tensor]] = {
    "mse": functional.mse_loss,
    "mae": functional.l1_loss,
    "huber": functional.huber_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
}
_SMOOTHED = ("cross_entropy", "binary_cross_entropy", "focal")  # losses that take label_smoothing
_FOCAL_GAMMA = 2.0


class LossOptions(NamedTuple):
    """The options of losses: a share of each class's probability for all, focal's exponent, a user's own."""

    label_smoothing: float = 0.0
    focal_gamma: float | None = None  # default: 2
    params: Mapping[str, Any] = MappingProxyType({})  # of the user's own loss
    own: CustomLosses | None = None  # where the user's own loss is kept, with its state
    name: str = "loss"  # under which it is kept there

    def built(self, path: str, task: Task, *, by_sample: bool = False) -> Loss:
        """Return the user's own loss that an import path names."""
        return custom_loss(
            path, task, first_output, self.params, by_sample=by_sample, own=self.own, name=self.name
        )


PLAIN = LossOptions()


def build_loss(name: str, task: Task, options: LossOptions = PLAIN) -> Loss:
    """Return the loss that `training.loss` names.

    Losses of regression are computed in units of the targets' standard deviation. `custom_losses` calls the
    user's own (package.module:function).

    Args:
        name: The loss.
        task: The task.
        options: The options of the loss.

    Raises:
        ModelError: The loss does not fit the task, or cannot be imported; or it has no such option.
    """
    name = _meant(name, task)
    _check_options(name, options)
    if ":" in name:
        return options.built(name, task)
    if name not in task.losses:
        allowed = ", ".join(task.losses)
        raise ModelError(
            f"training.loss: {name} is not a loss for {task.name}; allowed: auto, {allowed}, or "
            "package.module:function"
        )
    if name == "model":
        return lambda outputs, batch: model_loss(outputs)  # noqa: ARG005 - it has seen the batch
    return _built_in(name, task, options)


def _built_in(name: str, task: Task, options: LossOptions) -> Loss:
    """Return one of our losses as the mean over the samples."""
    if task.gives_masks:
        by_row = row_losses(name, task, options)
        return lambda outputs, batch: pixel_losses.mean(by_row(outputs, batch))
    if name == "cross_entropy":
        return partial(_cross_entropy, label_smoothing=options.label_smoothing)
    if name in _REGRESSION:
        return _regression(_REGRESSION[name], task.info)
    if name == "token_cross_entropy":
        return token_losses.token_cross_entropy
    if name == "binary_cross_entropy" and not options.label_smoothing:
        return _binary_cross_entropy
    by_sample = _by_sample(name, task, options)
    return lambda outputs, batch: by_sample(outputs, batch).mean()


def build_weighted_loss(name: str, task: Task, options: LossOptions = PLAIN) -> WeightedLoss:
    """Return the loss that `training.loss` names, as a sum over samples, each multiplied by its weight.

    The user's own loss must then return the loss of each sample, (rows,).

    Raises:
        ModelError: The loss does not fit the task, or cannot be imported.
    """
    build_loss(name, task, options)  # checks the name and the options
    name = _meant(name, task)
    if ":" in name:
        by_sample = options.built(name, task, by_sample=True)
    elif name in _REGRESSION:
        by_sample = _regression(_REGRESSION[name], task.info, reduction="none")
    else:
        by_sample = _by_sample(name, task, options)

    def loss(outputs: Outputs, batch: Tensors, weights: Tensor) -> Tensor:
        losses: Tensor = by_sample(outputs, batch)  # (rows,), or (rows, outputs)
        means = losses.reshape(len(weights), -1).mean(dim=1)  # (rows,)
        return (means * weights.to(means.dtype)).sum()

    return loss


def row_losses(name: str, task: Task, options: LossOptions = PLAIN) -> Loss:
    """Return the loss of masks as sums over each row, and how much the row counts in the mean: (rows, 2).

    Of the user's own, which is a mean over the samples, each row has that mean, and counts the same.
    """
    name = _meant(name, task)
    if ":" not in name:
        loss = pixel_losses.mask_loss(name, options.label_smoothing, _gamma(options))
        return lambda outputs, batch: loss(first_output(outputs), batch[TARGET])
    own = options.built(name, task)

    def repeated(outputs: Outputs, batch: Tensors) -> Tensor:
        value = own(outputs, batch).expand(len(batch[TARGET]))  # (rows,)
        return torch.stack([value, torch.ones_like(value)], dim=1)

    return repeated


def build_total_loss(name: str, task: Task, options: LossOptions = PLAIN) -> Loss:
    """Return the loss of tokens or pixels as the sum over those of a batch that count, ()."""
    if not task.gives_masks:
        return token_losses.total_of_tokens
    by_row = row_losses(name, task, options)
    return lambda outputs, batch: by_row(outputs, batch)[:, 0].sum()


def has_two_classes(task: Task) -> bool:
    """Return whether a sample is one of two classes, for which a model may give a single logit."""
    return task.losses[0] == "cross_entropy" and task.output_shape == (2,)


def _meant(name: str, task: Task) -> str:
    """Return the loss that a name means for a task: of two classes, both cross entropies are the same."""
    if name == "auto":
        return task.losses[0]
    return "cross_entropy" if name == "binary_cross_entropy" and has_two_classes(task) else name


def _check_options(name: str, options: LossOptions) -> None:
    if options.label_smoothing and name not in _SMOOTHED:
        raise ModelError(
            f"training.label_smoothing: {options.label_smoothing} given, but the loss is {name}; it is for "
            + ", ".join(_SMOOTHED)
        )
    if options.focal_gamma is not None and name != "focal":
        raise ModelError(
            f"training.focal_gamma: {options.focal_gamma} given, but the loss is {name}; set training.loss: "
            "focal"
        )


def _gamma(options: LossOptions) -> float:
    return _FOCAL_GAMMA if options.focal_gamma is None else options.focal_gamma


def _by_sample(name: str, task: Task, options: LossOptions) -> Loss:
    """Return a loss of classes or labels that gives a value for each sample, (rows,) or (rows, labels)."""
    smoothing = options.label_smoothing
    has_classes = task.losses[0] == "cross_entropy"
    losses: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
        "cross_entropy": partial(functional.cross_entropy, reduction="none", label_smoothing=smoothing),
        "binary_cross_entropy": lambda logits, targets: functional.binary_cross_entropy_with_logits(
            logits, class_losses.smoothed_labels(targets, smoothing), reduction="none"
        ),
        "focal": partial(
            class_losses.focal if has_classes else class_losses.binary_focal,
            gamma=_gamma(options),
            smoothing=smoothing,
        ),
        "dice": class_losses.label_dice,
    }
    if name not in losses:
        raise ModelError(
            f"training.loss: torch has no {name}, the loss of the task {task.name}; name one as "
            "package.module:function"
        )
    function = losses[name]
    if has_classes:
        return lambda outputs, batch: function(class_logits(first_output(outputs)), batch[TARGET])
    return lambda outputs, batch: function(first_output(outputs), batch[TARGET])


def _cross_entropy(outputs: Outputs, batch: Tensors, label_smoothing: float) -> Tensor:
    logits = class_logits(first_output(outputs))
    return functional.cross_entropy(logits, batch[TARGET], label_smoothing=label_smoothing)


def _binary_cross_entropy(outputs: Outputs, batch: Tensors) -> Tensor:
    return functional.binary_cross_entropy_with_logits(first_output(outputs), batch[TARGET])


def _regression(loss: Callable[..., Tensor], info: DataInfo, reduction: str = "mean") -> Loss:
    """Return a loss of (rows, outputs) or single values; the targets of single values are (rows,)."""
    mean, scale = info.target_mean, info.target_scale
    if (mean, scale) == (0.0, 1.0):
        return lambda outputs, batch: loss(
            first_output(outputs).reshape(batch[TARGET].shape), batch[TARGET], reduction=reduction
        )
    return lambda outputs, batch: loss(
        first_output(outputs).reshape(batch[TARGET].shape),
        (batch[TARGET] - mean) / scale,
        reduction=reduction,
    )
