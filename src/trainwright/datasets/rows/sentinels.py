"""Numbers and times that may stand for missing values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from trainwright.types import Array

_NUMBERS = {sign * (10**k - 1) for k in range(2, 10) for sign in (1, -1)} | {-9, -1e20, 1e20}
_TIMES = ("0001-01-01", "1900-01-01", "1970-01-01", "2099-12-31", "2999-12-31", "9999-12-31")


def sentinels(present: Array) -> list[Any]:
    """Return values such as -999 that are repeated and far from all others: they may mean missing ones.

    Args:
        present: The values, (rows,) numbers or times, without missing ones.
    """
    if present.dtype.kind == "M":
        present = present[~np.isnat(present)]
        candidates: Iterable[Any] = np.array(_TIMES, dtype="datetime64[us]")
    else:
        candidates = sorted(_NUMBERS)
    if not len(present):
        return []
    extremes = {present.min(), present.max()}
    candidates = [value for value in candidates if value in extremes]
    if not candidates:
        return []
    others = present[~np.isin(present, candidates)]
    if not len(others) or others.min() == others.max():
        return []
    low, high = others.min(), others.max()
    far = [value for value in candidates if (low - value if value < low else value - high) > high - low]
    return [value for value in far if int((present == value).sum()) > 1]
