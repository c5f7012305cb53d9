"""Class probabilities or values from an estimator, and their loss."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from trainwright.datasets.base import Split
from trainwright.frameworks.sklearn.steps import FAMILIES, ensemble_family, temporary_parameters
from trainwright.frameworks.sklearn.targets import targets_of
from trainwright.frameworks.support.inputs import arrays_of
from trainwright.types import FEATURES, TARGET, WEIGHT, Array, Batch, DataInfo, Ids

ROWS = 4096  # rows predicted together


def flatten_features(batch: Batch, info: DataInfo) -> Batch:
    """Reshape features (rows, ...) to C-contiguous (rows, features); a data frame stays as it is.

    Floating-point ones get the dtype of the data.
    """
    weights = {WEIGHT: batch[WEIGHT]} if WEIGHT in batch else {}
    features = batch[FEATURES]
    if not is_frame(features):
        features = features.reshape(len(features), -1)
        own = np.dtype(info.inputs[FEATURES].dtype)
        dtype = None if features.dtype.kind != "f" else own if own.kind == "f" else np.dtype(np.float32)
        features = np.ascontiguousarray(features, dtype=dtype)
    return {FEATURES: features, TARGET: batch[TARGET], **weights}


def is_frame(features: Any) -> bool:
    """Return whether features are a data frame, which pipelines get."""
    return hasattr(features, "iloc")


def take_all(split: Split, info: DataInfo) -> Batch:
    """Return all rows of a split as (rows, features); arrays in memory are copied only if necessary."""
    return flatten_features(arrays_of(split), info)


def row_ranges(rows: int, size: int) -> Iterator[Ids]:
    """Yield the ids of `rows` rows in consecutive ranges of at most `size`."""
    for start in range(0, rows, size):
        yield np.arange(start, min(start + size, rows), dtype=np.int64)


def is_forest(estimator: Any) -> bool:
    """Return whether an estimator is one of scikit-learn's forests."""
    return ensemble_family(estimator) is FAMILIES["BaseForest"]


def parallel_jobs(estimator: Any, threads: int) -> int:
    """Return the number of threads in which an estimator may predict by itself.

    With several, a forest adds its trees in the order in which they finish; see `TreeSums`.
    """
    return 1 if is_forest(estimator) else threads


def outputs_of(
    estimator: Any, features: Array, info: DataInfo, threads: int, sums: TreeSums | None = None
) -> Array:
    """Compute the outputs of an estimator.

    Class probabilities come from `predict_proba` if the estimator has it. Otherwise its decision values go
    through the sigmoid (two classes) or the softmax (more), which keeps their order but is not calibrated. If
    it only predicts classes, the predicted class gets probability 1.

    Args:
        estimator: The fitted estimator; its `n_jobs` is `parallel_jobs`.
        features: (rows, features).
        info: The description of the data.
        threads: Number of threads.
        sums: The sums over a forest's trees for these rows, as far as they are known.

    Returns:
        (rows, classes) probabilities, or (rows,) / (rows, outputs) values; float64.
    """
    targets = targets_of(info)
    if targets.by_trees and is_forest(estimator):
        outputs = (sums or TreeSums(features)).mean(estimator.estimators_, threads)
    else:
        outputs = targets.outputs(estimator, features)
    return targets.complete(estimator, outputs)


class OutputCache:
    """The outputs of an estimator in training; those of a forest are sums that are kept while it grows."""

    def __init__(self, info: DataInfo, threads: int) -> None:
        self._info = info
        self._threads = threads
        self._sums: dict[Hashable, TreeSums] = {}

    def clear(self) -> None:
        """Clear the cache, because the estimator has been replaced."""
        self._sums = {}

    def of(self, estimator: Any, features: Array, key: Hashable = None) -> Array:
        """Compute the outputs of an estimator; see `outputs_of`.

        Args:
            estimator: The fitted estimator.
            features: (rows, features).
            key: Identifies these rows in the cache; None does not cache them.
        """
        sums = None
        if is_forest(estimator):
            sums = self._sums.get(key) or TreeSums(features)
            if key is not None:
                self._sums[key] = sums
        with temporary_parameters(estimator, n_jobs=parallel_jobs(estimator, self._threads)):
            return outputs_of(estimator, features, self._info, self._threads, sums)


def total_loss(
    outputs: Array,
    targets: Array,
    info: DataInfo,
    weights: Array | None = None,
    quantile: float | None = None,
) -> float:
    """Return the loss summed over the rows.

    It is the cross entropy in nats (of labels their mean), the squared error, or the pinball loss.

    Args:
        outputs: (rows, classes) probabilities, or (rows,) / (rows, outputs) values.
        targets: As in `Batch`.
        info: The description of the data.
        weights: (rows,) factors on the losses of the rows; None: all are 1.
        quantile: The quantile that the model predicts; None: its loss is another one.
    """
    losses = targets_of(info).losses(outputs, targets)
    if quantile is not None:
        errors = targets.reshape(len(targets), -1) - outputs.reshape(len(targets), -1)
        losses = np.maximum(quantile * errors, (quantile - 1) * errors).mean(axis=1)
    return float(losses.sum() if weights is None else weights @ losses)


class TreeSums:
    """The summed outputs of a forest's trees for some rows, updated as the forest grows.

    For each row, one thread adds the trees in their order. With several jobs, scikit-learn itself adds them
    in the order in which its threads finish, so that the last digits vary from call to call.
    """

    def __init__(self, features: Array) -> None:
        self._features = features.astype(np.float32, order="C", copy=False)  # the dtype of trees
        self._sums: list[Array] = []  # one array for each range of ROWS rows
        self._trees = 0

    def mean(self, trees: Sequence[Any], threads: int) -> Array:
        """Return the mean over the trees, (rows, classes) or (rows,) / (rows, outputs) float64.

        Args:
            trees: The forest's trees; must begin with those of the previous call.
            threads: Number of threads.
        """
        new, parts = trees[self._trees :], list(row_ranges(len(self._features), ROWS))
        with ThreadPoolExecutor(threads) as pool:
            added = list(
                pool.map(
                    lambda ids: _summed(new, self._features[ids[0] : ids[-1] + 1], self._before(ids)), parts
                )
            )
        self._sums, self._trees = added, len(trees)
        return np.concatenate(added) / len(trees)

    def _before(self, ids: Ids) -> Array | None:
        return self._sums[int(ids[0]) // ROWS] if self._sums else None


def _summed(trees: Sequence[Any], features: Array, total: Array | None) -> Array:
    """Add the outputs of trees to `total`, in float64."""
    for tree in trees:
        predict = tree.predict_proba if hasattr(tree, "predict_proba") else tree.predict
        outputs = predict(features, check_input=False)
        total = outputs.astype(np.float64) if total is None else total + outputs
    assert total is not None, "a forest has trees"
    return total
