"""Ray Tune: its schedulers and searches decide; each trial is an actor of Ray's that trains a run of ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import BaseModel

from trainwright.require import require
from trainwright.samplers.base import Space
from trainwright.tuners.base import Trials
from trainwright.tuners.ray.params import PbtScheduler, RayParams


class RayTuner:
    """Searches with Ray Tune, on this machine or a cluster."""

    Params: ClassVar[type[BaseModel]] = RayParams

    def __init__(self, params: BaseModel) -> None:
        assert isinstance(params, RayParams)
        self._params = params

    def refusal(self, space: Space, forkable: Sequence[str]) -> str | None:
        """Return why these options cannot search a space; see `Tuner.refusal`."""
        params = self._params
        evolves = isinstance(params.scheduler, PbtScheduler)
        if evolves and params.search != "random":
            return (
                "search: optuna given, but pbt proposes parameters by itself, from trials "
                "drawn at random; leave it out"
            )
        if (evolves or params.search == "optuna") and any(one.when for one in space):
            return (
                f"{'pbt' if evolves else 'search: optuna'} of Ray does not support `when`; "
                "leave it out, or use what does: sampler: tpe, or Ray's own search: random"
            )
        if evolves and not any(one.key in forkable for one in space):
            return (
                "pbt changes parameters while a model trains, and none of the space can be "
                "changed then; give one that a fork may change, such as training.learning_rate"
            )
        if params.address is not None and params.num_cpus is not None:
            return "num_cpus is for a Ray of this machine, and address names one that runs; keep one"
        return None

    def run(self, trials: Trials) -> None:
        """Make the trials; see `Tuner.run`."""
        require("ray", "ray")
        require("ray.tune", "ray")
        from trainwright.tuners.ray.session import run

        run(self._params, trials)
