"""The section `training` of a config: how long and how a model is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trainwright.config.fields import DEVICE, MODE, AutoMode, Section, TypedSection, bits, placement, record
from trainwright.config.optimization import (
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
from trainwright.config.schedules import ConstantSchedule, Schedule


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
