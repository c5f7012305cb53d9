"""The contributions of the columns of single rows to a prediction: interventional Shapley values.

The value of a set of columns is the mean prediction for rows that have the cells of the explained row in
these columns, and those of a background row in the others. With few columns all sets are predicted. With
more, each background row gets a random order of the columns and its reverse, in which its cells are replaced
one by one (Castro, Gomez and Tejada, "Polynomial calculation of the Shapley value based on sampling", 2009;
Mitchell et al., "Sampling permutations for Shapley value estimation", 2022). Either way base + sum is the
prediction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainwright.order import EXPLAIN, permutation, stream_seed
from trainwright.types import Array, Ids

Floats = NDArray[np.float64]
MOST_EXACT = 8  # columns of which all sets are predicted
MOST_MIXTURES = 20_000  # rows that are predicted to explain one
FEWEST_BACKGROUND = 5
MOST_COLUMNS = MOST_MIXTURES // (2 * FEWEST_BACKGROUND) + 1


@dataclass(frozen=True)
class Contributions:
    """The contributions to one prediction.

    Attributes:
        base: The mean prediction of the background rows; base + the sum of `values` is the prediction.
        values: (columns,) float64.
        errors: (columns,) float64, standard errors: how far the values may be from those for all rows that
            the background was drawn from. None for a single background row.
    """

    base: float
    values: Floats
    errors: Floats | None


class Mixtures:
    """The rows that are predicted to explain one: each has some cells of it, and others of a background row.

    They are a function of the arguments alone, and the same for each row.

    Args:
        columns: The number of columns, at most `MOST_COLUMNS`.
        background: The number of background rows; fewer are used where there are many columns.
        seed: The seed of the orders.
    """

    def __init__(self, columns: int, background: int, seed: int) -> None:
        self.columns = columns
        self.is_exact = columns <= MOST_EXACT
        if not self.is_exact:
            background = min(background, MOST_MIXTURES // (2 * (columns - 1)))
        self.background = background
        self._seed = stream_seed(seed, EXPLAIN, columns)

    @property
    def each(self) -> int:
        """The number of mixtures with each background row."""
        return 2**self.columns - 2 if self.is_exact else 2 * (self.columns - 1)

    def __len__(self) -> int:
        return self.background * self.each

    def at(self, start: int, stop: int) -> tuple[NDArray[np.bool_], Ids]:
        """Return which cells of some mixtures are those of the explained row, and their background rows.

        Returns:
            (mixtures, columns) bool, and (mixtures,) int64 positions of background rows.
        """
        own = np.arange(start, min(stop, len(self)), dtype=np.int64)
        rows, steps = np.divmod(own, self.each) if self.each else (own, own)
        if self.is_exact:
            return _members(steps + 1, self.columns), rows
        taken = np.empty((len(own), self.columns), bool)
        for row in np.unique(rows).tolist():
            places = np.argsort(self._order(row))  # (columns,): when a column is replaced
            chosen = rows == row
            forward, count = steps[chosen] < self.columns - 1, steps[chosen] % (self.columns - 1) + 1
            ranks = np.where(forward[:, None], places, self.columns - 1 - places)
            taken[chosen] = ranks < count[:, None]
        return taken, rows

    def _order(self, row: int) -> Ids:
        return permutation(stream_seed(self._seed, row), self.columns)

    def contributions(self, prediction: float, bases: Array, values: Array) -> Contributions:
        """Return the contributions to a prediction.

        Args:
            prediction: The prediction for the explained row.
            bases: (background,) predictions for the background rows.
            values: (mixtures,) predictions for all mixtures.
        """
        bases = bases[: self.background].astype(np.float64)
        inner = values.astype(np.float64).reshape(self.background, self.each)
        found = (self._of_sets if self.is_exact else self._of_orders)(prediction, bases, inner)
        errors = found.std(axis=0, ddof=1) / math.sqrt(len(found)) if len(found) > 1 else None
        return Contributions(float(bases.mean()), found.mean(axis=0), errors)

    def _of_sets(self, prediction: float, bases: Floats, inner: Floats) -> Floats:
        """Return the contributions beside each background row, (background, columns), of all sets."""
        whole = np.full((len(bases), 1), prediction)
        values = np.concatenate([bases[:, None], inner, whole], axis=1)  # (background, sets)
        sets = np.arange(2**self.columns)
        sizes = _members(sets, self.columns).sum(axis=1)
        found = np.empty((len(bases), self.columns))
        for column in range(self.columns):
            without = sets[sets >> column & 1 == 0]
            weights = [
                1 / (self.columns * math.comb(self.columns - 1, size)) for size in sizes[without].tolist()
            ]
            found[:, column] = (values[:, without | 1 << column] - values[:, without]) @ np.array(weights)
        return found

    def _of_orders(self, prediction: float, bases: Floats, inner: Floats) -> Floats:
        """Return the contributions beside each background row, (background, columns), of two orders."""
        found = np.empty((len(bases), self.columns))
        for row in range(len(bases)):
            order = self._order(row)
            for one, values in zip((order, order[::-1]), np.split(inner[row], 2), strict=True):
                path = np.concatenate([bases[row : row + 1], values, [prediction]])
                share: Any = np.diff(path) / 2
                found[row, one] = share if one is order else found[row, one] + share
        return found


def _members(sets: Ids, columns: int) -> NDArray[np.bool_]:
    """Return which columns are in sets, (sets, columns); bit i of a set stands for column i."""
    return (sets[:, None] >> np.arange(columns) & 1).astype(bool)
