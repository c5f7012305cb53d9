"""Losses, each the mean over the samples, and the conversion of raw outputs to predictions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from trainyard import semantics
from trainyard.errors import ModelError
from trainyard.frameworks.torch import class_losses, pixel_losses
from trainyard.frameworks.torch.data import Tensors
from trainyard.frameworks.torch.huggingface.module import base_of
from trainyard.frameworks.torch.own_losses import own_loss
from trainyard.tasks.base import Task
from trainyard.types import LABELS, NO_LABEL, TARGET, TEXT_BYTES, DataInfo

# What a model returns: a tensor, or several in a tuple or mapping, of which the first is the task's output.
Outputs: TypeAlias = Any
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


def first_output(outputs: Outputs) -> Tensor:
    """Return the output that is the task's own, (rows, ...).

    Raises:
        ModelError: There is no tensor.
    """
    first: Any = outputs
    if isinstance(outputs, Mapping | tuple | list):
        values = outputs.values() if isinstance(outputs, Mapping) else outputs
        # Models of transformers give a loss first, or None in its place.
        first = next((one for one in values if one is not None and np.ndim(one)), None)
    if not isinstance(first, Tensor):
        raise ModelError(
            f"the model returned {type(outputs).__name__}; it must return a tensor, or a tuple or mapping "
            "whose first value is one"
        )
    return first


def as_float(outputs: Outputs) -> Outputs:
    """Convert floating-point outputs to float32: autocast may have lowered their precision."""
    if isinstance(outputs, Tensor):
        return outputs.float() if outputs.is_floating_point() else outputs
    if isinstance(outputs, Mapping):
        return {name: as_float(value) for name, value in outputs.items()}
    return tuple(map(as_float, outputs)) if isinstance(outputs, tuple | list) else outputs


def build_loss(name: str, task: Task, label_smoothing: float = 0.0, focal_gamma: float | None = None) -> Loss:
    """Return the loss that `training.loss` names.

    Losses of regression are computed in units of the targets' standard deviation. `own_losses` calls the
    user's own (package.module:function).

    Args:
        name: The loss.
        task: The task.
        label_smoothing: The share of a class's probability that is spread over all classes.
        focal_gamma: The exponent of the focal loss; default: 2.

    Raises:
        ModelError: The loss does not fit the task, or cannot be imported; or it has no such option.
    """
    name = _meant(name, task)
    _check_options(name, label_smoothing, focal_gamma)
    if ":" in name:
        return own_loss(name, task, first_output)
    if name not in task.losses:
        allowed = ", ".join(task.losses)
        raise ModelError(
            f"training.loss: {name} is not a loss for {task.name}; allowed: auto, {allowed}, or "
            "package.module:function"
        )
    return _built_in(name, task, label_smoothing, focal_gamma)


def _built_in(name: str, task: Task, label_smoothing: float, focal_gamma: float | None) -> Loss:
    """Return one of our losses as the mean over the samples."""
    if task.gives_masks:
        by_row = row_losses(name, task, label_smoothing, focal_gamma)
        return lambda outputs, batch: pixel_losses.mean(by_row(outputs, batch))
    if name == "cross_entropy":
        return partial(_cross_entropy, label_smoothing=label_smoothing)
    if name in _REGRESSION:
        return _regression(_REGRESSION[name], task.info)
    if name == "token_cross_entropy":
        return partial(_token_cross_entropy, info=task.info)
    if name == "binary_cross_entropy" and not label_smoothing:
        return _binary_cross_entropy
    by_sample = _by_sample(name, task, label_smoothing, focal_gamma)
    return lambda outputs, batch: by_sample(outputs, batch).mean()


def build_weighted_loss(
    name: str, task: Task, label_smoothing: float = 0.0, focal_gamma: float | None = None
) -> WeightedLoss:
    """Return the loss that `training.loss` names, as a sum over samples, each multiplied by its weight.

    The user's own loss must then return the loss of each sample, (rows,).

    Raises:
        ModelError: The loss does not fit the task, or cannot be imported.
    """
    build_loss(name, task, label_smoothing, focal_gamma)  # checks the name and the options
    if semantics.version("torch", task.info.semantics) < 3:
        label_smoothing = 0.0
    name = _meant(name, task)
    if ":" in name:
        by_sample = own_loss(name, task, first_output, by_sample=True)
    elif name in _REGRESSION:
        by_sample = _regression(_REGRESSION[name], task.info, reduction="none")
    else:
        by_sample = _by_sample(name, task, label_smoothing, focal_gamma)

    def loss(outputs: Outputs, batch: Tensors, weights: Tensor) -> Tensor:
        losses: Tensor = by_sample(outputs, batch)  # (rows,), or (rows, outputs)
        means = losses.reshape(len(weights), -1).mean(dim=1)  # (rows,)
        return (means * weights.to(means.dtype)).sum()

    return loss


def row_losses(name: str, task: Task, label_smoothing: float = 0.0, focal_gamma: float | None = None) -> Loss:
    """Return the loss of masks as sums over each row, and how much the row counts in the mean: (rows, 2).

    Of the user's own, which is a mean over the samples, each row has that mean, and counts the same.
    """
    name = _meant(name, task)
    if ":" not in name:
        gamma = _FOCAL_GAMMA if focal_gamma is None else focal_gamma
        loss = pixel_losses.mask_loss(name, label_smoothing, gamma)
        return lambda outputs, batch: loss(first_output(outputs), batch[TARGET])
    own = own_loss(name, task, first_output)

    def repeated(outputs: Outputs, batch: Tensors) -> Tensor:
        value = own(outputs, batch).expand(len(batch[TARGET]))  # (rows,)
        return torch.stack([value, torch.ones_like(value)], dim=1)

    return repeated


def build_total_loss(
    name: str, task: Task, label_smoothing: float = 0.0, focal_gamma: float | None = None
) -> Loss:
    """Return the loss of tokens or pixels as the sum over those of a batch that count, ()."""
    if not task.gives_masks:
        return partial(total_of_tokens, info=task.info)
    by_row = row_losses(name, task, label_smoothing, focal_gamma)
    return lambda outputs, batch: by_row(outputs, batch)[:, 0].sum()


def class_logits(logits: Tensor) -> Tensor:
    """Return a logit for each class, (rows, classes); a single one, (rows, 1), is that of the second.

    The softmax of (0, z) is the logistic function of z, and the cross entropy is the binary one.
    """
    if logits.dim() > 1 and logits.shape[1] > 1:
        return logits
    return torch.stack([torch.zeros_like(single := logits.reshape(-1)), single], dim=1)


def has_two_classes(task: Task) -> bool:
    """Return whether a sample is one of two classes, for which a model may give a single logit."""
    return task.losses[0] == "cross_entropy" and task.output_shape == (2,)


def _meant(name: str, task: Task) -> str:
    """Return the loss that a name means for a task: of two classes, both cross entropies are the same."""
    if name == "auto":
        return task.losses[0]
    return "cross_entropy" if name == "binary_cross_entropy" and has_two_classes(task) else name


def _check_options(name: str, label_smoothing: float, focal_gamma: float | None) -> None:
    if label_smoothing and name not in _SMOOTHED:
        raise ModelError(
            f"training.label_smoothing: {label_smoothing} given, but the loss is {name}; it is for "
            + ", ".join(_SMOOTHED)
        )
    if focal_gamma is not None and name != "focal":
        raise ModelError(
            f"training.focal_gamma: {focal_gamma} given, but the loss is {name}; set training.loss: focal"
        )


def _by_sample(name: str, task: Task, label_smoothing: float, focal_gamma: float | None) -> Loss:
    """Return a loss of classes or labels that gives a value for each sample, (rows,) or (rows, labels)."""
    gamma = _FOCAL_GAMMA if focal_gamma is None else focal_gamma
    has_classes = task.losses[0] == "cross_entropy"
    losses: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
        "cross_entropy": partial(functional.cross_entropy, reduction="none", label_smoothing=label_smoothing),
        "binary_cross_entropy": lambda logits, targets: functional.binary_cross_entropy_with_logits(
            logits, class_losses.smoothed_labels(targets, label_smoothing), reduction="none"
        ),
        "focal": partial(
            class_losses.focal if has_classes else class_losses.binary_focal,
            gamma=gamma,
            smoothing=label_smoothing,
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


def _token_cross_entropy(outputs: Outputs, batch: Tensors, info: DataInfo) -> Tensor:
    """Return the mean over the rows of the mean over a row's labels, ().

    Where all rows have as many labels, this is the mean over the labels; for others see `labels.LabelCounts`.
    """
    labels = batch[LABELS]  # (rows, length)
    nats = _nats(first_output(outputs), labels, info)  # (rows, length)
    return (nats.sum(dim=1) / (labels != NO_LABEL).sum(dim=1).clamp(min=1)).mean()


def total_of_tokens(outputs: Outputs, batch: Tensors, info: DataInfo) -> Tensor:
    """Return the sum of the surprise of all labels of a batch in nats, ()."""
    return _nats(first_output(outputs), batch[LABELS], info).sum()


def _nats(logits: Tensor, labels: Tensor, info: DataInfo) -> Tensor:
    """Return the surprise of each label in nats, (rows, length); 0 where there is no label.

    Args:
        logits: (rows, length, tokens).
        labels: (rows, length) int64.
        info: The description of the data.
    """
    if semantics.version("torch", info.semantics) == 1:
        return functional.cross_entropy(
            logits.transpose(1, 2), labels, ignore_index=NO_LABEL, reduction="none"
        )
    # Forward and backward, this takes half the time: the logits of a token lie together.
    flat = functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=NO_LABEL, reduction="none"
    )  # (rows * length,)
    return flat.reshape(labels.shape)


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


def to_predictions(outputs: Tensor, batch: Tensors, task: Task) -> Tensor:
    """Convert raw outputs to the predictions of a task, as its own file states them.

    Args:
        outputs: The raw float32 outputs of the model: (rows, outputs), or (rows,) if there is one.
        batch: The batch, with its targets.
        task: The task.
    """
    if (known := _PREDICTIONS.get(task.name)) is not None:
        return known(outputs, batch, task.info)
    return torch.from_numpy(task.predictions(outputs.cpu().numpy()))


def _values(outputs: Tensor, batch: Tensors, info: DataInfo) -> Tensor:  # noqa: ARG001 - one table
    """Return values (rows,) or (rows, outputs) in the data's unit."""
    values = outputs.reshape(len(outputs)) if info.outputs == 1 else outputs  # (rows,) or (rows, outputs)
    return values * info.target_scale + info.target_mean


def _token_sums(outputs: Tensor, batch: Tensors, info: DataInfo) -> Tensor:
    """Return sums over each row: surprise in nats, number of tokens and of hits, and of bytes if known.

    They are (rows, 3) float64, or (rows, 4) where the batch counts the bytes of the text.
    """
    labels = batch[LABELS]  # (rows, length)
    nats = _nats(outputs, labels, info)  # (rows, length)
    counted = labels != NO_LABEL
    hits = (outputs.argmax(dim=-1) == labels) & counted
    sums = [part.sum(dim=1, dtype=torch.float64) for part in (nats, counted, hits)]
    sums += [batch[TEXT_BYTES].double()] if TEXT_BYTES in batch else []
    return torch.stack(sums, dim=1)


def _mask_counts(outputs: Tensor, batch: Tensors, info: DataInfo) -> Tensor:  # noqa: ARG001 - one table
    """Return the counts of each row's pixels; without targets the probabilities of its classes.

    They are (rows, 3 classes) float64, or (rows, classes, height, width) float32.
    """
    if TARGET not in batch:
        return outputs.softmax(dim=1)
    return pixel_losses.pixel_counts(outputs, batch[TARGET])


_PREDICTIONS: Mapping[str, Callable[[Tensor, Tensors, DataInfo], Tensor]] = {
    "classification": lambda outputs, batch, info: torch.softmax(class_logits(outputs), dim=1),  # noqa: ARG005
    "regression": _values,
    "multilabel": lambda outputs, batch, info: torch.sigmoid(outputs),  # noqa: ARG005
    "language_modeling": _token_sums,
    "segmentation": _mask_counts,
}


def input_names(model: torch.nn.Module, info: DataInfo) -> list[str]:
    """Return the arrays of a batch that the model is called with: those that `forward` names.

    The others are for the loss. A single array is passed whatever its parameter is called.

    Raises:
        ModelError: `forward` names none of several arrays, or one that the data do not have.
    """
    if len(info.inputs) == 1:
        return list(info.inputs)
    # Models of transformers hand other arrays on to functions of theirs, and peft hides what they name.
    known = base_of(model)
    params = inspect.signature((model if known is None else known).forward).parameters
    takes_all = known is None and any(one.kind is one.VAR_KEYWORD for one in params.values())
    names = [name for name in info.inputs if takes_all or name in params]
    needed = [
        name
        for name, one in params.items()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    ]
    if not names or set(needed) - set(names):
        raise ModelError(
            f"the data have the arrays {', '.join(info.inputs)}, but {type(model).__name__}.forward takes "
            f"{', '.join(params)}: name its parameters like the arrays that it needs"
        )
    return names


def call_of(model: torch.nn.Module, names: Sequence[str]) -> Callable[[Tensors], Outputs]:
    """Return a function that calls the model with arrays of a batch: one by position, several by name."""
    if len(names) == 1:
        (name,) = names
        return lambda batch: model(batch[name])
    return lambda batch: model(**{name: batch[name] for name in names})
