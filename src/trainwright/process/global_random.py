"""The global generators of Python and NumPy, which code of a user's own may draw from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def seed_global_random(seed: int) -> None:
    """Seed the global generators of Python and NumPy."""
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def preserved_global_random() -> Iterator[None]:
    """Restore the global generators at the end of the block to what they were at its start."""
    before = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
