"""What is due when, and what follows from the evaluations: the config's cadences and decisions, resolved for one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from trainyard.config.schema import ConstantSchedule, PlateauSchedule, RunConfig
from trainyard.engine.decisions import (
    Mode,
    Patience,
    best_evaluations,
    learning_rate,
)
from trainyard.frameworks.base import Plan
from trainyard.types import Evaluation

History = Sequence[Evaluation]


def next_multiple(step: int, every: int) -> int:
    """The smallest multiple of `every` above `step`."""
    return (step // every + 1) * every


class Rules:
    """Functions of the step and of the history of evaluations; what is kept of a history saves looking at it again.

    Args:
        config: the run's config.
        plan: how the framework goes about it.
        steps_per_epoch: steps of one pass over the training split.
        mode: whether a metric is better when it is lower (`min`) or higher (`max`).
    """

    def __init__(
        self, config: RunConfig, plan: Plan, steps_per_epoch: int, mode: Callable[[str], Mode]
    ) -> None:
        self.plan = plan
        self.total_steps = plan.total_steps
        self.has_learning_rate = plan.learning_rate is not None
        scheduled = plan.scheduled and self.has_learning_rate
        self._schedule = config.training.scheduler if scheduled else ConstantSchedule()
        self.learning_rate = learning_rate(
            self._schedule, 1.0 if plan.learning_rate is None else plan.learning_rate, plan.total_steps
        )
        self.boundary = plan.boundary
        self._config = config
        self._evaluate_every = config.evaluation.every_n_steps or steps_per_epoch
        self._mode_of = mode
        self._history: History | None = None
        self._seen = 0

    def evaluates(self, step: int) -> bool:
        """Whether the validation split is evaluated after this step."""
        return step % self._evaluate_every == 0 or step == self.total_steps

    def logs(self, step: int) -> bool:
        """Whether metrics are logged after this step."""
        return step % self._config.logging.every_n_steps == 0

    def next_due(self, step: int) -> int:
        """The first step after `step` at which something is due by the config's cadences."""
        every = [
            self._evaluate_every,
            self._config.logging.every_n_steps,
            self._config.checkpoint.every_n_steps,
        ]
        every += [self.boundary] if self.boundary > 1 else []
        return min(self.total_steps, *(next_multiple(step, n) for n in every if n is not None))

    def best_steps(self, history: History) -> list[int]:
        """The steps of the best models, best first."""
        return [best.step for best in self._standing(history).best]

    def until(self, history: History) -> int:
        """The step that the training ends with, as far as is known."""
        return history[-1].step if history and self._standing(history).stops else self.total_steps

    def drop(self, history: History) -> float:
        """The factor that a plateau schedule puts on the learning rate."""
        schedule = self._schedule
        return (
            schedule.factor ** self._standing(history).drops if isinstance(schedule, PlateauSchedule) else 1.0
        )

    def news(self, history: History) -> list[tuple[str, dict[str, Any]]]:
        """What the newest evaluation changed, as events."""
        step, metric, standing = history[-1].step, self._config.checkpoint.metric, self._standing(history)
        found: list[tuple[str, dict[str, Any]]] = []
        if self.best_steps(history)[:1] == [step]:
            found.append(("best", {"metric": metric, "value": history[-1].metrics[metric]}))
        if standing.has_dropped:
            found.append(("learning_rate_drop", {"factor": self.drop(history)}))
        if self.until(history) == step < self.total_steps:
            found.append(("early_stop", {"metric": self._config.training.early_stopping.metric}))  # type: ignore[union-attr]
        return found

    def _standing(self, history: History) -> _Standing:
        """What the history decides; of one that has grown, only what is new is looked at."""
        if self._history is not history or len(history) < self._seen:
            self._history, self._seen = history, 0
            self._known = _Standing(self._config, self._schedule, self._mode_of)
        for evaluation in history[self._seen :]:
            self._known.see(evaluation)
        self._seen = len(history)
        return self._known


class _Standing:
    """What the evaluations up to here decide."""

    def __init__(self, config: RunConfig, schedule: ConstantSchedule, mode_of: Callable[[str], Mode]) -> None:
        def mode(metric: str, given: Literal["auto", "min", "max"]) -> Mode:
            return mode_of(metric) if given == "auto" else given

        self._kept, stopping = config.checkpoint, config.training.early_stopping
        self._mode = mode(self._kept.metric, self._kept.mode)
        self._stopping: Patience | None = None
        if stopping:
            self._stopping = Patience(
                stopping.metric, mode(stopping.metric, stopping.mode), stopping.min_delta
            )
        self._patience = stopping.patience if stopping else 0
        self._plateau: Patience | None = None
        if isinstance(schedule, PlateauSchedule):
            self._plateau = Patience(
                schedule.metric, mode(schedule.metric, schedule.mode), limit=schedule.patience
            )
        self.best: list[Evaluation] = []
        self.has_dropped = False  # by the newest evaluation

    @property
    def stops(self) -> bool:
        return self._stopping is not None and self._stopping.stale >= self._patience

    @property
    def drops(self) -> int:
        return self._plateau.lost if self._plateau else 0

    def see(self, evaluation: Evaluation) -> None:
        drops = self.drops
        for patience in (self._stopping, self._plateau):
            if patience:
                patience.see(evaluation)
        self.has_dropped = self.drops > drops
        self.best = best_evaluations(
            [*self.best, evaluation], self._kept.metric, self._mode, self._kept.save_top_k
        )
