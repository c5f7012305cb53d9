"""Random search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel

from trainwright.config.fields import Section
from trainwright.samplers.base import Modes, Observation, Space, drawn


class RandomParams(Section):
    """Random search has no options (Bergstra and Bengio, 2012)."""


class RandomSampler:
    """Draw each trial independently."""

    Params: ClassVar[type[BaseModel]] = RandomParams
    aliases = ("random_search", "RandomSampler")
    limits = ("earlier",)
    size = None

    def __init__(self, params: BaseModel, space: Space, mode: Modes, seed: int) -> None:  # noqa: ARG002
        self._space, self._seed = space, seed

    def propose(self, number: int, known: Sequence[Observation]) -> dict[str, Any]:  # noqa: ARG002
        """Return the parameters of a trial; see `Sampler.propose`."""
        generator = np.random.Generator(np.random.Philox(key=[self._seed, number]))
        return drawn(self._space, iter(generator.random(len(self._space))))
