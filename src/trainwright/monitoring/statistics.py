"""The distances of two distributions, and how improbable they are for rows of one and the same."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.monitoring.columns import Column, NumberColumn
from trainwright.require import require
from trainwright.types import Array

MOST = 300.0  # of a score: what is less probable is 0 as a float
_LEAST = 1e-4  # the share of an empty cell in the population stability index, as is usual


def shares_of(counts: Array) -> Array:
    """Return counts as shares of their sum; of nothing, zeros."""
    total = counts.sum(axis=-1, keepdims=True)
    shares: Array = counts / np.maximum(total, 1)
    return shares


def psi(first: Array, second: Array) -> float:
    """Return the population stability index of two distributions, (cells,) shares."""
    one, two = np.maximum(first, _LEAST), np.maximum(second, _LEAST)
    return float(((two - one) * np.log(two / one)).sum())


def jensen_shannon(first: Array, second: Array) -> float:
    """Return the Jensen-Shannon distance of two distributions, (cells,) shares: from 0 to 1 (base 2)."""
    middle = (first + second) / 2

    def divergence(shares: Array) -> float:
        at = shares > 0
        return float((shares[at] * np.log2(shares[at] / middle[at])).sum())

    return float(np.sqrt(max(0.0, (divergence(first) + divergence(second)) / 2)))


def kolmogorov_smirnov(first: Array, second: Array) -> Array:
    """Return the largest distances of the distribution functions of counts, (..., bins)."""
    gaps = np.abs(np.cumsum(shares_of(first), axis=-1) - np.cumsum(shares_of(second), axis=-1))
    distance: Array = gaps.max(axis=-1, initial=0.0)
    return distance


def chi_square(first: Array, second: Array) -> tuple[Array, Array]:
    """Return the statistics of the two-sample chi-square test of counts, (..., cells), and their freedom."""
    n, m = first.sum(axis=-1, keepdims=True), second.sum(axis=-1, keepdims=True)
    ratio = np.sqrt(np.maximum(m, 1) / np.maximum(n, 1))
    both = first + second
    parts = (ratio * first - second / ratio) ** 2 / np.maximum(both, 1)
    usable = (n > 0) & (m > 0)
    statistic: Array = np.where(usable, parts, 0).sum(axis=-1)
    freedom: Array = np.maximum((both > 0).sum(axis=-1) - 1, 1)
    return statistic, freedom


def scores(column: Column, first: Array, second: Array, beyond: Array, extra: Array | float = 0.0) -> Array:
    """Return how improbable counts are by each of the column's tests, as -log10 p, (..., tests).

    The tests of numbers: Kolmogorov-Smirnov on the bins; missing values (binomial, given their number in
    both); values beyond all training values (exact: that the largest so many of all are of the second rows).
    Those of categories: chi-square; missing values; unseen categories (as for missing values).

    Args:
        column: The column.
        first: The training rows in each cell, (..., cells).
        second: The other rows, (..., cells).
        beyond: The numbers of values below and above those of all training rows, (..., 2).
        extra: What is added to the training rows with a category of their own, to simulate it.
    """
    special: Any = require("scipy.special", "tabular")
    missing = _rarer(special, first[..., 0], first.sum(axis=-1), second[..., 0], second.sum(axis=-1))
    if isinstance(column, NumberColumn):
        one, two = first[..., 1:], second[..., 1:]
        n, m = one.sum(axis=-1), two.sum(axis=-1)
        scale = np.sqrt(n * m / np.maximum(n + m, 1))
        shape = special.kolmogorov(scale * kolmogorov_smirnov(one, two) * ((n > 0) & (m > 0)))
        with np.errstate(divide="ignore"):
            each = -np.log10(np.maximum(m, 1) / np.maximum(n + m, 1))
        more = np.maximum(beyond.max(axis=-1) * each - np.log10(2), 0)
        return np.stack([_score(shape), missing, np.minimum(more, MOST)], axis=-1)
    statistic, freedom = chi_square(first[..., 2:], second[..., 2:])
    n, m = first[..., 1:].sum(axis=-1), second[..., 1:].sum(axis=-1)
    alone = np.maximum(first[..., 1] + np.rint(extra), 0)
    unseen = _score(_at_least(special, second[..., 1], alone, _share(n, m)))
    unseen = unseen if getattr(column, "knows_all", True) else np.zeros_like(unseen)
    return np.stack([_score(special.chdtrc(freedom, statistic)), missing, unseen], axis=-1)


def _share(n: Array, m: Array) -> Array:
    share: Array = np.maximum(m, 1) / np.maximum(n + m, 1)
    return share


def _score(p: Array) -> Array:
    with np.errstate(divide="ignore"):
        score: Array = np.minimum(-np.log10(np.clip(p, 0.0, 1.0)), MOST)
    return score


def _at_least(special: Any, found: Array, others: Array, share: Array) -> Array:
    """Return the probability that so many or more of `found + others` are found, each with a share."""
    p: Array = np.where(found > 0, special.betainc(np.maximum(found, 1), others + 1.0, share), 1.0)
    return p


def _rarer(special: Any, first: Array, n: Array, second: Array, m: Array) -> Array:
    """Return the score of another share of missing values, or of present ones if these are rarer."""
    mostly = 2 * (first + second) > n + m
    one, two = np.where(mostly, n - first, first), np.where(mostly, m - second, second)
    share = _share(n, m)
    more, fewer = _at_least(special, two, one, share), _at_least(special, one, two, 1 - share)
    usable = (n > 0) & (m > 0)
    return _score(np.where(usable, 2 * np.minimum(more, fewer), 1.0))
