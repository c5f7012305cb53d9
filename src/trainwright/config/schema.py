"""The sections of a config: names, types, defaults and meaning; `fields` says how they are declared.

`data` and `training`, the longest ones, are in modules of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, Field, field_validator

from trainwright.config.data import ColumnConfig, DataConfig
from trainwright.config.fields import (
    ENDPOINT,
    MODE,
    PATH_SAFE,
    RANGE,
    Affects,
    AutoMode,
    Section,
    TypedSection,
    affects,
    bits,
    placement,
    record,
)
from trainwright.config.training import EarlyStoppingConfig, OptimizerConfig, TrainingConfig
from trainwright.config.tuning import TuningConfig

__all__ = [  # what others import from here, wherever it is defined
    "PLACEMENT",
    "CheckpointConfig",
    "ColumnConfig",
    "DataConfig",
    "DistributedConfig",
    "EarlyStoppingConfig",
    "EvaluationConfig",
    "ExperimentConfig",
    "LoggingConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "Section",
    "TrackerConfig",
    "TrainingConfig",
    "bounds",
    "power_of_two",
]


class ExperimentConfig(Section):
    """The name and the seed of the run."""

    name: str = record("", pattern=PATH_SAFE, description="groups runs; default: the config file's stem")
    seed: int = bits(default=0, ge=0, lt=2**63, description="the root of all randomness of the run")


class ModelConfig(TypedSection):
    """The architecture, its framework and its initial weights."""

    type: str = bits(description="a short name (mlp, transformer ...) or package.module:Class")
    framework: str | None = bits(default=None, description="overrides the framework that `type` implies")
    init_from: str | None = bits(
        default=None,
        description="initial weights: a run (path, id, prefix, `last`), a safetensors file, or an index "
        "of such files (.safetensors.index.json)",
    )


class EvaluationConfig(Section):
    """The times at which the validation split is evaluated (always at the end), and the metrics."""

    every_n_steps: int | None = bits(default=None, gt=0, description="default: after each epoch")
    every_n_epochs: int | None = bits(
        default=None, gt=0, description="instead of every_n_steps; counted from the start of the run"
    )
    metrics: list[str] | None = bits(
        default=None,
        description="default: accuracy and f1 for classes, rmse, mae and r2 for values; your own as "
        "package.module:function of (targets, predictions), or one of scikit-learn's "
        "(sklearn.metrics:cohen_kappa_score)",
    )
    positive: bool | int | float | str | None = bits(
        default=None,
        description="of two classes, the one that f1, precision, recall, average_precision, curves and "
        "thresholds are of; default: 1 of 0 and 1, true of booleans; else the one whose label says so (yes, "
        "bad, fraud, churn, spam ...); else the rarer one of the training rows",
    )
    batch_size: int | None = bits(
        default=None,
        gt=0,
        description="rows of one forward pass; default: 4 microbatches, as no gradients are kept",
    )
    explain: bool = record(
        False,
        description="at the end: permutation importance, SHAP values, partial dependence; "
        "later: trainwright explain",
    )


class CheckpointConfig(Section):
    """The times of saves, the number that is kept, and the choice of the best model."""

    every_n_steps: int | None = record(
        None, gt=0, description="steps between two checkpoints; may be combined with every_n_minutes"
    )
    every_n_epochs: int | None = record(
        None, gt=0, description="epochs between two checkpoints; may be combined with the others"
    )
    every_n_minutes: Literal["auto"] | Annotated[float, Field(gt=0)] | None = record(
        10.0,
        description="minutes between two checkpoints; auto: by what the first save costs, and how often a "
        "process fails; null: by steps only",
    )
    mtbf_hours: float | None = record(
        None,
        gt=0,
        description="mean hours between two failures of one process, for `every_n_minutes: auto`; "
        "default: 10000",
    )
    keep_last: int = record(2, gt=0, description="resume checkpoints to keep")
    save_top_k: int = bits(
        default=1,
        ge=0,
        description="best models to keep; 0: none, and the final model is tested",
    )
    compression: Literal["none", "zstd"] = record(
        "none", description="how checkpoints are compressed when they are put into an object store"
    )
    metric: str = bits(default="val_loss", description="the metric that makes a model the best")
    mode: AutoMode = bits(default="auto", description=MODE)


class LoggingConfig(Section):
    """The cadence of progress lines and logged losses."""

    every_n_steps: int = record(
        10, gt=0, description="steps between two progress lines, and between two logged losses"
    )
    histograms: bool = record(
        False, description="weight histograms at each evaluation; always on if a tracker shows them"
    )


class TrackerConfig(TypedSection):
    """An outside service or folder that the journal is forwarded to."""


class DistributedConfig(Section):
    """The processes that train, and how they communicate; the bits do not depend on it."""

    enabled: bool = placement(default=False, description="the same as `nproc: auto`, if `nproc` is not given")
    nproc: Literal["auto"] | int | Annotated[str, Field(pattern=RANGE)] = placement(
        default=1,
        description="processes on this machine, a power of two; auto: one for each GPU; 1..4: begin with as "
        "many as the virtual ranks allow, and continue with fewer after one has died",
    )
    nnodes: int = placement(
        default=1,
        ge=1,
        description="machines that train together, each with `nproc` processes; start the same command once "
        "on each of them",
    )
    rdzv_endpoint: str | None = placement(
        default=None, pattern=ENDPOINT, description="HOST:PORT, a free port of one node: they meet there"
    )
    rdzv_id: str = placement(
        default="trainwright", pattern=PATH_SAFE, description="tells apart runs that meet at one endpoint"
    )
    rdzv_timeout: int = placement(
        default=600, gt=0, description="seconds for which a node waits for the endpoint, and for the others"
    )
    strategy: str = placement(
        default="ddp",
        description="ddp: each process has the whole model, and a part of each batch; or a plugin's name",
    )
    max_restarts: int = placement(
        default=3, ge=0, description="how often the processes are started again after one has died"
    )
    backend: Literal["auto", "gloo", "nccl"] = placement(
        default="auto", description="auto: nccl on CUDA, else gloo"
    )
    virtual_ranks: Literal["auto"] | int = bits(
        "auto",
        description="fixed parts of each batch, a power of two: gradients are summed over them in the same "
        "order, whatever the number of processes; auto: as many as processes when the run is created",
    )

    @field_validator("virtual_ranks", "nproc")
    @classmethod
    def _power_of_two(cls, value: str | int) -> str | int:
        if isinstance(value, int) and (value < 1 or value & (value - 1)):
            raise ValueError(f"{value} is not a power of two: 1, 2, 4, 8 ...")
        if value != "auto" and bounds(value)[0] > bounds(value)[1]:
            raise ValueError(f"the range {value} is empty: give the smaller number first")
        return value

    def processes(self, most: int | None = None) -> int:
        """Return the number of processes to start on this machine.

        Args:
            most: The number of processes that are left, if given; the result stays within `nproc`.
        """
        assert isinstance(self.virtual_ranks, int), "config.load resolves auto"
        least, greatest = bounds(self.nproc)
        wanted = greatest if most is None else max(least, min(most, greatest))
        return max(power_of_two(min(wanted, self.virtual_ranks)), power_of_two(2 * least - 1))


def bounds(nproc: int | str) -> tuple[int, int]:
    """Return the smallest and the greatest number of processes that `distributed.nproc` allows."""
    least, _, greatest = str(nproc).partition("..")
    return int(least), int(greatest or least)


def power_of_two(number: int) -> int:
    """Return the greatest power of two that is at most `number`, which is above 0."""
    return 1 << (number.bit_length() - 1)


class RunConfig(Section):
    """Everything that defines a run."""

    experiment: ExperimentConfig = ExperimentConfig()
    data: DataConfig | None = Field(
        default=None,
        description="where the rows come from, and how they are split and prepared; `train` needs it",
    )
    model: ModelConfig = Field(
        description="what is trained, such as {type: mlp}; `trainwright config names model` lists all"
    )
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    tracking: list[TrackerConfig] = record([])
    distributed: DistributedConfig = DistributedConfig()
    tuning: TuningConfig | None = record(
        None, description="what `trainwright tune` searches, and how; other commands ignore it"
    )


def _keys(kind: Affects, section: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield the dotted keys of the fields that are declared as `kind`, but for those in optional sections."""
    for name, field in section.model_fields.items():
        if affects(field) == kind:
            yield f"{path}{name}"
        elif affects(field) is None and isinstance(field.annotation, type):
            yield from _keys(kind, field.annotation, f"{path}{name}.")


PLACEMENT = (*_keys("placement", DataConfig, "data."), *_keys("placement", RunConfig))
