"""The positive class of a run's data, which its metrics, tables and thresholds are of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from trainwright.config.schema import RunConfig
from trainwright.datasets.base import DataBundle, known_arrays
from trainwright.plugins import task_for
from trainwright.tasks.support.positive import in_words
from trainwright.types import Array


def with_positive_class(bundle: DataBundle, config: RunConfig) -> DataBundle:
    """Return the data with their positive class: that of the config, or what labels and training rows say.

    Raises:
        InputError: The config names one, but it is no class of the target, or there are no two classes.
    """
    task = task_for(bundle.info)
    found = task.positive_class(config.evaluation.positive, lambda: _rows_of_classes(bundle, config))
    if found is None:
        return bundle
    return bundle.described_as(replace(bundle.info, positive=found.code, positive_reason=found.reason))


def _rows_of_classes(bundle: DataBundle, config: RunConfig) -> Array | None:
    """Return the number of training rows of each class, (classes,); None where targets are not in memory.

    Of folds, the rows of all splits count: all folds of a study have the same positive class.
    """
    split = None if config.data is None else config.data.split
    in_folds = split is not None and (split.folds is not None or split.val_folds is not None)
    counts = np.zeros(bundle.info.outputs, np.int64)
    for rows in bundle.splits.values() if in_folds else [bundle.splits["train"]]:
        targets = (known_arrays(rows) or {}).get(task_for(bundle.info).target)
        if targets is None or targets.ndim != 1:
            return None
        counts += np.bincount(targets.astype(np.int64), minlength=len(counts))
    return counts


def positive_in_words(bundle: DataBundle) -> str | None:
    """Return the positive class, and why it is that one; None where there is none."""
    info = bundle.info
    if info.positive is None:
        return None
    label = info.positive if info.classes is None else info.classes[info.positive]
    return in_words(label, info.positive_reason)
