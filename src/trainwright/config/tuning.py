"""The `tuning` section: what is searched, how, and when the search ends. No run depends on it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trainwright.config.fields import MODE, AutoMode, Section, TypedSection, placement, record

SQLITE = "sqlite"  # the storage in the study's folder
_NOT_ASKED = {"trials", "max_minutes", "target", "parallel", "storage"}  # no trial depends on these


class SamplerConfig(TypedSection):
    """The sampler, which proposes the parameters of trials; its options may be written inline."""

    type: str = record("tpe", description="random, grid, qmc, tpe, gp, cmaes, nsga2 ...")


class TunerConfig(TypedSection):
    """A system that searches by itself; its options may be written inline."""

    type: str = record(description="ray")
    params: dict[str, Any] = record(
        default_factory=dict, description="the options of this type; they may also be written inline"
    )


class NoPruner(Section):
    """No trial is pruned."""

    type: Literal["none"] = record("none")


class MedianPruner(Section):
    """Prune a trial whose best value so far is worse than the median of the others at the same step.

    This is the median stopping rule of Golovin et al., 2017.
    """

    type: Literal["median"] = record("median")
    n_startup_trials: int = record(5, ge=0, description="completed trials before any is pruned")
    n_warmup_steps: int = record(0, ge=0, description="steps of a trial before it may be pruned")


class PercentilePruner(MedianPruner):
    """Prune a trial whose best value so far is worse than a percentile of the others at the same step."""

    type: Literal["percentile"] = record("percentile")  # type: ignore[assignment]
    percentile: float = record(25.0, gt=0, le=100, description="percent of the trials that are kept")


class AshaPruner(Section):
    """Asynchronous successive halving (Li et al., 2020), by stopping.

    A trial passes a rung if it is among the best `1 / reduction_factor` of those that have reached the rung.
    """

    type: Literal["asha"] = record("asha")
    min_steps: int = record(1, gt=0, description="steps of the first rung")
    reduction_factor: int = record(
        3, ge=2, description="each rung is this many times as long as the one before"
    )


class PatientPruner(Section):
    """Prune a trial that has not become better for some evaluations."""

    type: Literal["patient"] = record("patient")
    patience: int = record(5, gt=0, description="evaluations without improvement")
    min_delta: float = record(0.0, ge=0, description="smaller changes do not count as improvements")


class HalvingPruner(Section):
    """Successive halving (Jamieson and Talwalkar, 2016), rung by rung.

    All trials of a bracket train up to the first rung; the best `1 / reduction_factor` of them go on from
    their checkpoints to the next rung, and so on; the others are pruned.
    """

    type: Literal["halving"] = record("halving")
    min_resource: int = record(
        1,
        gt=0,
        description="length of a trial up to the first rung, in epochs (in steps or rounds, where the "
        "config counts those)",
    )
    max_resource: int | None = record(
        None,
        gt=0,
        description="length of a whole trial, in epochs (steps, rounds), instead of the config's own",
    )
    reduction_factor: int = record(
        3,
        ge=2,
        description="one trial in this many is promoted at a rung, and trains this many times as long",
    )


class HyperbandPruner(HalvingPruner):
    """Hyperband (Li et al., 2018): brackets of halving, each with a later first rung than the last.

    The last bracket trains all its trials to the end; then the first one follows again.
    """

    type: Literal["hyperband"] = record("hyperband")  # type: ignore[assignment]


Pruner = (
    NoPruner | MedianPruner | PercentilePruner | AshaPruner | PatientPruner | HalvingPruner | HyperbandPruner
)


class ResourcesConfig(Section):
    """The resources of each trial; what is not given is left to the config and the machine."""

    cpu: int | None = record(None, gt=0, description="CPU threads of each process of a trial")
    gpu: int = record(0, ge=0, le=1, description="GPUs of each process of a trial, which no other trial uses")
    nproc: int | None = record(None, gt=0, description="processes of each trial, as `distributed.nproc`")


class TuningConfig(Section):
    """A search for the best values of other keys: `trainwright tune`. Each trial is a run of its own."""

    metric: str | list[str] = record(
        "val_loss",
        description="val_loss, or val_ and the name of a metric; a list is searched for trade-offs, and may "
        "also have latency_ms, parameters, model_bytes, train_seconds",
    )
    mode: AutoMode | list[AutoMode] = record("auto", description=f"{MODE}; a list for several metrics")
    constraints: dict[str, str] = record(
        default_factory=dict,
        description='bounds on metrics or measures that the best trial must keep, such as {parameters: "<= '
        '1e6"}',
    )
    trials: int | None = record(None, gt=0, description="number of trials; default: 20, or the whole grid")
    max_minutes: float | None = record(None, gt=0, description="begin no trial after this many minutes")
    target: float | None = record(None, description="propose no trial once one is as good as this")
    sampler: SamplerConfig = SamplerConfig()
    pruner: Annotated[Pruner, Field(discriminator="type")] = NoPruner()
    tuner: TunerConfig | None = record(
        None, description="a system that decides in place of sampler and pruner: {type: ray, scheduler: asha}"
    )
    folds: int | None = record(
        None,
        ge=2,
        description="cross-validate each trial: one run for each of this many folds of the rows outside the "
        "test split",
    )
    repeats: int = record(
        1, gt=0, description="runs of each trial, with experiment.seed and the seeds that follow it"
    )
    refit: bool = record(
        default=False,
        description="train the best configuration once more, on the validation rows, too, for as long as "
        "was best, and without early stopping",
    )
    parallel: int = placement(default=1, gt=0, description="trials at once, each in a process of its own")
    resources: ResourcesConfig = ResourcesConfig()
    horizon: int | None = record(
        None,
        gt=0,
        description="a trial is decided from the results of trials at least this many before it, "
        "so that this many may run at once; default: twice `parallel` when the study is created",
    )
    storage: str = record(
        SQLITE,
        description="where Optuna's tools read the study: sqlite (optuna.db in its folder), or a server, as "
        "postgresql://USER:${env:PASSWORD}@HOST/DATABASE",
    )
    order: Literal["horizon", "free"] = record(
        "horizon",
        description="horizon: a trial knows the results of those `horizon` before it, so that all are a "
        "function of the config; free: of all that have ended by then, which depends on the clock",
    )
    space: dict[str, Any] = record(
        description="by dotted key: a list of choices, or a range {low, high, log, step}; `when` names other "
        "keys and the values with which the parameter exists; `trainwright tune CONFIG --suggest` prints one",
    )

    def asked(self) -> dict[str, Any]:
        """Return what two studies must share to be the same; one may have more trials than the other."""
        return self.model_dump(mode="json", exclude=_NOT_ASKED)
