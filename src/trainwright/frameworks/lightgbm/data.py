"""The rows of a split in LightGBM's format, and the raw scores of a growing model for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from trainwright.datasets.base import ArraySplit, Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.frameworks.lightgbm.trees import Trees
from trainwright.tasks.support.precision import learned
from trainwright.types import FEATURES, TARGET, WEIGHT, Array, Batch, DataInfo

_CACHE_VALUES = 1 << 22  # tree values that are looked up at once
_BLOCK_VALUES = 1 << 24  # feature values that are read at once from a split that is not in memory


class Rows:
    """The samples of a split as flat float32 rows, read in blocks where they are not in memory.

    Args:
        split: The split.
        ids: (n,) positions of the rows to take, which are then held in memory; None for all rows.
    """

    def __init__(self, split: Split, ids: Array | None = None) -> None:
        self._split = split
        self._targets: Array | None = None
        self._weights: Array | None = None
        self._batch: Batch | None = None
        if ids is not None:
            self._batch = _flat(split.take(ids))
        elif isinstance(split, Arrays | ArraySplit):  # to ask the protocol takes 12 us
            self._batch = _flat(split.arrays)

    def __len__(self) -> int:
        return len(self._split) if self._batch is None else len(self._batch[FEATURES])

    @property
    def in_memory(self) -> Array | None:
        """All features, (rows, features) float32, or None where they are not in memory."""
        return None if self._batch is None else self._batch[FEATURES]

    @property
    def block_rows(self) -> int:
        """The number of rows in a block."""
        return max(1, _BLOCK_VALUES // max(1, self.features(0, 1).size))

    @property
    def targets(self) -> Array:
        """The targets, (rows,): class indices, or values as the data hold them."""
        if self._targets is None:
            self._targets = np.concatenate([batch[TARGET] for batch in self.blocks()])
        return self._targets

    @property
    def weights(self) -> Array | None:
        """The weights of the rows, (rows,) float64; None if they have none."""
        if self._weights is None and WEIGHT in self._block(0, min(1, len(self))):
            self._weights = np.concatenate([batch[WEIGHT] for batch in self.blocks()])
        return self._weights

    def features(self, start: int, stop: int) -> Array:
        """Return the features of a range of rows, (stop - start, features) float32."""
        return self._block(start, stop)[FEATURES]

    def blocks(self) -> Iterator[Batch]:
        """Yield all rows in order: in one batch where they are in memory, else block by block."""
        size = self.block_rows if self._batch is None else max(1, len(self))
        for start in range(0, len(self), size):
            yield self._block(start, min(start + size, len(self)))

    def _block(self, start: int, stop: int) -> Batch:
        if self._batch is None:
            return _flat(self._split.take(np.arange(start, stop, dtype=np.int64)))
        return {name: array[start:stop] for name, array in self._batch.items()}


def _flat(batch: Batch) -> Batch:
    rows = len(batch[FEATURES])
    features = batch[FEATURES].reshape(rows, -1).astype(np.float32, copy=False)
    weights = {WEIGHT: batch[WEIGHT]} if WEIGHT in batch else {}
    return {FEATURES: features, TARGET: batch[TARGET].reshape(rows), **weights}


def make_dataset(library: Any, rows: Rows, info: DataInfo, params: dict[str, Any], **extra: Any) -> Any:
    """Return a constructed `lightgbm.Dataset`, with its bins.

    Data that is not in memory is read twice, and only its bins are kept. `extra` is passed to
    `lightgbm.Dataset`.
    """
    features = rows.in_memory if rows.in_memory is not None else _sequence(library, rows)
    categorical = [i for i, count in enumerate(info.categories) if count]
    dataset = library.Dataset(
        features,
        label=learned(rows.targets, info),
        params=dict(params),
        feature_name=safe_names(info.feature_names) or "auto",
        categorical_feature=categorical,
        **extra,
    )
    return dataset.construct()


def _sequence(library: Any, rows: Rows) -> Any:
    """Return the rows as a `lightgbm.Sequence`, which is read in batches."""

    class Blocks(library.Sequence):  # type: ignore[misc]
        batch_size = rows.block_rows

        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int | slice) -> Array:
            if isinstance(index, slice):
                start, stop, _ = index.indices(len(rows))
                return rows.features(start, stop).astype(np.float64)  # LightGBM requires float64 here
            row: Array = rows.features(index, index + 1)[0].astype(np.float64)
            return row

    return Blocks()


def safe_names(names: Sequence[str]) -> list[str]:
    """Return the names with the characters that LightGBM refuses replaced by `_`.

    Where they would no longer be unique, features are named by position.
    """
    safe = [re.sub(r'[\s",:\[\]{}]', "_", name) for name in names]
    return safe if len(set(safe)) == len(safe) else [f"feature_{i}" for i in range(len(safe))]


class TreeValues(Protocol):
    """Look up the values that the trees of each round add to the raw scores."""

    @property
    def rounds(self) -> int:
        """The number of rounds of the model."""

    def values(self, start: int, stop: int, features: Array) -> Array:
        """Return (stop - start, rows, width) float64 values that the rounds from `start` to `stop` add."""


class Scores:
    """The raw scores of a growing model for some rows.

    The values of the trees are added one by one in the order of the trees, as LightGBM does in training and
    prediction, so the bits do not depend on how often the scores were brought up to date.
    """

    def __init__(self, rows: Rows, width: int) -> None:
        self.rows = rows
        self.rounds = 0
        self.raw = np.zeros((len(rows), width))  # (rows, width) float64, of the first `rounds` rounds
        self._cache_start, self._cache = 0, np.empty((0, 0, 0))  # values of rounds, (rounds, rows, width)

    def recompute(self, trees: Trees) -> Array:
        """Return the scores of all trees, (rows, width) float64, computed from the first tree on."""
        self.raw = np.concatenate([trees.raw_scores(batch[FEATURES]) for batch in self.rows.blocks()])
        self.rounds, self._cache = trees.rounds, np.empty((0, 0, 0))
        return self.raw

    def advance(self, rounds: int, source: TreeValues) -> Array:
        """Return the scores of the first `rounds` rounds, (rows, width) float64; `rounds` never decreases.

        Values of later rounds that exist already are looked up in the same call and cached.
        """
        while self.rounds < rounds:
            index = self.rounds - self._cache_start
            if not 0 <= index < len(self._cache):
                stop = min(source.rounds, self.rounds + max(1, _CACHE_VALUES // max(1, self.raw.size)))
                parts = [source.values(self.rounds, stop, batch[FEATURES]) for batch in self.rows.blocks()]
                self._cache_start, self._cache, index = self.rounds, np.concatenate(parts, axis=1), 0
            self.raw += self._cache[index]
            self.rounds += 1
        return self.raw
