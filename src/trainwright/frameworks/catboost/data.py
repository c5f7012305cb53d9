"""The rows of a split in CatBoost's format."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.datasets.base import Split
from trainwright.frameworks.support.inputs import arrays_of
from trainwright.types import FEATURES, TARGET, WEIGHT, Array, Batch, DataInfo, Ids


def rows_of(split: Split, ids: Ids | None = None) -> Batch:
    """Return rows of a split, (rows, features) float32, with their targets; CatBoost needs them in memory.

    Args:
        split: The split.
        ids: (n,) positions of the rows to return; None for all.
    """
    batch = arrays_of(split, ids)
    features = batch[FEATURES].reshape(len(batch[FEATURES]), -1).astype(np.float32, copy=False)
    weights = {WEIGHT: batch[WEIGHT]} if WEIGHT in batch else {}
    return {FEATURES: features, TARGET: batch[TARGET], **weights}


def make_pool(
    library: Any,
    info: DataInfo,
    features: Array,
    targets: Array | None,
    threads: int,
    weights: Array | None = None,
) -> Any:
    """Return a `catboost.Pool`; a missing category becomes the category -1."""
    categorical = [i for i, count in enumerate(info.categories) if count]
    names = [str(name) for name in info.feature_names]
    columns = (
        names
        if len(set(names)) == len(names) == features.shape[1]
        else [str(i) for i in range(features.shape[1])]
    )
    if not categorical:
        return library.Pool(features, targets, feature_names=columns, weight=weights, thread_count=threads)
    import pandas as pd

    codes = {i: np.where(np.isnan(features[:, i]), -1, features[:, i]).astype(np.int64) for i in categorical}
    values = {name: codes.get(i, features[:, i]) for i, name in enumerate(columns)}
    return library.Pool(
        pd.DataFrame(values, copy=False),
        targets,
        cat_features=categorical,
        weight=weights,
        thread_count=threads,
    )
