"""The rules of one run by its config: what is due at which step, and what the evaluations lead to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from trainwright.config.schedules import ConstantSchedule, PlateauSchedule
from trainwright.config.schema import RunConfig
from trainwright.engine.history import Patience, best_evaluations
from trainwright.engine.schedules import learning_rate
from trainwright.frameworks.base import Plan
from trainwright.types import Evaluation, Mode

History = Sequence[Evaluation]
TrainingShare = tuple[int, int]  # a fraction of a training: (3, 27) is a ninth


def next_multiple(step: int, every: int) -> int:
    """Return the smallest multiple of `every` above `step`."""
    return (step // every + 1) * every


class _Cadence(NamedTuple):
    """Every how many steps something is due, and a step at which it is."""

    every: int
    at: int = 0

    def holds(self, step: int) -> bool:
        """Return whether it is due after a step."""
        return (step - self.at) % self.every == 0

    def after(self, step: int) -> int:
        """Return the first step above `step` at which it is due."""
        return next_multiple(step - self.at, self.every) + self.at


class _EpochEnds(NamedTuple):
    """The ends of epochs: these have `steps` steps, and `over` of them are over after `step`."""

    steps: int
    step: int
    over: int

    def every(self, epochs: int) -> _Cadence:
        """Return the steps at which multiples of `epochs` epochs are over."""
        every = epochs * self.steps
        return _Cadence(every, (self.step + -self.over % epochs * self.steps) % every)


@dataclass(frozen=True)
class Inherited:
    """The inheritance from a parent, which trained the steps up to `step`.

    `irregular` are the steps of the parent's evaluations that do not count for patience.
    """

    step: int = 0
    irregular: frozenset[int] = frozenset()


NOTHING_INHERITED = Inherited()


class Rules:
    """Say what is due at a step, and what follows from the evaluations.

    Each evaluation of a history is read once.

    Args:
        config: The run's config.
        plan: How many steps there are, and their learning rate.
        steps_per_epoch: Steps of one pass over the training split.
        mode_of: Returns whether a metric is better when it is lower (`min`) or higher (`max`).
        epoch_end: A step at which an epoch ends.
        epoch: The number of epochs that are over at that step.
        past: What the run inherits from its parent.
    """

    def __init__(
        self,
        config: RunConfig,
        plan: Plan,
        steps_per_epoch: int,
        mode_of: Callable[[str], Mode],
        *,
        epoch_end: int = 0,
        epoch: int = 0,
        past: Inherited = NOTHING_INHERITED,
    ) -> None:
        self.plan = plan
        self.total_steps = plan.total_steps
        self.has_learning_rate = plan.learning_rate is not None
        scheduled = plan.scheduled and self.has_learning_rate
        self._schedule = config.training.scheduler if scheduled else ConstantSchedule()
        self.learning_rate = learning_rate(
            self._schedule,
            1.0 if plan.learning_rate is None else plan.learning_rate,
            plan.total_steps,
            plan.custom_schedule,
        )
        self.boundary = plan.boundary
        self._config = config
        ends = _EpochEnds(steps_per_epoch, epoch_end, epoch)
        evaluation, checkpoint = config.evaluation, config.checkpoint
        self._evaluations = (
            _Cadence(evaluation.every_n_steps)
            if evaluation.every_n_steps
            else ends.every(evaluation.every_n_epochs or 1)
        )
        self._saves = ends.every(checkpoint.every_n_epochs) if checkpoint.every_n_epochs else None
        self._past = past
        self._mode_of = mode_of
        self._without_model: Collection[int] = ()
        self._history: History | None = None
        self._seen: int  # how many evaluations of it; set with the history

    def evaluates(self, step: int) -> bool:
        """Return whether the validation split is evaluated after this step."""
        return self.on_cadence(step) or step == self.total_steps

    def on_cadence(self, step: int) -> bool:
        """Return whether this step is on the cadence of evaluations, whatever the length of the run."""
        return self._evaluations.holds(step)

    def next_evaluation(self, step: int) -> int:
        """Return the first step after `step` at which the validation split is evaluated."""
        return min(self.total_steps, self._evaluations.after(step))

    def saves(self, step: int) -> bool:
        """Return whether `checkpoint.every_n_epochs` asks for a save after this step."""
        return self._saves is not None and self._saves.holds(step)

    def resumable(self, step: int) -> int:
        """Return the first step, from `step` on, that a run can resume from exactly."""
        return -(-step // self.boundary) * self.boundary

    def pause(self, share: TrainingShare | None) -> int | None:
        """Return the first step, after a share of its length, at which a run can pause; None: there is none.

        The validation split is evaluated after this step, and the run can resume from it exactly.
        """
        if share is None:
            return None
        step = -(-self.total_steps * share[0] // share[1])
        if not self.on_cadence(step):
            step = self._evaluations.after(step)
        while step < self.total_steps and self.resumable(step) != step:
            step = self._evaluations.after(step)
        return step if step < self.total_steps else None

    def logs(self, step: int) -> bool:
        """Return whether metrics are logged after this step."""
        return step % self._config.logging.every_n_steps == 0

    def next_due(self, step: int) -> int:
        """Return the first step after `step` at which something is due by the config's cadences."""
        every = [self._config.logging.every_n_steps, self._config.checkpoint.every_n_steps]
        every += [self.boundary] if self.boundary > 1 else []
        due = [next_multiple(step, n) for n in every if n is not None] + [self._evaluations.after(step)]
        return min(self.total_steps, *due, *([self._saves.after(step)] if self._saves else []))

    def exclude(self, steps: Collection[int]) -> None:
        """Exclude these steps from the best models, as their weights are not kept."""
        self._without_model, self._history = frozenset(steps), None

    def best_steps(self, history: History) -> list[int]:
        """Return the steps of the best models, best first."""
        return [best.step for best in self._consequences_of(history).best]

    def last_step(self, history: History) -> int:
        """Return the last step of the training, which an early stop makes the newest evaluated one."""
        return history[-1].step if history and self._consequences_of(history).stops else self.total_steps

    def learning_rate_factor(self, history: History) -> float:
        """Return the factor that a plateau schedule applies to the learning rate."""
        schedule = self._schedule
        return (
            schedule.factor ** self._consequences_of(history).drop_count
            if isinstance(schedule, PlateauSchedule)
            else 1.0
        )

    def events(self, history: History) -> list[tuple[str, dict[str, Any]]]:
        """Return the events that follow from the newest evaluation, as names and details."""
        step, metric = history[-1].step, self._config.checkpoint.metric
        events: list[tuple[str, dict[str, Any]]] = []
        if self.best_steps(history)[:1] == [step]:
            events.append(("best", {"metric": metric, "value": history[-1].metrics[metric]}))
        if self._consequences_of(history).has_dropped:
            events.append(("learning_rate_drop", {"factor": self.learning_rate_factor(history)}))
        if self.last_step(history) == step < self.total_steps:
            events.append(("early_stop", {"metric": self._config.training.early_stopping.metric}))  # type: ignore[union-attr]
        return events

    def _consequences_of(self, history: History) -> _Consequences:
        """Return what follows from a history; if it has grown, only the new evaluations are read."""
        if self._history is not history or len(history) < self._seen:
            self._history, self._seen = history, 0
            self._state = _Consequences(self._config, self._schedule, self._mode_of)
        for evaluation in history[self._seen :]:
            step = evaluation.step
            self._state.see(
                evaluation, is_regular=self._is_regular(step), has_model=step not in self._without_model
            )
        self._seen = len(history)
        return self._state

    def _is_regular(self, step: int) -> bool:
        """Return whether the evaluation after a step counts for patience."""
        return step not in self._past.irregular if step <= self._past.step else self.evaluates(step)


class _Consequences:
    """The consequences of the evaluations so far: best models, early stop, drops of the learning rate."""

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
        """True if the training ends early."""
        return self._stopping is not None and self._stopping.stale >= self._patience

    @property
    def drop_count(self) -> int:
        """The number of times that the plateau schedule has lowered the learning rate."""
        return self._plateau.lost if self._plateau else 0

    def see(self, evaluation: Evaluation, *, is_regular: bool, has_model: bool) -> None:
        """Take the next evaluation into account.

        An irregular one was made because the run was stopped there. It may belong to the best model, but it
        does not count for patience: a run that is resumed must train as if it had never been stopped.
        """
        drops = self.drop_count
        for patience in (self._stopping, self._plateau):
            if patience and is_regular:
                patience.see(evaluation)
        self.has_dropped = self.drop_count > drops
        if not has_model:
            return
        self.best = best_evaluations(
            [*self.best, evaluation], self._kept.metric, self._mode, self._kept.save_top_k
        )
