"""The learning rate as a function of the step, before the drops of a plateau schedule."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from trainwright.config.schedules import (
    ConstantSchedule,
    CosineRestartsSchedule,
    CustomSchedule,
    ExponentialSchedule,
    LinearSchedule,
    MultistepSchedule,
    OneCycleSchedule,
    PolynomialSchedule,
    StableSchedule,
    StepSchedule,
)
from trainwright.errors import InputError
from trainwright.frameworks.base import CustomRate
from trainwright.process.global_random import preserved_global_random
from trainwright.require import import_path, kind_of

Factor = Callable[[int], float]  # of the steps since the warm-up


def learning_rate(
    schedule: ConstantSchedule, base: float, total_steps: int, own: CustomRate | None = None
) -> Callable[[int], float]:
    """Return the learning rate as a function of the step, from 0.

    Args:
        schedule: The section `training.scheduler`.
        base: The highest learning rate.
        total_steps: Number of steps of the training.
        own: Makes the user's own schedule; it gets the highest rate and the number of steps.
    """
    warmup = schedule.warmup_steps or math.ceil(schedule.warmup_ratio * total_steps)
    steps = max(1, total_steps - warmup)
    if isinstance(schedule, CustomSchedule):
        decayed = own(base, steps) if own else _custom_rate(schedule, base, steps)
    elif (factor := _factor(schedule, steps)) is not None:
        decayed = _scaled(base, factor)
    else:
        decayed = lambda _: base  # noqa: E731 - as the others are made

    def rate(step: int) -> float:
        return base * (step + 1) / warmup if step < warmup else decayed(step - warmup)

    return rate


def _scaled(base: float, factor: Factor) -> Callable[[int], float]:
    return lambda step: base * factor(step)


def _factor(schedule: ConstantSchedule, steps: int) -> Factor | None:
    """Return the factor on the learning rate as a function of the steps since the warm-up."""
    make = _FACTORS.get(schedule.type)
    return partial(make, schedule, steps) if make is not None else None


def _linear(schedule: LinearSchedule, steps: int, step: int) -> float:
    final = schedule.final_lr_ratio
    return final + (1 - final) * (1 - min(step / steps, 1.0))


def _cosine(schedule: LinearSchedule, steps: int, step: int) -> float:
    return _half_cosine(schedule.final_lr_ratio, min(step / steps, 1.0))


def _cosine_restarts(schedule: CosineRestartsSchedule, steps: int, step: int) -> float:
    if schedule.cycle_steps is None:
        cycles = schedule.cycles or 2
        share = 1.0 if step >= steps else step * cycles / steps % 1.0
        return _half_cosine(schedule.final_lr_ratio, share)
    length, at = schedule.cycle_steps, step
    if schedule.cycle_factor == 1:
        at %= length
    while at >= length:
        at, length = at - length, length * schedule.cycle_factor
    return _half_cosine(schedule.final_lr_ratio, at / length)


def _half_cosine(final: float, share: float) -> float:
    return final + (1 - final) * (1 + math.cos(math.pi * share)) / 2


def _one_cycle(schedule: OneCycleSchedule, steps: int, step: int) -> float:
    """Return the factor as torch's OneCycleLR has it, with two phases."""
    first = 1 / schedule.div_factor
    top, end = schedule.pct_start * steps - 1, steps - 1.0
    if step <= top:
        return _annealed(schedule.anneal_strategy, first, 1.0, step / top if top else 1.0)
    share = min((step - max(top, 0.0)) / max(end - max(top, 0.0), 1.0), 1.0)
    return _annealed(schedule.anneal_strategy, 1.0, first / schedule.final_div_factor, share)


def _annealed(strategy: str, start: float, end: float, share: float) -> float:
    if strategy == "linear":
        return start + (end - start) * share
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))


def _step(schedule: StepSchedule, _: int, step: int) -> float:
    return float(schedule.gamma ** (step // schedule.step_size))


def _multistep(schedule: MultistepSchedule, _: int, step: int) -> float:
    return float(schedule.gamma ** bisect_right(sorted(schedule.milestones), step))


def _exponential(schedule: ExponentialSchedule, _: int, step: int) -> float:
    return float(schedule.gamma ** (step / schedule.decay_steps))


def _polynomial(schedule: PolynomialSchedule, steps: int, step: int) -> float:
    final = schedule.final_lr_ratio
    return float(final + (1 - final) * (1 - min(step / steps, 1.0)) ** schedule.power)


def _stable(schedule: StableSchedule, steps: int, step: int) -> float:
    final, decay = schedule.final_lr_ratio, round(schedule.decay_ratio * steps)
    share = min(max(step - (steps - decay), 0) / max(decay, 1), 1.0)
    if schedule.decay_shape == "cosine":
        return _half_cosine(final, share)
    fall = math.sqrt(share) if schedule.decay_shape == "sqrt" else share
    return final + (1 - final) * (1 - fall)


_FACTORS: Mapping[str, Callable[[Any, int, int], float]] = {
    "linear": _linear,
    "cosine": _cosine,
    "cosine_restarts": _cosine_restarts,
    "one_cycle": _one_cycle,
    "step": _step,
    "multistep": _multistep,
    "exponential": _exponential,
    "polynomial": _polynomial,
    "wsd": _stable,
}


def _custom_rate(schedule: CustomSchedule, base: float, steps: int) -> Callable[[int], float]:
    """Return the rate by a function of the user's, which returns the factor.

    Raises:
        InputError: It cannot be imported, fails, or returns no finite number of at least 0.
    """
    path = schedule.function
    try:
        function = import_path(path)
    except InputError as error:
        raise InputError(f"training.scheduler: {error}") from error
    if not callable(function) or isinstance(function, type):
        raise InputError(
            f"training.scheduler: {path} is {kind_of(function)}; a function of "
            "(step, total_steps) that returns the factor on the learning rate is needed"
        )

    def rate(step: int) -> float:
        try:
            factor = float(function(step, steps, **schedule.params))
        except Exception as error:
            raise InputError(
                f"training.scheduler: {path} fails at step {step} of {steps}: {type(error).__name__}: {error}"
            ) from error
        if not (math.isfinite(factor) and factor >= 0):
            raise InputError(
                f"training.scheduler: {path} returned {factor} at step {step} of {steps}; it must return the "
                "factor on the learning rate, a number of at least 0"
            )
        return base * factor

    with preserved_global_random():  # one that draws from these generators goes on with them at a resume
        first = rate(0)  # what is wrong with it shows before the training
    if rate(0) != first:
        raise InputError(
            f"training.scheduler: {path} returned two values for step 0 of {steps}; the factor must depend "
            "on its arguments alone, as a resume calls it for the steps that are left"
        )
    return rate
