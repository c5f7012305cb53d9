"""The number of labels of rows of tokens, by which the loss of a batch is normalized.

A label counts the same in whatever row it is: the loss of a batch is the sum over its labels, divided by
their number in the whole batch. So microbatches and virtual ranks change nothing but rounding, however many
labels each row has.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainyard import semantics
from trainyard.datasets.base import ArraySplit, EvenLabels, Split
from trainyard.tasks.base import Task
from trainyard.types import LABELS, NO_LABEL, Array, Ids

TOKEN_LOSS = "token_cross_entropy"
Counts = Callable[[Ids], Array]  # the samples (n,) -> their weights in the loss, (n,)


def label_counts(split: Split, task: Task, loss: str) -> Counts | None:
    """Return what counts the labels of training samples; None if the mean over the rows is the same.

    Args:
        split: The training samples.
        task: The task.
        loss: `training.loss`.
    """
    name = task.losses[0] if loss == "auto" else loss
    if name != TOKEN_LOSS or semantics.version("torch", task.info.semantics) < _SINCE:
        return None
    if isinstance(split, ArraySplit):
        counts = _counted(split.arrays[LABELS])  # (rows,)
        return None if len(np.unique(counts)) == 1 else lambda ids: counts[ids]
    if isinstance(split, EvenLabels) and split.labels_per_row is not None:
        return None
    return lambda ids: _counted(split.take(ids)[LABELS])


_SINCE = 3  # the version of `torch` that counts labels; before, each row counted the same


def _counted(labels: Array) -> Array:
    """Return the number of labels of each row, (rows,), of (rows, length)."""
    return (labels != NO_LABEL).sum(axis=1)
