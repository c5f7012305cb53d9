"""Pruners: decide at each evaluation of a trial whether to end it, by the curves of other trials."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trainwright.config.tuning import AshaPruner, MedianPruner, PatientPruner, PercentilePruner, Pruner
from trainwright.types import Mode

Curve = Sequence[tuple[int, float]]  # the metric at each evaluation, as (step, value)
ShouldPrune = Callable[[int, float], bool]  # called with step and value at each evaluation, in order


def pruning_rule(pruner: Pruner, curves: Mapping[str, Sequence[Curve]], mode: Mode) -> ShouldPrune:
    """Return the function that says, evaluation by evaluation, whether to prune a trial.

    Args:
        pruner: The options.
        curves: The curves of the trials that it may know, by status.
        mode: Whether the metric is minimized or maximized.
    """
    sign = 1.0 if mode == "min" else -1.0
    completed = [_signed(curve, sign) for curve in curves.get("completed", ())]
    pruned = [_signed(curve, sign) for curve in curves.get("pruned", ())]
    match pruner:
        case MedianPruner():  # or PercentilePruner
            should_prune = _percentile_rule(pruner, completed)
        case AshaPruner():
            should_prune = _asha_rule(pruner, [*completed, *pruned])
        case PatientPruner():
            should_prune = _patient_rule(pruner)
        case _:
            return lambda *_: False
    return lambda step, value: should_prune(step, sign * value)


def _signed(curve: Curve, sign: float) -> dict[int, float]:
    """Return a curve whose lower values are better."""
    return {step: sign * value for step, value in curve}


def _percentile_rule(pruner: MedianPruner, curves: Sequence[Mapping[int, float]]) -> ShouldPrune:
    """Compare with the values of other trials at the same step, as Optuna's PercentilePruner does."""
    percentile = pruner.percentile if isinstance(pruner, PercentilePruner) else 50.0
    best = math.inf

    def should_prune(step: int, value: float) -> bool:
        nonlocal best
        if not math.isnan(value):
            best = min(best, value)
        if len(curves) < max(1, pruner.n_startup_trials) or step < pruner.n_warmup_steps:
            return False
        others = [curve[step] for curve in curves if not math.isnan(curve.get(step, math.nan))]
        if math.isinf(best):
            return True  # every value so far was NaN
        return bool(others) and best > float(np.percentile(others, percentile))

    return should_prune


def _asha_rule(pruner: AshaPruner, curves: Sequence[Mapping[int, float]]) -> ShouldPrune:
    passed = 0  # rungs

    def should_prune(step: int, value: float) -> bool:
        nonlocal passed
        while step >= (rung := pruner.min_steps * pruner.reduction_factor**passed):
            passed += 1
            reached = [_first_at(curve, rung) for curve in curves]
            others = [other for other in reached if other is not None and not math.isnan(other)]
            kept = max(1, (len(others) + 1) // pruner.reduction_factor)
            if math.isnan(value) or sum(other < value for other in others) >= kept:
                return True
        return False

    return should_prune


def _first_at(curve: Mapping[int, float], step: int) -> float | None:
    """Return the value at the first evaluation at or after a step, or None if there is none."""
    return next((curve[at] for at in sorted(curve) if at >= step), None)


def _patient_rule(pruner: PatientPruner) -> ShouldPrune:
    best, since = math.inf, 0  # evaluations without improvement

    def should_prune(step: int, value: float) -> bool:  # noqa: ARG001
        nonlocal best, since
        if value < best - pruner.min_delta:
            best, since = value, 0
        else:
            since += 1
        return since > pruner.patience

    return should_prune
