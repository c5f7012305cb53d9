"""Masks: whole numbers, one for each pixel, and the classes that they stand for."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from trainwright.errors import DataError
from trainwright.types import NO_LABEL, Array


def class_numbers(masks: Array) -> Array:
    """Return the distinct whole numbers of masks, ascending."""
    low, high = int(masks.min(initial=0)), int(masks.max(initial=0))
    if high - low > 1 << 16:
        return np.unique(masks)
    counts = np.bincount(masks.ravel().astype(np.int64) - low)  # much faster than to sort all pixels
    return np.flatnonzero(counts) + low


def class_indices(masks: Array, values: Sequence[int], ignored: int | None) -> Array:
    """Return masks whose numbers are positions in `values`, NO_LABEL where a pixel does not count: int64.

    Raises:
        DataError: A pixel has another number; says which one.
    """
    masks, known = masks.astype(np.int64), np.asarray(values, np.int64)  # ascending
    at = np.minimum(np.searchsorted(known, masks), len(known) - 1)  # (..., height, width)
    indices: Array = np.where(known[at] == masks, at, -1)
    skipped = masks == NO_LABEL
    if ignored is not None:
        skipped |= masks == ignored
    indices[skipped] = NO_LABEL
    if (indices == -1).any():
        raise DataError(f"a pixel is {masks[indices == -1][0]}, which is not a class")
    return indices


def classes_of(found: Collection[int], ignored: int | None) -> list[int]:
    """Return the numbers of the classes among those that masks hold.

    Raises:
        DataError: There is only one.
    """
    values = sorted(set(found) - {NO_LABEL, ignored})
    if len(values) < 2:
        what = f"only {values[0]}" if values else "no class"
        raise DataError(f"the masks hold {what}: there is nothing to learn")
    return values
