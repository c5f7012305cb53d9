"""Keys of `training` that say which parameters are trained, and how."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from trainwright.config.fields import Section, bits, record

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


# The plain keys, which `schema` puts into the section.
MAX_GRAD_VALUE = bits(default=None, gt=0, description="clips each element of the gradient to [-value, value]")
LOG_GRAD_NORM = record(
    False,
    description="log the gradient's global L2 norm (before clipping) as grad_norm; max_grad_norm does so too",
)
NO_DECAY = bits(
    default="auto",
    description="parameters without weight decay: those of fewer than two dimensions (biases, gains of "
    "norms) and of normalization layers; none: every parameter decays; or patterns of names",
)
PARAMETER_GROUPS = bits(
    default_factory=list,
    description="groups of parameters with settings of their own; the first group that matches a parameter "
    "counts, and other parameters follow `training`",
)
HEADS = bits(
    default_factory=dict,
    description="outputs of the model beside its first one, which is the task's: a loss and metrics for each",
)
LAYER_DECAY = bits(
    default=None,
    gt=0,
    le=1,
    description="factor on the learning rate from each layer to the one below it: docs/training.md",
)
FREEZE = bits(default_factory=list, description="parameters that are not trained, forever or for some steps")
COMPILE = bits(
    default=False, description="compile the training step with torch.compile; lowers the tier to `order`"
)
ACTIVATION_CHECKPOINTING = bits(
    default_factory=list,
    description="patterns of modules that compute their activations again in the backward pass, for less "
    "memory: the same bits",
)
