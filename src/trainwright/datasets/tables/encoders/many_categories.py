"""Categories with many values: their mean target, or how frequent they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, Self

import numpy as np

from trainwright.datasets.samples.weights import encode as encode_weights
from trainwright.datasets.tables.encoders.base import TrainingRows
from trainwright.datasets.tables.encoders.categories import MISSING, UNSEEN, Categories, fitted_categories
from trainwright.datasets.tables.encoders.numbers import mean_and_scale, mean_of
from trainwright.datasets.tables.splitting import folds_of_groups, group_numbers
from trainwright.datasets.tables.table import Table
from trainwright.order import SPLIT, permutation, stream_seed
from trainwright.types import Array

SMOOTHING = 10.0  # the overall mean counts as much as this many rows of a category
_FOLDS = 5  # of the training rows
_STREAM = 3  # of the split's seed; 0 to 2 divide the rows


@dataclass(frozen=True)
class FrequencyColumn(Categories):
    """Categories that become their share of the training rows; 0 for those that no training row has."""

    kind: ClassVar[str] = "frequency"
    shares: Sequence[float] = ()
    mean: float = 0.0
    scale: float = 1.0

    @classmethod
    def fit(cls, name: str, rows: TrainingRows) -> Self:
        """Fit an encoder on a column of text."""
        bare = cls(**fitted_categories(name, rows))
        indices = bare.indices(rows.table)
        shares = np.bincount(indices[indices >= 0], minlength=len(bare.categories)) / len(indices)
        mean, scale = _scaling(shares[indices[indices >= 0]], rows)
        return cls(bare.name, bare.categories, bare.fill, bare.keep, shares.tolist(), mean, scale)

    @property
    def outputs(self) -> Sequence[str]:
        """The name of its feature."""
        return [f"{self.name}.frequency"]

    @property
    def unseen_as(self) -> str:
        """The replacement of the values that `unseen` returns, in words."""
        return "categories without rows (frequency 0)"

    @property
    def shown_scaling(self) -> tuple[float, float]:
        """The mean and scale of the shares."""
        return self.mean, self.scale

    def encode(self, table: Table, out: Array) -> None:
        """Write the standardized shares into `out`, (rows, 1)."""
        out[:, 0] = (self._shares[self.indices(table)] - self.mean) / self.scale

    @cached_property
    def _shares(self) -> Array:
        # MISSING is the last but one entry, UNSEEN the last one
        return np.array([*self.shares, np.nan, 0.0])


@dataclass(frozen=True)
class TargetMeanColumn(Categories):
    """Categories that become the mean target of their training rows (Micci-Barreca, 2001).

    The mean is drawn to that of all rows, which counts as `SMOOTHING` rows of the category, and which is the
    mean of categories that no training row has. For two classes it is the share of the second; for more
    there is a feature for the share of each.

    A training row must not see its own target. So it gets the means of the rows in the other four of five
    folds, drawn with `seed` (stratified if there are classes). All other rows get the means of all training
    rows. scikit-learn's TargetEncoder does the same. Rows of one group (`data.split.group`) are in one fold,
    as rows to predict are of other groups. Rows count as much as `data.weight` says, divided by its mean.

    `labels`: the names of the m features. `priors` and `means`: the overall means (m), and those of the
    categories (categories, m). `centers` and `scales` (m) standardize them.
    """

    kind: ClassVar[str] = "target"
    labels: Sequence[str] = ()
    priors: Sequence[float] = ()
    means: Sequence[Sequence[float]] = ()
    centers: Sequence[float] = ()
    scales: Sequence[float] = ()
    seed: int = 0

    @classmethod
    def fit(cls, name: str, rows: TrainingRows) -> Self:
        """Fit an encoder on a column of text, and on the target."""
        fields = fitted_categories(name, rows)
        bare = cls(**fields, seed=rows.config.split.seed)
        indices = bare.indices(rows.table)
        fitted = _means(indices, rows.targets, _weights(rows), len(bare.categories))
        scaling = [_scaling(values, rows) for values in bare._out_of_fold(indices, rows).T]
        return cls(
            **fields,
            labels=_labels(name, rows),
            priors=fitted.priors.tolist(),
            means=fitted.of_categories.tolist(),
            centers=[center for center, _ in scaling],
            scales=[scale for _, scale in scaling],
            seed=bare.seed,
        )

    @property
    def outputs(self) -> Sequence[str]:
        """The names of its features."""
        return self.labels

    @property
    def unseen_as(self) -> str:
        """The replacement of the values that `unseen` returns, in words."""
        return "average categories (the mean target of all training rows)"

    @property
    def shown_scaling(self) -> tuple[float, float]:
        """The mean and scale of the mean target; none stands for several of them."""
        return (self.centers[0], self.scales[0]) if len(self.labels) == 1 else super().shown_scaling

    def encode(self, table: Table, out: Array) -> None:
        """Write the standardized means of all training rows into `out`, (rows, m)."""
        out[:] = self._standardized(self._means.at(self.indices(table)))

    @cached_property
    def _means(self) -> _Means:
        return _Means(np.array(self.priors), np.array(self.means))

    def encode_training(self, rows: TrainingRows, out: Array) -> None:
        """Write the standardized means of the other folds into `out`, (rows, m)."""
        out[:] = self._standardized(self._out_of_fold(self.indices(rows.table), rows))

    def _standardized(self, means: Array) -> Array:
        standardized: Array = (means - np.array(self.centers)) / np.array(self.scales)
        return standardized

    def _out_of_fold(self, indices: Array, rows: TrainingRows) -> Array:
        """Return the means of the other folds' rows, (rows, m) float64."""
        out = np.empty_like(rows.targets)
        folds, weights = _folds(rows, self.seed), _weights(rows)
        for fold in range(_FOLDS):
            inside, others = folds == fold, folds != fold
            if inside.any() and weights[others].any():
                means = _means(indices[others], rows.targets[others], weights[others], len(self.categories))
                out[inside] = means.at(indices[inside])
            else:  # a single row, or the only one that counts
                out[inside] = 0.0
        return out


class _Means(NamedTuple):
    """The overall means (m,) and those of the categories (categories, m), float64."""

    priors: Array
    of_categories: Array

    def at(self, indices: Array) -> Array:
        """Return the means (rows, m) of categories, NaN for MISSING."""
        out: Array = self.of_categories[np.maximum(indices, 0)]
        out[indices == UNSEEN] = self.priors
        out[indices == MISSING] = np.nan
        return out


def _means(indices: Array, targets: Array, weights: Array, categories: int) -> _Means:
    """Return the smoothed means of targets (rows, m) with weights (rows,); sums run in row order."""
    known = indices >= 0
    counts = np.bincount(indices[known], weights[known], categories)
    weighted = targets * weights[:, None]
    priors = np.array([mean_of(values) for values in weighted.T]) / mean_of(weights)
    sums = [np.bincount(indices[known], values[known], categories) for values in weighted.T]
    smoothed = (np.stack(sums, axis=1) + SMOOTHING * priors) / (counts + SMOOTHING)[:, None]
    return _Means(priors, smoothed)


def _weights(rows: TrainingRows) -> Array:
    """Return how much the rows count, (rows,) float64, with a mean of 1."""
    ones = np.ones(len(rows.table))
    if rows.config.weight is None:
        return ones
    weights = encode_weights(rows.table, rows.config.weight)
    # Weights of 0 alone, or too large to add up, are refused later, as in any other run.
    with np.errstate(over="ignore", invalid="ignore"):
        mean = mean_of(weights)
    return weights / mean if 0 < mean < np.inf else ones


def _folds(rows: TrainingRows, seed: int) -> Array:
    """Return the fold of each training row, (rows,) int64.

    Rows of one group are in one fold; without groups, the folds have as many rows of each class.
    """
    split = rows.config.split
    name, own = split.group or next(iter(split.keys), None), stream_seed(seed, SPLIT, _STREAM)
    if name is not None and name in rows.table.columns:
        groups = group_numbers(rows.table, name)
        if (count := int(groups.max()) + 1) > 1:
            return folds_of_groups(groups, min(count, _FOLDS), own)
    order = permutation(own, len(rows.table))
    if rows.target.classes is not None:
        order = order[np.argsort(rows.target.encode(rows.table)[order], kind="stable")]
    folds = np.empty(len(order), dtype=np.int64)
    folds[order] = np.arange(len(order)) % _FOLDS
    return folds


def _labels(name: str, rows: TrainingRows) -> list[str]:
    count = rows.targets.shape[1]
    if count == 1:
        return [f"{name}.target"]
    return [f"{name}.target={label}" for label in rows.target.classes or rows.target.names or range(count)]


def _scaling(values: Array, rows: TrainingRows) -> tuple[float, float]:
    """Return the mean and scale to standardize values (rows,) with, of which some may be NaN."""
    known = values[~np.isnan(values)]
    if not rows.config.standardize or not len(known):
        return 0.0, 1.0
    low, high = float(known.min()), float(known.max())
    return (low, 1.0) if low == high else mean_and_scale(known)
