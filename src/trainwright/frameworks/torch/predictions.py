"""The conversion of a model's raw outputs to the predictions of its task."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from trainwright.frameworks.torch.data import Tensors
from trainwright.frameworks.torch.losses import pixels as pixel_losses
from trainwright.frameworks.torch.losses.tokens import token_nll
from trainwright.frameworks.torch.outputs import class_logits
from trainwright.tasks.base import Task
from trainwright.types import LABELS, NO_LABEL, TARGET, TEXT_BYTES, DataInfo


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
    """Return values (rows,) or (rows, outputs) in the data's unit, before `precision.restored`."""
    values = outputs.reshape(-1) if info.outputs == 1 else outputs  # (rows,) or (rows, outputs)
    return values * info.target_scale + info.target_mean


def _token_sums(outputs: Tensor, batch: Tensors, info: DataInfo) -> Tensor:  # noqa: ARG001 - one table
    """Return sums over each row: nats of the loss, number of tokens and of hits, and of bytes if known.

    They are (rows, 3) float64, or (rows, 4) where the batch counts the bytes of the text.
    """
    labels = batch[LABELS]  # (rows, length)
    nats = token_nll(outputs, labels)  # (rows, length)
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
