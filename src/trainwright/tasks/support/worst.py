"""The rows with the largest errors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trainwright.types import Array

MAX_WORST = 12  # rows that a report shows


def largest(errors: Array) -> NDArray[np.int64]:
    """Return the positions of the largest of (rows,) errors, largest first; of equal ones the first row."""
    return np.argsort(-errors, kind="stable")[:MAX_WORST]
