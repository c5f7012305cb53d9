"""The section `training` of a config: how long and how a model is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainwright.config.fields import DEVICE, MODE, AutoMode, Section, TypedSection, bits, placement, record
from trainwright.config.schedules import ConstantSchedule, Schedule

Patterns = str | Annotated[list[str], Field(min_length=1)]
NoDecay = Literal["auto", "none"] | list[str]
MATCH = (
    "a pattern (`*`, `?`, `[ab]`), or a list of them, that names parameters, or modules together "
    "with all parameters in them"
)


class ParameterGroup(Section):
    """Parameters with a learning rate, a weight decay or options of their own."""

    match: Patterns = bits(description=MATCH)
    learning_rate: float | None = bits(
        default=None,
        ge=0,
        description="used instead of training.learning_rate; the scheduler scales it in the same way",
    )
    lr_ratio: float | None = bits(default=None, ge=0, description="or: a factor on training.learning_rate")
    weight_decay: float | None = bits(default=None, ge=0, description="instead of training.weight_decay")
    options: dict[str, Any] = bits(
        default_factory=dict, description="options of the optimizer, instead of those of training.optimizer"
    )

    @model_validator(mode="after")
    def _check_rate(self) -> ParameterGroup:
        if self.learning_rate is not None and self.lr_ratio is not None:
            raise ValueError("learning_rate and lr_ratio are both given; keep one")
        return self


class FreezeConfig(Section):
    """Parameters that are not trained; the pattern alone may stand for it: `freeze: backbone.*`."""

    match: Patterns = bits(description=MATCH)
    until_step: int | None = bits(
        default=None, gt=0, description="the step after which they are trained; default: never"
    )
    statistics: bool = bits(
        default=False,
        description="the batch normalization in these modules keeps its running statistics, too, and "
        "normalizes by them",
    )


class HeadConfig(Section):
    """Another output of the model, by its name, with a loss of its own; the name of that may stand for it."""

    target: str | None = bits(
        default=None, description="the named array that holds its targets; default: that of the head's name"
    )
    task: Literal["auto", "classification", "regression", "multilabel"] = bits(
        default="auto",
        description="auto: whole numbers are classes, a row of whole numbers labels, other numbers values",
    )
    loss: str = bits(default="auto", description="as training.loss")
    loss_params: dict[str, Any] = bits(default_factory=dict, description="as training.loss_params")
    weight: float = bits(default=1.0, ge=0, description="of its loss in the sum; the first output's is 1")
    metrics: list[str] | None = bits(default=None, description="as evaluation.metrics; default: the task's")


class EmaConfig(Section):
    """An exponential moving average of the weights, which is the model; `ema: 0.999` is short for it."""

    decay: float = bits(gt=0, lt=1, description="how much of the average each step keeps")
    warmup: bool = bits(
        default=False,
        description="begin with a smaller decay: min(decay, (1 + step) / (10 + step)), with steps counted "
        "from 1",
    )


class OptimizerConfig(TypedSection):
    """The optimizer; its options (momentum, betas ...) may be written inline."""

    type: str = bits(default="adamw", description="adamw, adam, sgd ...")


class NamedOptimizer(TypedSection):
    """One of several optimizers: of the parameters that `match` names; the rest is as in `training`."""

    type: str = bits(description="as training.optimizer.type, which is the default")
    match: Patterns = bits(description=MATCH)
    learning_rate: float | None = bits(
        default=None, gt=0, description="instead of training.learning_rate; the scheduler varies it alike"
    )
    weight_decay: float | None = bits(default=None, ge=0, description="instead of training.weight_decay")


class EarlyStoppingConfig(Section):
    """The end of training when `metric` has not improved for `patience` evaluations."""

    metric: str = bits(default="val_loss", description="val_loss, or val_ and the name of a metric")
    patience: int = bits(default=5, ge=1, description="evaluations without improvement before it stops")
    mode: AutoMode = bits(default="auto", description=MODE)
    min_delta: float = bits(default=0.0, ge=0, description="smaller changes do not count as improvements")


class TrainingConfig(Section):
    """The training of the model: its length, its loss and its optimizer."""

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
    optimizers: dict[str, NamedOptimizer] = bits(
        default_factory=dict,
        description="several optimizers by name, each of some parameters, instead of `optimizer`: "
        "docs/own_loop.md",
    )
    scheduler: Annotated[Schedule, Field(discriminator="type")] = ConstantSchedule()
    loss: str = bits(
        default="auto",
        description="auto: the task's own (cross_entropy for classes, mse for values ...), or your own as "
        "package.module:function, which returns the mean over the samples: torch calls it with what the "
        "model returns and the batch, a mapping of tensors; Keras with (targets, outputs), as it calls "
        "losses; for boosters it is `model.params.objective`",
    )
    loss_params: dict[str, Any] = bits(
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
    heads: dict[str, HeadConfig] = bits(
        default_factory=dict,
        description="outputs of the model beside its first one, which is the task's: a loss and metrics "
        "for each",
    )
    max_grad_norm: float | None = bits(default=None, gt=0, description="clips the gradient's global L2 norm")
    max_grad_value: float | None = bits(
        default=None, gt=0, description="clips each element of the gradient to [-value, value]"
    )
    log_grad_norm: bool = record(
        False,
        description="log the gradient's global L2 norm (before clipping) as grad_norm; max_grad_norm does so "
        "too",
    )
    no_decay: NoDecay = bits(
        default="auto",
        description="parameters without weight decay: those of fewer than two dimensions (biases, gains of "
        "norms) and of normalization layers; none: every parameter decays; or patterns of names",
    )
    parameter_groups: list[ParameterGroup] = bits(
        default_factory=list,
        description="groups of parameters with settings of their own; the first group that matches a "
        "parameter counts, and other parameters follow `training`",
    )
    layer_decay: float | None = bits(
        default=None,
        gt=0,
        le=1,
        description="factor on the learning rate from each layer to the one below it: docs/training.md",
    )
    freeze: list[FreezeConfig] = bits(
        default_factory=list, description="parameters that are not trained, forever or for some steps"
    )
    ema: EmaConfig | None = None
    compile: bool = bits(
        default=False, description="compile the training step with torch.compile; lowers the tier to `order`"
    )
    activation_checkpointing: list[str] = bits(
        default_factory=list,
        description="patterns of modules that compute their activations again in the backward pass, for less "
        "memory: the same bits",
    )
    early_stopping: EarlyStoppingConfig | None = None
    precision: Literal["fp32", "tf32", "bf16", "fp16", "mixed"] = bits(
        default="fp32", description="mixed: fp16 on CUDA, bf16 on CPU; tf32: fp32, faster and rounded on CUDA"
    )
    device: str = placement(default="auto", pattern=DEVICE, description="auto: CUDA if available, else CPU")
    threads: int | None = placement(
        default=None,
        gt=0,
        le=1024,
        description="CPU threads; default: OMP_NUM_THREADS, or all that are available at the first attempt, "
        "then fixed",
    )
    determinism: Literal["best", "bitwise"] = bits(
        default="best", description="bitwise: refuse what cannot be bit-identical"
    )

    @property
    def largest_microbatch(self) -> int:
        """The most samples of one forward and backward pass: the whole batch, unless it is cut."""
        return self.microbatch_size or self.batch_size
