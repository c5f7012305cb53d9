"""The sections `training.scheduler`: how the learning rate varies, one class for each type."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from trainwright.config.fields import MODE, AutoMode, Section, bits

Share = Annotated[float, Field(ge=0, le=1)]


class ConstantSchedule(Section):
    """A constant learning rate, after an optional linear warm-up."""

    uses_length: ClassVar[bool] = False  # of the whole training, for other things than the warm-up
    type: Literal["constant"] = bits("constant")
    warmup_steps: int = bits(default=0, ge=0, description="steps of linear warm-up from 0")
    warmup_ratio: float = bits(
        default=0.0, ge=0, lt=1, description="the warm-up as a share of all steps, instead of warmup_steps"
    )

    @model_validator(mode="after")
    def _check_warmup(self) -> ConstantSchedule:
        if self.warmup_steps and self.warmup_ratio:
            raise ValueError("warmup_steps and warmup_ratio are both given; keep one")
        return self

    @property
    def varies(self) -> bool:
        """True if the learning rate varies at all."""
        return self.type != "constant" or self.warmup_steps > 0 or self.warmup_ratio > 0

    @property
    def depends_on_length(self) -> bool:
        """True if the learning rate of a step depends on the total number of steps."""
        return self.uses_length or self.warmup_ratio > 0


class LinearSchedule(ConstantSchedule):
    """A linear decay to `final_lr_ratio` of the learning rate."""

    uses_length: ClassVar[bool] = True
    type: Literal["linear"] = bits("linear")  # type: ignore[assignment]
    final_lr_ratio: float = bits(
        default=0.0, ge=0, le=1, description="last learning rate, as a share of the first"
    )


class CosineSchedule(LinearSchedule):
    """A cosine decay to `final_lr_ratio` of the learning rate (Loshchilov and Hutter, 2017; no restarts)."""

    type: Literal["cosine"] = bits("cosine")  # type: ignore[assignment]


class CosineRestartsSchedule(LinearSchedule):
    """A cosine decay that starts again from the top (SGDR; Loshchilov and Hutter, 2017).

    There are `cycles` of equal length up to the end of training; or the first has `cycle_steps`, and each is
    `cycle_factor` times as long as the one before.
    """

    type: Literal["cosine_restarts"] = bits("cosine_restarts")  # type: ignore[assignment]
    cycles: int | None = bits(default=None, gt=0, description="number of cycles; default: 2")
    cycle_steps: int | None = bits(
        default=None, gt=0, description="steps of the first cycle, instead of cycles"
    )
    cycle_factor: int = bits(
        default=1, ge=1, description="length of each cycle, as a multiple of the one before"
    )

    @model_validator(mode="after")
    def _check_cycles(self) -> CosineRestartsSchedule:
        if self.cycles is not None and self.cycle_steps is not None:
            raise ValueError("cycles and cycle_steps are both given; keep one")
        if self.cycle_steps is None and self.cycle_factor > 1:
            raise ValueError("cycle_factor also needs cycle_steps, the length of the first cycle")
        return self

    @property
    def depends_on_length(self) -> bool:
        """True if the learning rate of a step depends on the total number of steps."""
        return self.cycle_steps is None or self.warmup_ratio > 0


class OneCycleSchedule(ConstantSchedule):
    """A rise from `1 / div_factor` of the learning rate to all of it, and a fall (Smith and Topin, 2018)."""

    uses_length: ClassVar[bool] = True
    type: Literal["one_cycle"] = bits("one_cycle")  # type: ignore[assignment]
    pct_start: Share = bits(default=0.3, description="share of the steps in which the learning rate rises")
    anneal_strategy: Literal["cos", "linear"] = bits(default="cos", description="the shape of rise and fall")
    div_factor: float = bits(default=25.0, ge=1, description="the highest learning rate / the first one")
    final_div_factor: float = bits(default=1e4, ge=1, description="the first learning rate / the last one")


class StepSchedule(ConstantSchedule):
    """A decay by the factor `gamma` every `step_size` steps."""

    type: Literal["step"] = bits("step")  # type: ignore[assignment]
    step_size: int = bits(gt=0, description="steps between two drops")
    gamma: float = bits(default=0.1, gt=0, le=1, description="factor on the learning rate at each drop")


class MultistepSchedule(ConstantSchedule):
    """A decay by the factor `gamma` at each of the steps `milestones`."""

    type: Literal["multistep"] = bits("multistep")  # type: ignore[assignment]
    milestones: list[Annotated[int, Field(gt=0)]] = bits(
        min_length=1, description="the steps (not epochs) from which the learning rate is lower"
    )
    gamma: float = bits(default=0.1, gt=0, le=1, description="factor on the learning rate at each drop")


class ExponentialSchedule(ConstantSchedule):
    """A smooth decay by the factor `gamma` in every `decay_steps` steps."""

    type: Literal["exponential"] = bits("exponential")  # type: ignore[assignment]
    gamma: float = bits(gt=0, le=1, description="factor on the learning rate over decay_steps steps")
    decay_steps: int = bits(
        default=1, gt=0, description="steps over which the learning rate is multiplied by gamma"
    )


class PolynomialSchedule(LinearSchedule):
    """A decay to `final_lr_ratio` of the learning rate by a power of the remaining share of steps."""

    type: Literal["polynomial"] = bits("polynomial")  # type: ignore[assignment]
    power: float = bits(default=1.0, gt=0, description="1: a straight line; 2: a parabola")


class StableSchedule(LinearSchedule):
    """A constant learning rate with a decay at the end (WSD: warm-up, stable, decay; Hu et al., 2024)."""

    type: Literal["wsd"] = bits("wsd")  # type: ignore[assignment]
    decay_ratio: Share = bits(default=0.2, description="share of the steps in which the learning rate falls")
    decay_shape: Literal["linear", "cosine", "sqrt"] = bits(
        default="linear",
        description="sqrt: 1 minus the square root of how far the decay has come, from 0 to 1",
    )


class PlateauSchedule(ConstantSchedule):
    """A decay by `factor` when `metric` has not improved for `patience` evaluations."""

    type: Literal["plateau"] = bits("plateau")  # type: ignore[assignment]
    metric: str = bits(default="val_loss", description="val_loss, or val_ and the name of a metric")
    mode: AutoMode = bits(default="auto", description=MODE)
    factor: float = bits(default=0.1, gt=0, lt=1, description="factor on the learning rate at each drop")
    patience: int = bits(default=3, ge=0, description="evaluations without improvement before a drop")


class CustomSchedule(ConstantSchedule):
    """A schedule of your own; `scheduler: package.module:name` is short for it.

    It is a function that is called with (step, total_steps) and `params`, and returns the factor on the
    learning rate, or (under torch) a class of torch's schedulers. Steps count from the end of the warm-up.
    """

    uses_length: ClassVar[bool] = True
    type: Literal["custom"] = bits("custom")  # type: ignore[assignment]
    function: str = bits(description="package.module:name")
    params: dict[str, Any] = bits(default_factory=dict, description="the other arguments, by name")


Schedule = (
    ConstantSchedule
    | LinearSchedule
    | CosineSchedule
    | CosineRestartsSchedule
    | OneCycleSchedule
    | StepSchedule
    | MultistepSchedule
    | ExponentialSchedule
    | PolynomialSchedule
    | StableSchedule
    | PlateauSchedule
    | CustomSchedule
)
