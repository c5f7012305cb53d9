"""Pure functions of the history of evaluations: the best models, and patience."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from trainwright.types import Evaluation, Mode


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
