"""What follows from the evaluations so far: pure functions of the history, so that no decision has a state."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from typing import Literal

from trainyard.config.schema import (
    ConstantSchedule,
    CosineSchedule,
    EarlyStoppingConfig,
    LinearSchedule,
    PlateauSchedule,
    StepSchedule,
)
from trainyard.types import Evaluation

Mode = Literal["min", "max"]


def badness(evaluation: Evaluation, metric: str, mode: Mode) -> float:
    """The metric, turned so that less is better; a NaN is worse than anything."""
    value = evaluation.metrics[metric]
    if math.isnan(value):
        return math.inf
    return value if mode == "min" else -value


def _with(history: Sequence[Evaluation], metric: str) -> list[Evaluation]:
    """The evaluations that have the metric: a change of config that was let pass may have brought it in later."""
    return [evaluation for evaluation in history if metric in evaluation.metrics]


def stale_evaluations(history: Sequence[Evaluation], metric: str, mode: Mode, min_delta: float = 0.0) -> int:
    """How many evaluations there were since the last one that improved `metric` by more than `min_delta`."""
    best, stale = math.inf, 0
    for evaluation in _with(history, metric):
        value = badness(evaluation, metric, mode)
        if value < best - min_delta:
            best, stale = value, 0
        else:
            stale += 1
    return stale


def should_stop(config: EarlyStoppingConfig | None, mode: Mode, history: Sequence[Evaluation]) -> bool:
    """Whether early stopping ends the training here."""
    return config is not None and stale_evaluations(history, config.metric, mode, config.min_delta) >= config.patience


def best_evaluations(history: Sequence[Evaluation], metric: str, mode: Mode, count: int) -> list[Evaluation]:
    """The best evaluations, best first; of equal ones the earlier is better. A NaN is never among them."""
    real = [evaluation for evaluation in _with(history, metric) if not math.isnan(evaluation.metrics[metric])]
    return heapq.nsmallest(count, real, key=lambda evaluation: (badness(evaluation, metric, mode), evaluation.step))


def plateau_drops(schedule: PlateauSchedule, mode: Mode, history: Sequence[Evaluation]) -> int:
    """How often the plateau schedule has lowered the learning rate; each drop starts its patience anew."""
    best, stale, drops = math.inf, 0, 0
    for evaluation in _with(history, schedule.metric):
        value = badness(evaluation, schedule.metric, mode)
        if value < best:
            best, stale = value, 0
        elif (stale := stale + 1) > schedule.patience:
            drops, stale = drops + 1, 0
    return drops


def learning_rate(schedule: ConstantSchedule, base: float, total_steps: int) -> Callable[[int], float]:
    """The learning rate of each step (from 0), before the drops of a plateau."""
    warmup = schedule.warmup_steps
    decay = _decay(schedule, max(1, total_steps - warmup))
    if warmup == 0 and decay is None:
        return lambda _: base

    def rate(step: int) -> float:
        if step < warmup:
            return base * (step + 1) / warmup
        return base if decay is None else base * decay(step - warmup)

    return rate


def _decay(schedule: ConstantSchedule, steps: int) -> Callable[[int], float] | None:
    """The factor on the learning rate, by the number of steps since the warm-up."""
    if isinstance(schedule, StepSchedule):
        return lambda step: schedule.gamma ** (step // schedule.step_size)
    if not isinstance(schedule, LinearSchedule):
        return None
    final = schedule.final_lr_ratio
    if isinstance(schedule, CosineSchedule):
        return lambda step: final + (1 - final) * (1 + math.cos(math.pi * min(step / steps, 1.0))) / 2
    return lambda step: final + (1 - final) * (1 - min(step / steps, 1.0))
