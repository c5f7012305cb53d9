"""The sections of a config: names, types, defaults and meaning; `fields` says how they are declared.

`data` and `training`, the longest ones, are in modules of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from trainwright.config.data import ColumnConfig, DataConfig
from trainwright.config.distributed import DistributedConfig, VirtualConfig, bounds, power_of_two
from trainwright.config.fields import (
    MODE,
    PATH_SAFE,
    Affects,
    AutoMode,
    Section,
    TypedSection,
    affects,
    bits,
    record,
)
from trainwright.config.training import (
    EarlyStoppingConfig,
    NamedOptimizer,
    OptimizerConfig,
    TrainingConfig,
)
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
    "InitFromConfig",
    "LoggingConfig",
    "ModelConfig",
    "NamedOptimizer",
    "OptimizerConfig",
    "RunConfig",
    "Section",
    "TrackerConfig",
    "TrainingConfig",
    "VirtualConfig",
    "bounds",
    "power_of_two",
]


class ExperimentConfig(Section):
    """The name and the seed of the run."""

    name: str = record("", pattern=PATH_SAFE, description="groups runs; default: the config file's stem")
    seed: int = bits(default=0, ge=0, lt=2**63, description="the root of all randomness of the run")


class InitFromConfig(Section):
    """The weights that a model begins with; the source alone may stand for it: `init_from: resnet.pth`."""

    source: str = bits(
        description="a run (path, id, prefix, `last`); a file of weights (.safetensors, or its index "
        ".safetensors.index.json; .pt, .pth, .ckpt and .bin of PyTorch); a folder of such files, as "
        "save_pretrained writes them, also one of adapters (peft)",
    )
    skip: list[str] = bits(
        default_factory=list,
        description="patterns of tensors, or of modules, that keep the values that they were drawn with",
    )
    rename: dict[str, str] | None = bits(
        default=None,
        description="name in the source -> name in the model, of a tensor or a module; a name with other "
        "signs than letters, digits, `_`, `-` and `.` is a regular expression",
    )
    strict: bool = bits(
        default=True,
        description="refuse tensors of the source that the model does not have, and those that it lacks; "
        "false: leave them out, and say so",
    )


class ModelConfig(TypedSection):
    """The architecture, its framework and its initial weights."""

    type: str = bits(description="a short name (mlp, transformer ...) or package.module:Class")
    framework: str | None = bits(default=None, description="overrides the framework that `type` implies")
    init_from: InitFromConfig | None = None


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
