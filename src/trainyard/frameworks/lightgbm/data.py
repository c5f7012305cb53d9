"""Rows as LightGBM takes them, and the sums of the trees for them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from trainyard.datasets.base import ArraySplit, Split
from trainyard.frameworks.lightgbm.model import Trees
from trainyard.types import Array, Batch, DataInfo

_KEPT_VALUES = 1 << 22  # that are looked up at once
_BLOCK_VALUES = 1 << 24  # that are taken at once from a split that does not fit in memory


class Rows:
    """The samples of a split as rows of float32, whole where they are in memory, block by block else."""

    def __init__(self, split: Split, ids: Array | None = None) -> None:
        self._split = split
        self._targets: Array | None = None
        self._taken: Batch | None = None
        if ids is not None:
            self._taken = _flat(split.take(ids))
        elif isinstance(split, ArraySplit):
            self._taken = _flat(Batch(split.features, split.targets))

    def __len__(self) -> int:
        return len(self._split) if self._taken is None else len(self._taken.features)

    @property
    def whole(self) -> Array | None:
        """(rows, features) float32, or None where they are not in memory."""
        return None if self._taken is None else self._taken.features

    @property
    def block_rows(self) -> int:
        """How many are taken at once."""
        return max(1, _BLOCK_VALUES // max(1, self.features(0, 1).size))

    @property
    def targets(self) -> Array:
        """(rows,): class indices or values."""
        if self._targets is None:
            self._targets = np.concatenate([batch.targets for batch in self.blocks()])
        return self._targets

    def features(self, start: int, stop: int) -> Array:
        """(stop - start, features) float32."""
        return self._block(start, stop).features

    def blocks(self) -> Iterator[Batch]:
        """All rows, at once where they are in memory."""
        size = self.block_rows if self._taken is None else max(1, len(self))
        for start in range(0, len(self), size):
            yield self._block(start, min(start + size, len(self)))

    def _block(self, start: int, stop: int) -> Batch:
        if self._taken is None:
            return _flat(self._split.take(np.arange(start, stop, dtype=np.int64)))
        return Batch(self._taken.features[start:stop], self._taken.targets[start:stop])


def _flat(batch: Batch) -> Batch:
    rows = len(batch.features)
    return Batch(batch.features.reshape(rows, -1).astype(np.float32, copy=False), batch.targets.reshape(rows))


def make_dataset(library: Any, rows: Rows, info: DataInfo, params: dict[str, Any], **more: Any) -> Any:
    """A `lightgbm.Dataset`, its bins made; what is larger than memory is read twice, and only its bins are kept."""
    features = rows.whole if rows.whole is not None else _sequence(library, rows)
    categorical = [i for i, count in enumerate(info.categories) if count]
    made = library.Dataset(
        features,
        label=rows.targets,
        params=dict(params),
        feature_name=safe_names(info.feature_names) or "auto",
        categorical_feature=categorical,
        **more,
    )
    return made.construct()


def _sequence(library: Any, rows: Rows) -> Any:
    class Blocks(library.Sequence):  # type: ignore[misc]
        batch_size = rows.block_rows

        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: int | slice) -> Array:
            if isinstance(index, slice):
                start, stop, _ = index.indices(len(rows))
                return rows.features(start, stop).astype(np.float64)  # what it wants to be given
            row: Array = rows.features(index, index + 1)[0].astype(np.float64)
            return row

    return Blocks()


def safe_names(names: Sequence[str]) -> list[str]:
    """Feature names without the characters that LightGBM refuses, or by position where they would not be unique then."""
    found = [re.sub(r'[\s",:\[\]{}]', "_", name) for name in names]
    return found if len(set(found)) == len(found) else [f"feature_{i}" for i in range(len(found))]


class Grower(Protocol):
    """Who makes the rounds."""

    @property
    def rounds(self) -> int:
        """How many the model has."""

    def values(self, start: int, stop: int, features: Array) -> Array:
        """(stop - start, rows, width) float64: what the trees of these rounds add."""


class Scores:
    """The sums of the trees' values for some rows, kept up with the trees.

    They are added one by one in the order of the trees, as LightGBM does it in training and in predicting, so the bits do
    not depend on how often they were asked for.
    """

    def __init__(self, rows: Rows, width: int) -> None:
        self.rows = rows
        self.rounds = 0
        self.raw = np.zeros((len(rows), width))  # (rows, width) float64, of the first `rounds`
        self._first, self._values = 0, np.empty((0, 0, 0))  # of rounds that have been looked up

    def take(self, trees: Trees) -> Array:
        """Of all these trees."""
        self.raw = np.concatenate([trees.raw(batch.features) for batch in self.rows.blocks()])
        self.rounds, self._values = trees.rounds, np.empty((0, 0, 0))
        return self.raw

    def advance(self, rounds: int, grower: Grower) -> Array:
        """Of the first `rounds`, which are no less than before; what more there are is looked up, too."""
        while self.rounds < rounds:
            at = self.rounds - self._first
            if not 0 <= at < len(self._values):
                stop = min(grower.rounds, self.rounds + max(1, _KEPT_VALUES // max(1, self.raw.size)))
                parts = [grower.values(self.rounds, stop, batch.features) for batch in self.rows.blocks()]
                self._first, self._values, at = self.rounds, np.concatenate(parts, axis=1), 0
            self.raw += self._values[at]
            self.rounds += 1
        return self.raw
