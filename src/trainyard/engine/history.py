"""Pure functions of the history of evaluations: the best models, patience, the learning rate."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from trainyard.config.schema import ConstantSchedule, CosineSchedule, LinearSchedule, StepSchedule
from trainyard.types import Evaluation, Mode


def badness(evaluation: Evaluation, metric: str, mode: Mode) -> float:
    """Return the metric with the sign that makes lower better; a NaN becomes infinity."""
    value = evaluation.metrics[metric]
    if math.isnan(value):
        return math.inf
    return value if mode == "min" else -value


def _with(history: Sequence[Evaluation], metric: str) -> list[Evaluation]:
    """Return the evaluations that have the metric.

    An allowed change of the config may have added it later.
    """
    return [evaluation for evaluation in history if metric in evaluation.metrics]


class Patience:
    """A count of the evaluations since a metric improved.

    A function of the evaluations that it has seen, in order.

    Args:
        metric: Name of the metric.
        mode: Whether lower (`min`) or higher (`max`) is better.
        min_delta: An improvement must be larger than this.
        limit: A count above this starts again from 0, and is counted in `lost`.
    """

    def __init__(self, metric: str, mode: Mode, min_delta: float = 0.0, limit: float = math.inf) -> None:
        self._metric = metric
        self._mode: Mode = mode
        self._min_delta = min_delta
        self._limit = limit
        self._best = math.inf
        self.stale = 0
        self.lost = 0  # how often the count exceeded `limit`

    def see(self, evaluation: Evaluation) -> None:
        """Take the next evaluation into account."""
        if self._metric not in evaluation.metrics:
            return
        value = badness(evaluation, self._metric, self._mode)
        if value < self._best - self._min_delta:
            self._best, self.stale = value, 0
            return
        self.stale += 1
        if self.stale > self._limit:
            self.lost, self.stale = self.lost + 1, 0


def best_evaluations(history: Sequence[Evaluation], metric: str, mode: Mode, count: int) -> list[Evaluation]:
    """Return the best evaluations, best first.

    Of equal ones the earlier is better. A NaN is never among them.
    """
    real = [evaluation for evaluation in _with(history, metric) if not math.isnan(evaluation.metrics[metric])]
    return heapq.nsmallest(
        count, real, key=lambda evaluation: (badness(evaluation, metric, mode), evaluation.step)
    )


def learning_rate(schedule: ConstantSchedule, base: float, total_steps: int) -> Callable[[int], float]:
    """Return the learning rate as a function of the step (from 0), before the drops of a plateau schedule."""
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
    """Return the factor on the learning rate as a function of the steps since the warm-up."""
    if isinstance(schedule, StepSchedule):
        return lambda step: schedule.gamma ** (step // schedule.step_size)
    if not isinstance(schedule, LinearSchedule):
        return None
    final = schedule.final_lr_ratio
    if isinstance(schedule, CosineSchedule):
        return lambda step: final + (1 - final) * (1 + math.cos(math.pi * min(step / steps, 1.0))) / 2
    return lambda step: final + (1 - final) * (1 - min(step / steps, 1.0))
