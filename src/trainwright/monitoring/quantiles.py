"""A sketch of numbers that knows their quantiles to a stated relative error, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainwright.records.journal import finite
from trainwright.types import Array

BUCKETS = 2048  # that a sketch holds, at most; beyond them, neighbors are joined
_BITS = 52  # of the fraction of a float64
_FINE = 45  # bits that a bucket leaves open at first: it is 1/128 of a power of two wide
_MAGNITUDE = np.int64(0x7FFF_FFFF_FFFF_FFFF)


class Quantiles:
    """The distribution of numbers, in buckets that are as wide as their relative error allows.

    A bucket holds the floats that share sign, exponent and the first bits of the fraction; it keeps their
    number and their mean. So a quantile is off by `error` times its size at most: 1/128 until there are more
    than 2,048 buckets; each joining of neighbors doubles it. Sketches add up exactly, in any order (as in
    DDSketch: Masson, Rim and Lee 2019, and UDDSketch: Epicoco et al. 2020). Infinite values count; NaN is
    left out.
    """

    def __init__(self) -> None:
        self._shift = _FINE
        self._keys: Array = np.empty(0, np.int64)  # ascending, as their numbers are
        self._counts: Array = np.empty(0, np.int64)
        self._sums: Array = np.empty(0, np.float64)

    def __len__(self) -> int:
        return int(self._counts.sum())

    @property
    def error(self) -> float:
        """The largest error of a quantile, relative to its size."""
        return float(2.0 ** (self._shift - _BITS))

    def add(self, values: Array) -> None:
        """Count numbers, (n,) float64."""
        values = values[~np.isnan(values)]
        bits = values.astype(np.float64).view(np.int64)
        keys = (bits & _MAGNITUDE) >> self._shift
        keys = np.where(bits < 0, ~keys, keys)
        self._join(keys, np.ones(len(keys), np.int64), values)

    def merge(self, other: Quantiles) -> None:
        """Count the numbers of another sketch."""
        self._coarsen(other._shift)
        self._join(other._keys >> (self._shift - other._shift), other._counts, other._sums)

    def _join(self, keys: Array, counts: Array, sums: Array) -> None:
        if not len(keys):
            return
        keys = np.concatenate([self._keys, keys])
        self._keys, of = np.unique(keys, return_inverse=True)
        size = len(self._keys)
        both = np.concatenate([self._counts, counts])
        self._counts = np.bincount(of, both, size).astype(np.int64)
        self._sums = np.bincount(of, np.concatenate([self._sums, sums]), size)
        while len(self._keys) > BUCKETS:
            self._coarsen(self._shift + 1)

    def _coarsen(self, shift: int) -> None:
        if shift <= self._shift:
            return
        keys, counts, sums = self._keys >> (shift - self._shift), self._counts, self._sums
        self._shift = shift
        self._keys, self._counts, self._sums = np.empty(0, np.int64), counts[:0], sums[:0]
        self._join(keys, counts, sums)

    def at(self, shares: Sequence[float]) -> list[float | None]:
        """Return the quantiles at shares from 0 to 1: the least number with so many at or below it.

        None if there are no numbers.
        """
        if not len(self._keys):
            return [None for _ in shares]
        total = np.cumsum(self._counts)
        ranks = np.clip(np.ceil(np.asarray(shares) * total[-1]), 1, total[-1])
        return [float(value) for value in self._values()[np.searchsorted(total, ranks)]]

    def _values(self) -> Array:
        """Return a number for each bucket: the mean of those in it."""
        magnitudes = np.where(self._keys < 0, ~self._keys, self._keys)
        low, high = (
            np.minimum(one << self._shift, np.float64(np.inf).view(np.int64)).view(np.float64)
            for one in (magnitudes, magnitudes + 1)
        )
        with np.errstate(invalid="ignore"):
            means = np.abs(self._sums / self._counts)  # the sum of huge numbers may be infinite
        values = np.clip(means, low, high)
        signed: Array = np.where(self._keys < 0, -values, values)
        return signed

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        return {
            "shift": self._shift,
            "keys": self._keys.tolist(),
            "counts": self._counts.tolist(),
            "sums": [finite(value) for value in self._sums.tolist()],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Quantiles:
        """Restore the sketch that `to_json` was called on."""
        made = cls()
        made._shift = int(data["shift"])
        made._keys = np.array(data["keys"], np.int64)
        made._counts = np.array(data["counts"], np.int64)
        made._sums = np.array([float(value) for value in data["sums"]], np.float64)
        return made
