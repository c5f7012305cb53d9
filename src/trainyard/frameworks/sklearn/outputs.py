"""Rows in, class probabilities or values out, and what they cost."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from trainyard.datasets.base import ArraySplit, Split
from trainyard.frameworks.sklearn.steps import FAMILIES, family_of, settings
from trainyard.types import Array, Batch, DataInfo, Ids

ROWS = 4096  # that are predicted together
LEAST = float(
    np.finfo(np.float32).eps
)  # a probability counts as this much at least: a wrong vote costs 15.9, not infinity


def flat(batch: Batch) -> Batch:
    """The rows with one axis of features, as scikit-learn has them; C-contiguous."""
    features = batch.features.reshape(len(batch.features), -1)
    return Batch(
        np.ascontiguousarray(features, dtype=np.float32 if features.dtype.kind == "f" else None),
        batch.targets,
    )


def take_all(split: Split) -> Batch:
    """All rows of a split; of one in memory they are not copied."""
    if isinstance(split, ArraySplit):
        return flat(Batch(split.features, split.targets))
    return flat(split.take(np.arange(len(split), dtype=np.int64)))


def parts_of(rows: int, size: int) -> Iterator[Ids]:
    """The ids of consecutive rows, some at a time."""
    for start in range(0, rows, size):
        yield np.arange(start, min(start + size, rows), dtype=np.int64)


class Outputs:
    """What an estimator says of rows. Of a forest it keeps what its trees said, and asks only those that are new."""

    def __init__(self, info: DataInfo, threads: int) -> None:
        self._info = info
        self._threads = threads
        self._sums: dict[Hashable, TreeSums] = {}

    def forget(self) -> None:
        """The next estimator is another one."""
        self._sums = {}

    def of(self, estimator: Any, features: Array, key: Hashable = None) -> Array:
        """(rows, classes) or (rows,) / (rows, outputs) float64.

        Probabilities are the estimator's own where it gives some. Else its decision values go through the sigmoid (two classes)
        or the softmax (more), which keeps their order but is not calibrated; and where it only votes, its vote counts 1.

        Args:
            features: (rows, features).
            key: by which these very rows are known again; None: they are not asked for again.
        """
        if family_of(estimator) is FAMILIES["BaseForest"]:
            sums = self._sums.get(key) or TreeSums(features)
            if key is not None:
                self._sums[key] = sums
            found = sums.mean(estimator.estimators_, self._threads)
        else:
            with settings(estimator, n_jobs=self._threads):
                found = self._asked(estimator, features)
        return self._spread(estimator, found)

    def _asked(self, estimator: Any, features: Array) -> Array:
        if self._info.task == "classification":
            return _scores(estimator, features)
        values = np.asarray(estimator.predict(features), dtype=np.float64)
        return values.reshape(len(features), -1) if self._info.outputs > 1 else values.reshape(len(features))

    def _spread(self, estimator: Any, found: Array) -> Array:
        """With a column for every class, also for one that no training row has."""
        if self._info.task == "regression" or len(estimator.classes_) == self._info.outputs:
            return found
        spread = np.zeros((len(found), self._info.outputs))
        spread[:, np.asarray(estimator.classes_, dtype=np.int64)] = found
        return spread


def _scores(estimator: Any, features: Array) -> Array:
    """(rows, classes of the estimator) float64."""
    classes = np.asarray(estimator.classes_)
    if hasattr(estimator, "predict_proba"):
        found = np.asarray(estimator.predict_proba(features), dtype=np.float64)
        return np.where(
            np.isnan(found), 1 / len(classes), found
        )  # no class is known of a row without neighbours
    if hasattr(estimator, "decision_function"):
        values = np.asarray(estimator.decision_function(features), dtype=np.float64)
        if values.ndim == 1:
            values = np.stack([np.zeros_like(values), values], axis=1)
        if values.shape[1] == len(classes):
            shifted = np.exp(values - values.max(axis=1, keepdims=True))
            return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))
    votes: Array = np.asarray(estimator.predict(features))[:, None] == classes
    return votes.astype(np.float64)


def loss_of(outputs: Array, targets: Array, info: DataInfo) -> float:
    """Summed over the rows: the cross entropy (natural logarithm), or the squared error (mean over the outputs)."""
    if info.task == "classification":
        return float(-np.log(np.maximum(outputs[np.arange(len(targets)), targets], LEAST)).sum())
    errors = (outputs - targets.astype(np.float64).reshape(outputs.shape)) ** 2
    return float((errors if errors.ndim == 1 else errors.mean(axis=1)).sum())


class TreeSums:
    """The summed outputs of a forest's trees for some rows, carried on as the forest grows.

    The trees are added in their order, on each row by one thread: with several jobs scikit-learn itself adds them in the order
    in which the threads finish, and its last digits change from one call to the next.
    """

    def __init__(self, features: Array) -> None:
        self._features = features.astype(np.float32, order="C", copy=False)  # as trees take them
        self._sums: list[Array] = []
        self._trees = 0

    def mean(self, trees: Sequence[Any], threads: int) -> Array:
        """(rows, classes) or (rows,) / (rows, outputs) float64; `trees` begin with those of the last call."""
        new, parts = trees[self._trees :], list(parts_of(len(self._features), ROWS))
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
    for tree in trees:
        outputs = tree.predict_proba if hasattr(tree, "predict_proba") else tree.predict
        found = outputs(features, check_input=False)
        total = found.astype(np.float64) if total is None else total + found
    assert total is not None, "a forest has trees"
    return total
