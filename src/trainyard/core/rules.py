"""What is due when, and what follows from the evaluations: the config's cadences and decisions, resolved for one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from trainyard.config.schema import ConstantSchedule, PlateauSchedule, RunConfig
from trainyard.core.decisions import (
    Mode,
    best_evaluations,
    learning_rate,
    plateau_drops,
    should_stop,
)
from trainyard.frameworks.base import Plan
from trainyard.types import Evaluation

History = Sequence[Evaluation]


def next_multiple(step: int, every: int) -> int:
    """The smallest multiple of `every` above `step`."""
    return (step // every + 1) * every


class Rules:
    """Functions of the step and of the history of evaluations; no state.

    Args:
        config: the run's config.
        plan: how the framework goes about it.
        steps_per_epoch: steps of one pass over the training split.
        mode: whether a metric is better when it is lower (`min`) or higher (`max`).
    """

    def __init__(self, config: RunConfig, plan: Plan, steps_per_epoch: int, mode: Callable[[str], Mode]) -> None:
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

    def evaluates(self, step: int) -> bool:
        """Whether the validation split is evaluated after this step."""
        return step % self._evaluate_every == 0 or step == self.total_steps

    def logs(self, step: int) -> bool:
        """Whether metrics are logged after this step."""
        return step % self._config.logging.every_n_steps == 0

    def next_due(self, step: int) -> int:
        """The first step after `step` at which something is due by the config's cadences."""
        every = [self._evaluate_every, self._config.logging.every_n_steps, self._config.checkpoint.every_n_steps]
        every += [self.boundary] if self.boundary > 1 else []
        return min(self.total_steps, *(next_multiple(step, n) for n in every if n is not None))

    def best_steps(self, history: History) -> list[int]:
        """The steps of the best models, best first."""
        config = self._config.checkpoint
        mode = self._mode(config.metric, config.mode)
        return [best.step for best in best_evaluations(history, config.metric, mode, config.save_top_k)]

    def until(self, history: History) -> int:
        """The step that the training ends with, as far as is known."""
        config = self._config.training.early_stopping
        if config and history and should_stop(config, self._mode(config.metric, config.mode), history):
            return history[-1].step
        return self.total_steps

    def drop(self, history: History) -> float:
        """The factor that a plateau schedule puts on the learning rate."""
        return self._drop_factor(self._drops(history))

    def news(self, history: History) -> list[tuple[str, dict[str, Any]]]:
        """What the newest evaluation changed, as events."""
        step, metric = history[-1].step, self._config.checkpoint.metric
        found: list[tuple[str, dict[str, Any]]] = []
        if self.best_steps(history)[:1] == [step]:
            found.append(("best", {"metric": metric, "value": history[-1].metrics[metric]}))
        if (drops := self._drops(history)) > self._drops(history[:-1]):
            found.append(("learning_rate_drop", {"factor": self._drop_factor(drops)}))
        if self.until(history) == step < self.total_steps:
            found.append(("early_stop", {"metric": self._config.training.early_stopping.metric}))  # type: ignore[union-attr]
        return found

    def _mode(self, metric: str, given: Literal["auto", "min", "max"]) -> Mode:
        return self._mode_of(metric) if given == "auto" else given

    def _drops(self, history: History) -> int:
        schedule = self._schedule
        if not isinstance(schedule, PlateauSchedule):
            return 0
        return plateau_drops(schedule, self._mode(schedule.metric, schedule.mode), history)

    def _drop_factor(self, drops: int) -> float:
        schedule = self._schedule
        return schedule.factor**drops if isinstance(schedule, PlateauSchedule) else 1.0
