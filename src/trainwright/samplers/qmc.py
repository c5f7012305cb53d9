"""Quasi-random search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, Field

from trainwright.config.fields import Section
from trainwright.require import require
from trainwright.samplers.base import Modes, Observation, Space, drawn


class QmcParams(Section):
    """Quasi-random numbers: they fill the space more evenly than random ones (Niederreiter, 1992)."""

    qmc_type: Literal["sobol", "halton"] = Field("sobol", description="the sequence")
    scramble: bool = Field(True, description="randomize the sequence by the seed (Owen, 1998)")


class QmcSampler:
    """Take the points of a quasi-random sequence in their order."""

    Params: ClassVar[type[BaseModel]] = QmcParams
    aliases = ("QMCSampler",)
    limits = ("earlier",)
    size = None

    def __init__(self, params: BaseModel, space: Space, mode: Modes, seed: int) -> None:  # noqa: ARG002
        assert isinstance(params, QmcParams)
        self._params, self._space, self._seed = params, space, seed

    def propose(self, number: int, known: Sequence[Observation]) -> dict[str, Any]:  # noqa: ARG002
        """Return the parameters of a trial; see `Sampler.propose`."""
        qmc: Any = require("scipy.stats.qmc", "tuning")
        kind = {"sobol": qmc.Sobol, "halton": qmc.Halton}[self._params.qmc_type]
        sequence = kind(
            len(self._space), scramble=self._params.scramble, rng=np.random.default_rng(self._seed)
        )
        if number:
            sequence.fast_forward(number)
        (point,) = sequence.random(1)
        return drawn(self._space, iter(np.minimum(point, np.nextafter(1, 0))))
