"""What is due at which step, and what the evaluations decide: the config's cadences and rules for one run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from trainyard.config.schema import ConstantSchedule, PlateauSchedule, RunConfig
from trainyard.engine.decisions import (
    Patience,
    best_evaluations,
    learning_rate,
)
from trainyard.frameworks.base import Plan
from trainyard.types import Evaluation, Mode

History = Sequence[Evaluation]


def next_multiple(step: int, every: int) -> int:
    """Return the smallest multiple of `every` above `step`."""
    return (step // every + 1) * every


class Rules:
    """Answer what is due at a step, and what the evaluations decide.

    Evaluations that were read already are not read again.

    Args:
        config: The run's config.
        plan: How many steps there are, and their learning rate.
        steps_per_epoch: Steps of one pass over the training split.
        mode: Returns whether a metric is better when it is lower (`min`) or higher (`max`).
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
        """Return whether the validation split is evaluated after this step."""
        return step % self._evaluate_every == 0 or step == self.total_steps

    def logs(self, step: int) -> bool:
        """Return whether metrics are logged after this step."""
        return step % self._config.logging.every_n_steps == 0

    def next_due(self, step: int) -> int:
        """Return the first step after `step` at which something is due by the config's cadences."""
        every = [
            self._evaluate_every,
            self._config.logging.every_n_steps,
            self._config.checkpoint.every_n_steps,
        ]
        every += [self.boundary] if self.boundary > 1 else []
        return min(self.total_steps, *(next_multiple(step, n) for n in every if n is not None))

    def best_steps(self, history: History) -> list[int]:
        """Return the steps of the best models, best first."""
        return [best.step for best in self._decided(history).best]

    def until(self, history: History) -> int:
        """Return the last step of the training, as far as the evaluations have decided it."""
        return history[-1].step if history and self._decided(history).stops else self.total_steps

    def drop(self, history: History) -> float:
        """Return the factor that a plateau schedule applies to the learning rate."""
        schedule = self._schedule
        return (
            schedule.factor ** self._decided(history).drops if isinstance(schedule, PlateauSchedule) else 1.0
        )

    def events(self, history: History) -> list[tuple[str, dict[str, Any]]]:
        """Return what the newest evaluation decided, as names and details of events."""
        step, metric, decided = history[-1].step, self._config.checkpoint.metric, self._decided(history)
        events: list[tuple[str, dict[str, Any]]] = []
        if self.best_steps(history)[:1] == [step]:
            events.append(("best", {"metric": metric, "value": history[-1].metrics[metric]}))
        if decided.has_dropped:
            events.append(("learning_rate_drop", {"factor": self.drop(history)}))
        if self.until(history) == step < self.total_steps:
            events.append(("early_stop", {"metric": self._config.training.early_stopping.metric}))  # type: ignore[union-attr]
        return events

    def _decided(self, history: History) -> _Decided:
        """Return what the history decides; of one that has grown, only the new evaluations are read."""
        if self._history is not history or len(history) < self._seen:
            self._history, self._seen = history, 0
            self._state = _Decided(self._config, self._schedule, self._mode_of)
        for evaluation in history[self._seen :]:
            self._state.see(evaluation)
        self._seen = len(history)
        return self._state


class _Decided:
    """What the evaluations so far decide: the best models, the early stop, the drops of the learning rate."""

    def __init__(self, config: RunConfig, schedule: ConstantSchedule, mode_of: Callable[[str], Mode]) -> None:
        def mode(metric: str, configured: Literal["auto", "min", "max"]) -> Mode:
            return mode_of(metric) if configured == "auto" else configured

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
        """Whether the training ends early."""
        return self._stopping is not None and self._stopping.stale >= self._patience

    @property
    def drops(self) -> int:
        """How often the plateau schedule has lowered the learning rate."""
        return self._plateau.lost if self._plateau else 0

    def see(self, evaluation: Evaluation) -> None:
        """Take the next evaluation into account."""
        drops = self.drops
        for patience in (self._stopping, self._plateau):
            if patience:
                patience.see(evaluation)
        self.has_dropped = self.drops > drops
        self.best = best_evaluations(
            [*self.best, evaluation], self._kept.metric, self._mode, self._kept.save_top_k
        )
