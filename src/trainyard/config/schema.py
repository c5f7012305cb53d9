"""The sections of a config: names, types, defaults and meaning; `fields` says how they are declared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

from trainyard.config.fields import (
    DEVICE,
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
from trainyard.config.optimization import (
    ACTIVATION_CHECKPOINTING,
    COMPILE,
    FREEZE,
    HEADS,
    LAYER_DECAY,
    LOG_GRAD_NORM,
    MAX_GRAD_VALUE,
    NO_DECAY,
    PARAMETER_GROUPS,
    EmaConfig,
    FreezeConfig,
    HeadConfig,
    NoDecay,
    ParameterGroup,
)
from trainyard.config.sampling import SamplingConfig
from trainyard.config.schedules import ConstantSchedule, Schedule
from trainyard.config.splits import SplitConfig
from trainyard.config.transforms import CACHE, IGNORE_INDEX, ON_CORRUPT, TRANSFORMS, Transform
from trainyard.config.tuning import TuningConfig


class ExperimentConfig(Section):
    """The name and the seed of the run."""

    name: str = record("", pattern=PATH_SAFE, description="groups runs; default: the config file's stem")
    seed: int = bits(default=0, ge=0, lt=2**63, description="the root of all randomness of the run")


ColumnType = Literal["number", "boolean", "category", "time", "date", "text", "id", "ignore"]
Encode = Literal["auto", "onehot", "ordinal", "category", "target", "frequency"]


class ColumnConfig(Section):
    """What a column holds, and how it is written; its type alone may stand for it: `{zip: category}`."""

    type: ColumnType = bits(
        description="number, boolean, category, time (or date), text (free text), id or ignore (left out)"
    )
    format: str | None = bits(
        default=None, description="format of times, such as %d/%m/%Y; default: inferred from all cells"
    )
    unit: Literal["s", "ms", "us"] | None = bits(
        default=None, description="unit of times that are numbers since 1970"
    )
    decimal: Literal[".", ","] | None = bits(
        default=None, description="decimal mark of numbers in text; default: inferred from all cells"
    )
    encode: Encode | None = bits(
        default=None, description="how categories become numbers; default: as data.encode says"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_its_type_alone(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_options(self) -> ColumnConfig:
        for name in ("format", "unit"):
            if getattr(self, name) is not None and self.type not in ("time", "date"):
                raise ValueError(
                    f"{name} is for columns of type time, not {self.type}; leave it out, or change the type"
                )
        if self.encode is not None and self.type != "category":
            raise ValueError(
                f"encode is for columns of type category, not {self.type}; leave it out, or change the type"
            )
        if self.decimal is not None and self.type != "number":
            raise ValueError(
                f"decimal is for columns of type number, not {self.type}; leave it out, or change the type"
            )
        return self


class DataConfig(TypedSection):
    """The source of the rows, and how they are prepared."""

    type: str = bits(
        default="",
        description="digits, wine, ..., csv, parquet, npz, or package.module:function; "
        "default: by the path's ending",
    )
    path: str | None = record(
        None, description="one file, to be split: a path, or a URL (s3://, gs://, az://)"
    )
    train_path: str | None = record(None, description="where the training rows are, instead of path")
    val_path: str | None = record(None, description="where the validation rows are, together with train_path")
    test_path: str | None = record(None, description="where the test rows are, together with train_path")
    target: str | Annotated[list[str], Field(min_length=1)] = bits(
        default="target",
        description="the column to predict; a list: several, of numbers (regression) or of 0 and 1 "
        "(multilabel)",
    )
    weight: str | None = bits(
        default=None,
        description="column, or named array, of sample weights, in the loss and in metrics (as "
        "sample_weight of scikit-learn); it is not used as a feature",
    )
    task: str = bits(
        default="auto",
        description="classification, regression, multilabel, segmentation, language_modeling ...; auto: "
        "inferred from the target",
    )
    target_transform: Literal["log1p", "log", "sqrt", "quantile", "standardize"] | None = bits(
        default=None,
        description="regression: a transform of the target that models train on, fitted on the training "
        "rows; metrics and predictions are in the target's original units, losses on the transformed scale; "
        "quantile: normal scores of the ranks",
    )
    split: SplitConfig = SplitConfig()
    sampling: SamplingConfig | None = None
    features: list[str] | None = bits(
        default=None, min_length=1, description="the columns to learn from; default: all but the target"
    )
    exclude: list[str] = bits(default_factory=list, description="columns to leave out")
    columns: dict[str, ColumnConfig] = bits(
        default_factory=dict,
        description="what columns hold: {signup: date, zip: category, note: text, code: ignore}, or "
        "{signup: {type: "
        'date, format: "%d/%m/%Y"}}; others are inferred from the training rows (`trainyard config show` '
        "prints them)",
    )
    missing_values: list[str | int | float] | dict[str, list[str | int | float]] = bits(
        default_factory=list,
        description='values that mean a missing one: {age: [-999], city: ["?"]}, or a list for all columns',
    )
    missing_target: Literal["drop", "error"] = bits(
        default="error", description="rows whose target is missing: drop them (counted), or an error"
    )
    standardize: bool = bits(
        default=True,
        description="zero mean and unit variance for numeric columns, fitted on the training rows ("
        "images, whole numbers in arrays and map-style datasets are taken as they are); torch also "
        "standardizes the target of a regression (losses are in units of its variance, metrics and "
        "predictions in the original units)",
    )
    impute: Literal["mean", "median", "most_frequent", "keep"] | None = bits(
        default=None,
        description="how to fill missing values; keep: leave them to the model, which must accept them; "
        "default: they are an error, or keep for models that accept them",
    )
    encode: Encode = bits(
        default="auto",
        description="how category columns become numbers; onehot: a feature for each category; ordinal: "
        "their index; category: codes, for models that accept categories (their default); target: the mean "
        "target of the category's training rows (for a training row: of other folds); frequency: its share "
        "of them; auto: onehot for up to 500 categories, target for more; a category that no training row "
        "has becomes all zeros (onehot), -1 (ordinal), missing (category), the mean target (target) or 0 "
        "(frequency), and predictions warn of it",
    )

    transforms: list[Transform] = TRANSFORMS
    on_corrupt: Literal["error", "skip"] = ON_CORRUPT
    cache: Literal["none", "memory"] = CACHE
    ignore_index: int | None = IGNORE_INDEX
    workers: int = placement(
        default=0,
        ge=0,
        le=1024,
        description="processes that read samples ahead of training (map-style data sets and shards), for "
        "each process that trains, like num_workers of a DataLoader; 0: the step reads them itself; changes "
        "no bit",
    )
    prefetch: int = placement(
        default=2, ge=1, le=1024, description="(micro)batches that each worker reads ahead (prefetch_factor)"
    )
    timeout: float = placement(
        default=300.0,
        gt=0,
        description="seconds that one sample may take, in a worker or in the process itself; after that the "
        "run ends and names the sample",
    )
    collate: str | None = bits(
        default=None,
        description="map-style data sets: package.module:function that makes a batch of a list of samples "
        "(collate_fn of a DataLoader): (features, target), or a mapping of named arrays; it is called for "
        "each microbatch",
    )

    @property
    def targets(self) -> list[str]:
        """The columns to predict."""
        return [self.target] if isinstance(self.target, str) else list(self.target)

    @property
    def target_name(self) -> str:
        """The column to predict, or the names of several, joined by commas."""
        return ", ".join(self.targets)


class ModelConfig(TypedSection):
    """The model."""

    type: str = bits(description="a short name (mlp, transformer ...) or package.module:Class")
    framework: str | None = bits(default=None, description="overrides the framework that `type` implies")
    init_from: str | None = bits(
        default=None, description="initial weights: a run (path, id, prefix, `last`) or a safetensors file"
    )


class OptimizerConfig(TypedSection):
    """The optimizer; its options (momentum, betas ...) may be written inline."""

    type: str = bits(default="adamw", description="adamw, adam, sgd ...")


class EarlyStoppingConfig(Section):
    """The end of training when `metric` has not improved for `patience` evaluations."""

    metric: str = bits(default="val_loss", description="val_loss, or val_ and the name of a metric")
    patience: int = bits(default=5, ge=1, description="evaluations without improvement before it stops")
    mode: AutoMode = bits(default="auto", description=MODE)
    min_delta: float = bits(default=0.0, ge=0, description="smaller changes do not count as improvements")


class TrainingConfig(Section):
    """How the model is trained."""

    epochs: int | None = bits(
        default=None,
        gt=0,
        description="passes over the training split; default 10, unless max_steps is given",
    )
    max_steps: int | None = bits(default=None, gt=0, description="number of steps, instead of epochs")
    max_minutes: float | None = record(
        None,
        gt=0,
        description="minutes of training, over all attempts, after which the run is stopped: it "
        "finishes the step, evaluates, saves, tests, and ends as `stopped`; each resume allows that "
        "many minutes more",
    )
    batch_size: int = bits(
        default=32,
        gt=0,
        description="samples of one step, over all processes; the last partial batch of an epoch is kept",
    )
    drop_last: bool = bits(
        default=False,
        description="leave out the last batch of an epoch if it is smaller: an epoch then has rows // "
        "batch_size steps (different rows are left out each time; evaluations use every row)",
    )
    microbatch_size: int | None = bits(
        default=None, gt=0, description="samples of one forward/backward; default: the whole batch"
    )
    learning_rate: float = bits(
        default=1e-3,
        gt=0,
        allow_inf_nan=False,
        description="the highest learning rate; the scheduler varies it",
    )
    weight_decay: float = bits(
        default=0.0,
        ge=0,
        allow_inf_nan=False,
        description="strength of the weight decay; decoupled or not, as the optimizer does it",
    )
    optimizer: OptimizerConfig = OptimizerConfig()
    scheduler: Annotated[Schedule, Field(discriminator="type")] = ConstantSchedule()
    loss: str = bits(
        default="auto",
        description="auto: the task's own (cross_entropy for classes, mse for values ...), or your own as "
        "package.module:function, which returns the mean over the samples: torch calls it with what the "
        "model returns and the batch, a mapping of tensors; Keras with (targets, outputs), as it calls "
        "losses; for boosters it is `model.params.objective`",
    )
    loss_params: dict[str, Any] = bits(
        is_new=True,
        default_factory=dict,
        description="the options of a loss of your own; they may also be written beside its type: "
        "`loss: {type: package.module:Loss, alpha: 0.5}`",
    )
    label_smoothing: float = bits(
        default=0.0,
        ge=0,
        lt=1,
        description="cross_entropy and focal: the share of the probability that is spread over all classes; "
        "binary_cross_entropy: how far labels move towards 0.5; also in val_loss",
    )
    focal_gamma: float | None = bits(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="focal: the exponent; the larger it is, the less rows count that are predicted well; "
        "default 2",
    )
    class_weights: Literal["balanced"] | dict[str, float] | None = bits(
        default=None,
        description="classification: weights of the training rows by class, as {label: weight}; balanced: "
        "rows / (classes * rows of the class); multiplied by data.weight; metrics do not use them",
    )
    heads: dict[str, HeadConfig] = HEADS
    max_grad_norm: float | None = bits(default=None, gt=0, description="clips the gradient's global L2 norm")
    max_grad_value: float | None = MAX_GRAD_VALUE
    log_grad_norm: bool = LOG_GRAD_NORM
    no_decay: NoDecay = NO_DECAY
    parameter_groups: list[ParameterGroup] = PARAMETER_GROUPS
    layer_decay: float | None = LAYER_DECAY
    freeze: list[FreezeConfig] = FREEZE
    ema: EmaConfig | None = None
    compile: bool = COMPILE
    activation_checkpointing: list[str] = ACTIVATION_CHECKPOINTING
    early_stopping: EarlyStoppingConfig | None = None
    precision: Literal["fp32", "tf32", "bf16", "fp16", "mixed"] = bits(
        default="fp32", description="mixed: fp16 on CUDA, bf16 on CPU; tf32: fp32, faster and rounded on CUDA"
    )
    device: str = placement(default="auto", pattern=DEVICE, description="auto: CUDA if available, else CPU")
    threads: int | None = placement(
        default=None,
        gt=0,
        le=1024,
        description="CPU threads; default: all that are available at the first attempt, then fixed",
    )
    determinism: Literal["best", "bitwise"] = bits(
        default="best", description="bitwise: refuse what cannot be bit-identical"
    )

    @property
    def largest_microbatch(self) -> int:
        """The most samples of one forward and backward pass: the whole batch, unless it is cut."""
        return self.microbatch_size or self.batch_size


class EvaluationConfig(Section):
    """When the validation split is evaluated (always at the end), and with which metrics."""

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
    batch_size: int | None = bits(
        default=None,
        gt=0,
        description="rows of one forward pass; default: 4 microbatches, as no gradients are kept",
    )
    explain: bool = record(
        False,
        description="at the end: permutation importance, SHAP values, partial dependence; "
        "later: trainyard explain",
    )


class CheckpointConfig(Section):
    """When to save, what to keep, and which model is the best."""

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
    """What is logged, and how often."""

    every_n_steps: int = record(
        10, gt=0, description="steps between two progress lines, and between two logged losses"
    )
    histograms: bool = record(
        False, description="weight histograms at each evaluation; always on if a tracker shows them"
    )


class TrackerConfig(TypedSection):
    """An outside service or folder that the journal is forwarded to."""


class DistributedConfig(Section):
    """How many processes train, and how they communicate; the bits do not depend on it."""

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
        default="trainyard", pattern=PATH_SAFE, description="tells apart runs that meet at one endpoint"
    )
    rdzv_timeout: int = placement(
        default=600, gt=0, description="seconds for which a node waits for the endpoint, and for the others"
    )
    strategy: Literal["ddp"] = placement(
        default="ddp", description="ddp: each process has the whole model, and a part of each batch"
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
        description="what is trained, such as {type: mlp}; `trainyard config names model` lists all"
    )
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    tracking: list[TrackerConfig] = record([])
    distributed: DistributedConfig = DistributedConfig()
    tuning: TuningConfig | None = record(
        None, description="what `trainyard tune` searches, and how; other commands ignore it"
    )


def _keys(kind: Affects, section: type[BaseModel], path: str = "") -> Iterator[str]:
    """Yield the dotted keys of the fields that are declared as `kind`, but for those in optional sections."""
    for name, field in section.model_fields.items():
        if affects(field) == kind:
            yield f"{path}{name}"
        elif affects(field) is None and isinstance(field.annotation, type):
            yield from _keys(kind, field.annotation, f"{path}{name}.")


PLACEMENT = (*_keys("placement", DataConfig, "data."), *_keys("placement", RunConfig))
