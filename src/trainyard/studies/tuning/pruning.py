"""Pruners: judge a trial at its evaluations by the curves of the trials that it may know."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trainyard.config.tuning import AshaPruner, MedianPruner, PatientPruner, PercentilePruner, Pruner
from trainyard.types import Mode

Curve = Sequence[tuple[int, float]]  # the metric at each evaluation, as (step, value)
Judge = Callable[[int, float], bool]  # called with step and value at each evaluation: whether to prune


def judge_of(pruner: Pruner, curves: Mapping[str, Sequence[Curve]], mode: Mode) -> Judge:
    """Return the judge of a trial.

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
            judge = _percentile_judge(pruner, completed)
        case AshaPruner():
            judge = _asha_judge(pruner, [*completed, *pruned])
        case PatientPruner():
            judge = _patient_judge(pruner)
        case _:
            return lambda *_: False
    return lambda step, value: judge(step, sign * value)


def _signed(curve: Curve, sign: float) -> dict[int, float]:
    """Return a curve of which less is better."""
    return {step: sign * value for step, value in curve}


def _percentile_judge(pruner: MedianPruner, curves: Sequence[Mapping[int, float]]) -> Judge:
    """Judge by the values that other trials had at the same step, as Optuna's PercentilePruner does."""
    percentile = pruner.percentile if isinstance(pruner, PercentilePruner) else 50.0
    best = math.inf

    def prune(step: int, value: float) -> bool:
        nonlocal best
        if not math.isnan(value):
            best = min(best, value)
        if len(curves) < max(1, pruner.n_startup_trials) or step < pruner.n_warmup_steps:
            return False
        others = [curve[step] for curve in curves if not math.isnan(curve.get(step, math.nan))]
        if math.isinf(best):
            return True  # every value so far was NaN
        return bool(others) and best > float(np.percentile(others, percentile))

    return prune


def _asha_judge(pruner: AshaPruner, curves: Sequence[Mapping[int, float]]) -> Judge:
    passed = 0  # rungs

    def prune(step: int, value: float) -> bool:
        nonlocal passed
        while step >= (rung := pruner.min_steps * pruner.reduction_factor**passed):
            passed += 1
            reached = [_first_at(curve, rung) for curve in curves]
            others = [other for other in reached if other is not None and not math.isnan(other)]
            kept = max(1, (len(others) + 1) // pruner.reduction_factor)
            if math.isnan(value) or sum(other < value for other in others) >= kept:
                return True
        return False

    return prune


def _first_at(curve: Mapping[int, float], step: int) -> float | None:
    """Return the value at the first evaluation at or after a step, or None if there is none."""
    return next((curve[at] for at in sorted(curve) if at >= step), None)


def _patient_judge(pruner: PatientPruner) -> Judge:
    best, since = math.inf, 0  # evaluations without improvement

    def prune(step: int, value: float) -> bool:  # noqa: ARG001
        nonlocal best, since
        if value < best - pruner.min_delta:
            best, since = value, 0
        else:
            since += 1
        return since > pruner.patience

    return prune
