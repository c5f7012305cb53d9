"""The options of Ray Tune, named as in Ray; they are checked without it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trainwright.config.fields import Section

_MOST_FAILURES = 3
_ITERATIONS = "in evaluations"


class FifoScheduler(Section):
    """Train every trial to its end."""

    type: Literal["fifo"] = "fifo"


class AshaScheduler(Section):
    """Ray's ASHAScheduler: asynchronous successive halving (Li et al., 2020), by stopping."""

    type: Literal["asha"] = "asha"
    max_t: int = Field(default=100, gt=0, description=f"no trial trains for longer, {_ITERATIONS}")
    grace_period: int = Field(default=1, gt=0, description=f"no trial is stopped earlier, {_ITERATIONS}")
    reduction_factor: float = Field(default=4, gt=1, description="one trial in this many passes a rung")
    brackets: int = Field(default=1, gt=0, description="brackets, each with a later first rung")


class HyperbandScheduler(Section):
    """Ray's HyperBandScheduler (Li et al., 2018): trials wait at a rung for their bracket."""

    type: Literal["hyperband"] = "hyperband"
    max_t: int = Field(default=81, gt=0, description=f"the length of a whole trial, {_ITERATIONS}")
    reduction_factor: float = Field(default=3, gt=1, description="one trial in this many passes a rung")


class PbtScheduler(Section):
    """Ray's PopulationBasedTraining (Jaderberg et al., 2017): copies of good trials replace bad ones."""

    type: Literal["pbt"] = "pbt"
    perturbation_interval: int = Field(
        default=4, gt=0, description=f"how long a trial trains before it is compared, {_ITERATIONS}"
    )
    burn_in_period: int = Field(default=0, ge=0, description=f"no trial is compared earlier, {_ITERATIONS}")
    quantile_fraction: float = Field(
        default=0.25,
        ge=0,
        le=0.5,
        description="share of the trials that are replaced by copies of good ones",
    )
    resample_probability: float = Field(
        default=0.25,
        ge=0,
        le=1,
        description="how often a parameter of a copy is drawn anew instead of perturbed",
    )
    synch: bool = Field(
        default=False, description="wait until all trials have come as far, and compare them then"
    )


Scheduler = FifoScheduler | AshaScheduler | HyperbandScheduler | PbtScheduler


def _typed(value: Any) -> Any:
    return {"type": value} if isinstance(value, str) else value


class RayParams(Section):
    """Options of Ray Tune (Liaw et al., 2018)."""

    scheduler: Annotated[Scheduler, Field(discriminator="type"), BeforeValidator(_typed)] = Field(
        default=AshaScheduler(), description="fifo, asha, hyperband or pbt; or {type: asha, grace_period: 2}"
    )
    search: Literal["random", "optuna"] = Field(
        default="random", description="what proposes parameters: independent draws, or Ray's OptunaSearch"
    )
    address: str | None = Field(
        default=None,
        description="a Ray cluster (HOST:PORT, ray://..., auto); default: a Ray on this machine alone",
    )
    num_cpus: int | None = Field(
        default=None, gt=0, description="processors of a Ray on this machine; default: all"
    )
    max_failures: int = Field(
        default=_MOST_FAILURES, ge=0, description="how often Ray restarts a trial whose process has died"
    )
