"""The number of labels in rows of tokens or pixels, which normalizes the loss of a batch.

A label counts the same in whatever row it is: the loss of a batch is the sum over its labels, divided by
their number in the whole batch. So microbatches and virtual ranks change nothing but rounding, however many
labels each row has.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainwright.datasets.base import ArraySplit, Draw, EvenLabels, LabelSplit, SampleSplit, Split
from trainwright.frameworks.support.prefetcher import Samples
from trainwright.frameworks.torch.losses.pixels import BY_PIXEL
from trainwright.tasks.base import Task
from trainwright.types import NO_LABEL, Array, Ids

TOKEN_LOSS = "token_cross_entropy"
Counts = Callable[[Samples], Array]  # (n,) training samples -> their weights in the loss, (n,)


def label_counts(split: Split, task: Task, loss: str, seed: int = 0) -> Counts | None:
    """Return what counts the labels of training samples; None if the mean over the rows is the same.

    Args:
        split: The training samples.
        task: The task.
        loss: `training.loss`.
        seed: The seed of the run, on which depends what augmentation leaves of a mask.
    """
    name, target = named_loss(loss, task), task.target
    if name != TOKEN_LOSS and not (task.gives_masks and name in BY_PIXEL):
        return None
    if isinstance(split, ArraySplit):
        counts = _counted(split.arrays[target])  # (rows,)
        return None if len(np.unique(counts)) == 1 else lambda samples: counts[samples.ids]
    if isinstance(split, EvenLabels) and split.labels_per_row is not None:
        return None
    return lambda samples: _counted(_labels(split, samples.ids, samples.draw(seed), target))


def named_loss(loss: str, task: Task) -> str:
    """Return the name of the loss that `training.loss` means."""
    return task.losses[0] if loss == "auto" else loss


def _labels(split: Split, ids: Ids, draw: Draw, target: str) -> Array:
    """Return the labels of training samples, (n, ...)."""
    if isinstance(split, LabelSplit):
        return split.labels(ids, draw)
    return (split.read(ids, draw) if isinstance(split, SampleSplit) else split.take(ids))[target]


def _counted(labels: Array) -> Array:
    """Return the number of labels of each row, (rows,), of (rows, ...)."""
    counts: Array = (labels != NO_LABEL).reshape(len(labels), -1).sum(axis=1)
    return counts
