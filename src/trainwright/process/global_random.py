"""The global generators of Python and the libraries, which code of a user's own may draw from."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

_SEEDS = {"_seed", "_rng"}  # of TensorFlow; a new seed makes a new generator


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


@contextmanager
def preserved_generators() -> Iterator[None]:
    """Restore those of torch and TensorFlow, too, where they are imported: a run leaves the user's alone."""
    torch, eager = sys.modules.get("torch"), sys.modules.get("tensorflow.python.eager.context")
    host = None if torch is None else torch.get_rng_state()
    has_cuda = torch is not None and torch.cuda.is_initialized()
    devices = torch.cuda.get_rng_state_all() if torch is not None and has_cuda else None
    context = None if eager is None else eager.context_safe()
    seeds = {name: vars(context)[name] for name in _SEEDS & vars(context).keys()} if context else {}
    try:
        with preserved_global_random():
            yield
    finally:
        if torch is not None:
            torch.set_rng_state(host)
            if devices is not None:
                torch.cuda.set_rng_state_all(devices)
        for name, value in seeds.items():
            setattr(context, name, value)
