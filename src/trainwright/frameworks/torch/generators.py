"""The random generators that a model draws from."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch


def generators(device: torch.device) -> list[torch.Generator]:
    """Return torch's default generators, from which a model on this device draws unless it has its own."""
    own = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        own.append(torch.cuda.default_generators[index])
    return own


def seed_all(seed: int) -> None:
    """Seed torch's default generators of all devices.

    Where there is only the processor, torch would note the seed for each kind of device that may be found
    later, with a stack trace.
    """
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def seed_generators(generators: Sequence[torch.Generator], seed: int) -> None:
    """Seed generators, so that what they draw next is a function of the seed."""
    for generator in generators:
        # The CPU's generator takes 32 bits of a seed, CUDA's takes 64.
        generator.manual_seed(seed & 0xFFFFFFFF if generator is torch.default_generator else seed)


@contextmanager
def drawing_from(generators: Sequence[torch.Generator], seed: int) -> Iterator[None]:
    """Seed all generators for a block; those of Python and NumPy are restored afterwards."""
    before = random.getstate(), np.random.get_state()
    seed_generators(generators, seed)
    random.seed(seed)
    np.random.seed([seed & 0xFFFFFFFF, seed >> 32, 1])  # without the 1, Python's would draw the same numbers
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
