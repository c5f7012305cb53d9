"""Baselines of rows that have parts: guesses by how often each class occurs, overall or with a token."""

from __future__ import annotations

import numpy as np

from trainwright.types import NO_LABEL, Array


def shares(labels: Array, classes: int) -> Array:
    """Return the share of each class among labels, (classes,), with one more of each, so that none is 0."""
    counts = np.bincount(labels[labels != NO_LABEL].ravel(), minlength=classes)  # (classes,)
    smoothed: Array = (counts + 1) / (counts.sum() + classes)
    return smoothed


class PairTable:
    """The probability of each class given a token, counted, and smoothed as Witten and Bell do (1991).

    A token that was seen n times with t different classes gives t / (n + t) to the shares of all classes.

    Args:
        tokens: Tokens, (rows, parts) integers of at least 0.
        labels: The classes that go with them, (rows, parts); NO_LABEL where there is none.
        shares: The shares of all classes, (classes,).
    """

    def __init__(self, tokens: Array, labels: Array, shares: Array) -> None:
        self._shares, classes = shares, len(shares)
        counted = labels != NO_LABEL
        keys, counts = np.unique(
            tokens[counted].astype(np.int64) * classes + labels[counted], return_counts=True
        )
        self._keys, self._counts = keys, counts.astype(np.float64)
        seen, start = np.unique(keys // classes, return_index=True)  # (seen tokens,) twice
        self._seen = seen
        self._totals = np.add.reduceat(self._counts, start) if len(seen) else self._counts
        self._kinds = np.diff(np.append(start, len(keys))).astype(np.float64)
        order = np.lexsort((-keys, self._counts, keys // classes))  # the last of each token is its best
        self._best = (keys % classes)[order][np.append(start[1:], len(keys)) - 1] if len(seen) else seen

    def probabilities(self, tokens: Array, labels: Array) -> Array:
        """Return the probability of each of the labels (not NO_LABEL) given its token."""
        keys = tokens.astype(np.int64) * len(self._shares) + labels
        counts, _ = _looked_up(self._keys, keys, self._counts)
        totals, known = _looked_up(self._seen, tokens, self._totals)
        kinds, _ = _looked_up(self._seen, tokens, self._kinds)
        smoothed: Array = (counts + kinds * self._shares[labels]) / np.where(known, totals + kinds, 1.0)
        return np.where(known, smoothed, self._shares[labels])

    def best(self, tokens: Array) -> Array:
        """Return the class that goes with each token most often; of unseen ones the commonest of all."""
        best, known = _looked_up(self._seen, tokens, self._best)
        return np.where(known, best, self._shares.argmax())


def _looked_up(keys: Array, wanted: Array, values: Array) -> tuple[Array, Array]:
    """Return the values of the wanted keys, 0 where there is none, and which of them there are."""
    if not len(keys):
        return np.zeros(wanted.shape), np.zeros(wanted.shape, bool)
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    known = keys[at] == wanted
    return np.where(known, values[at], 0), known
