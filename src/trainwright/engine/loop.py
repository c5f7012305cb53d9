"""The run loop.

The order within a step is fixed: step, evaluate, decide, journal, checkpoint. A checkpoint of step s contains
every consequence of s. The one exception is an evaluation that a signal cut short: then `settled` < `step` in
the checkpoint, and a resume begins with that evaluation.

A request to stop, the time limit and a verdict become decisions: a decision is on the disk before it has a
consequence, and a resume or a repetition replays it at the same step.

In a world of several processes, all run this loop, and do the same at the same step. What comes from outside
(signals, clocks, requests) waits for the next step at which they agree; the main one alone saves and records.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainwright.engine.agreement import MAX_STEPS, Agreement, SharedAgreement
from trainwright.engine.interval import interval_in_words
from trainwright.engine.outside import Outside
from trainwright.engine.recorder import Recorder
from trainwright.engine.rules import Rules
from trainwright.engine.saver import Saver
from trainwright.engine.signals import Signals, Stopped
from trainwright.engine.state import RunState
from trainwright.engine.step_times import Stragglers
from trainwright.errors import InputError, TrainingError
from trainwright.frameworks.base import Learner
from trainwright.order import SampleOrder
from trainwright.records.decision import ENDS, Decision, Kind
from trainwright.records.status import Ended
from trainwright.types import Evaluation, Metrics
from trainwright.world import ALONE, World

log = logging.getLogger("trainwright")
_CHECKED_SAVES = 3
_LEAST_SAVE = 1800.0  # seconds without progress after which a save hangs: it may wait for a disk
_DRAIN_STEPS = MAX_STEPS  # the most steps whose losses wait on the device


@dataclass(frozen=True)
class LoopParts:
    """The components of a loop.

    `evaluate` returns the metrics of the validation split, empty if there is none. `remedies` are what a user
    can try where the loss is not finite. The loop pauses at step `pause_at`, if given.
    """

    learner: Learner
    order: SampleOrder
    rules: Rules
    recorder: Recorder
    saver: Saver
    signals: Signals
    evaluate: Callable[[], Metrics] = dict
    remedies: Sequence[str] = ()
    outside: Outside = field(default_factory=Outside)
    pause_at: int | None = None
    world: World = ALONE

    def close(self) -> None:
        """End what the components have started: processes that read samples, threads that save."""
        self.learner.close()
        self.saver.close()

    def agreement(self, step: int) -> Agreement:
        """Return what the processes agree on after `step`."""
        own = Agreement(self.signals, self.outside, self.saver)
        if self.world.size == 1:
            return own
        stragglers = Stragglers(self.recorder, self.world)
        return SharedAgreement(own, self.world, step, self.learner.step_seconds, stragglers)


class Loop:
    """The training loop, from `state` to the last step, or until a signal comes."""

    def __init__(self, parts: LoopParts, state: RunState) -> None:
        self.parts = parts
        self.state = state
        self._unread: list[Any] = []  # the losses since the last drain, on the device
        self._samples: list[int] = []
        self._rate, self._learning_rate_factor = parts.rules.learning_rate, 1.0
        self._last_step = self._next_due = 0
        self._pause_at = parts.pause_at
        self._agreement = parts.agreement(state.step)
        self._clock = self._logged_at = time.perf_counter()
        self._logged_samples = 0
        self._check: Callable[[], bool] | None = None
        self._before_save: Callable[[], None] | None = None
        self._has_stepped, self._checked_saves = False, 0

    def run(
        self,
        check_state: Callable[[], bool] | None = None,
        before_save: Callable[[], None] | None = None,
    ) -> Ended:
        """Train, and return how it ended.

        Args:
            check_state: Looks for state that no checkpoint holds: after the first step, before the first
                saves, and at the end, until it returns that there is nothing left to look for.
            before_save: Called before each save.

        Returns:
            `completed`, `stopped` or `pruned` by a decision, `preempted` or `interrupted` by a signal, or
            `paused`: at the step `pause_at`, or by the verdict.

        Raises:
            ModelError: The library rejects the model's options or the data.
            TrainingError: A loss is not finite, the verdict fails, or the run directory is gone.
        """
        parts, state, step = self.parts, self.state, self.parts.learner.step
        self._check, self._before_save = check_state, before_save
        parts.signals.wake = self._wake
        parts.saver.start(self._wake)
        parts.outside.start(self._wake, state.train_seconds, state.decisions)
        self._clock = self._logged_at = time.perf_counter()
        try:
            self._plan()
            if state.settled < state.step:
                self._settle()
            if self._check:  # make the first step due: the check must run right after it
                self._next_due = 0
            # Read only where no loss waits: a signal may come between any two lines.
            stop = self._agreement.signal
            while state.step < self._last_step and not stop:
                result = step(state.step, self._rate(state.step) * self._learning_rate_factor)
                state.step += 1
                self._unread.append(result.loss)
                self._samples.append(result.samples)
                if state.step >= self._next_due:
                    if not self._has_stepped:
                        self._has_stepped = True
                        self._check_state()
                    self._settle()
                    stop = self._agreement.signal
        except Stopped:
            pass  # an evaluation was cut short: the checkpoint below says so
        finally:
            parts.world.rest()
            parts.saver.stop_clock()
            parts.outside.close()
        self._agreement.finish(state.step)
        self._check_state()
        if state.settled < state.step:
            state.measures = dict(parts.learner.measures() or state.measures)
        self._save(finished=state.step >= self._last_step)
        return self._agreement.signal or self._ended()

    def _ended(self) -> Ended:
        decision = self.state.decisions.end(self.state.step)
        is_now = decision is not None and decision.step == self.state.step
        if decision is not None and is_now:
            return ENDS[decision.kind]
        return "completed" if self.state.step >= self._natural_end() else "paused"

    def _check_state(self) -> None:
        if self._check and self._has_stepped and self._check():
            self._check = None

    def _settle(self) -> None:
        """Do what is due after the last step: evaluate, decide, journal, save."""
        parts, state = self.parts, self.state
        self._agreement.meet(state.step)
        self._drain()
        if state.settled < state.step:
            self._take_request()
            ending = state.decisions.at(state.step)
            if parts.rules.evaluates(state.step) or (ending and ENDS[ending.kind] == "stopped"):
                self._evaluate()
                ending = state.decisions.at(state.step)
            if ending or parts.rules.logs(state.step) or state.step >= self._natural_end():
                self._log()
            state.settled = state.step
        self._choose_interval()
        parts.recorder.journal.flush()
        for at, message in parts.saver.failures():
            parts.recorder.event(state.step, "checkpoint_failed", saved_step=at, message=message)
            log.warning("%s; training continues, and will save again", message)
        if parts.saver.at_boundary(state.step):
            parts.saver.mark(state, parts.rules.best_steps(state.evaluations))
        if self._agreement.save_is_due(state.step) or parts.rules.saves(state.step):
            self._save()
        self._plan()

    def _save(self, *, finished: bool = False) -> None:
        """Save the state, in all processes, if the main one has not saved this step already."""
        saver, state, world = self.parts.saver, self.state, self.parts.world
        if not world.from_main(lambda: saver.wants(state.step, finished=finished)):
            return
        with world.working("a save", _LEAST_SAVE):
            if self._checked_saves < _CHECKED_SAVES and not finished:
                self._checked_saves += 1
                self._check_state()
            if self._before_save:
                self._before_save()
            saver.save(state, self.parts.rules.best_steps(state.evaluations), finished=finished)

    def _drain(self) -> None:
        """Read the losses that wait on the device, and journal each."""
        state, values = self.state, self.parts.learner.read(self._unread)
        if not values:
            return
        first = state.step - len(values) + 1
        self.parts.recorder.losses(first, values)
        for value, samples in zip(values, self._samples, strict=True):
            state.loss_sum += value * samples
            state.loss_samples += samples
        for logged in self.parts.learner.logged():
            for name, (total, rows) in logged.items():
                before, known = state.logged.get(name, (0.0, 0))
                state.logged[name] = before + total, known + rows
        self._logged_samples += sum(self._samples)
        self._unread, self._samples = [], []
        if not math.isfinite(state.loss_sum):
            at = first + next(i for i, value in enumerate(values) if not math.isfinite(value))
            remedies = [*self.parts.remedies, "look for extreme values in the data"]
            raise TrainingError(f"the loss of step {at} is not finite; {', or '.join(remedies)}")

    def _evaluate(self) -> None:
        parts, state = self.parts, self.state
        metrics = parts.evaluate()
        if not metrics:
            return
        state.evaluations.append(Evaluation(state.step, metrics))
        parts.recorder.evaluated(state.step, metrics)
        best = parts.rules.best_steps(state.evaluations)
        with parts.world.working("a save", _LEAST_SAVE):
            parts.saver.keep_best(state.step, best)
        for name, detail in parts.rules.events(state.evaluations):
            parts.recorder.event(state.step, name, **detail)
        self._judge(metrics)

    def _natural_end(self) -> int:
        """Return the last step of a run that nothing ends early but its own rules."""
        return self.parts.rules.last_step(self.state.evaluations)

    # -- decisions

    def _take_request(self) -> None:
        """Turn a request to stop, or the time limit, into a decision if it came since the last call."""
        outside, world = self.parts.outside, self.parts.world
        request = self._agreement.take_request()
        if request is None:
            return
        limit = world.from_main(lambda: outside.max_minutes)
        detail = {"max_minutes": limit} if request == "time_limit" else {}
        self._end_by(request, detail)

    def _judge(self, metrics: Metrics) -> None:
        """Ask for the verdict on this step, unless it is known or the run ends here anyway.

        Raises:
            InputError: The verdict is not `keep`, `prune` or `pause`.
            TrainingError: The function that judges has raised an error.
        """
        verdict, step, decisions = self.parts.outside.verdict, self.state.step, self.state.decisions
        if verdict is None or step <= decisions.judged or decisions.at(step) or step >= self._natural_end():
            return
        try:
            answer = self.parts.world.from_main(lambda: verdict(step, dict(metrics)))
        except Exception as error:
            message = f"the verdict on step {step} failed: {type(error).__name__}: {error}"
            raise TrainingError(f"{message}; fix it, then resume the run") from error
        if answer == "pause":  # no decision: a resume continues as if the run had not paused
            self._pause_at = self.parts.rules.resumable(step)
            return
        if answer not in ("keep", "prune"):
            raise InputError(f"the verdict on step {step} is {answer!r}; allowed: 'keep', 'prune', 'pause'")
        if answer == "keep" or not self._end_by("prune", {"judged": step}):
            self._decide(Decision(step, "keep"))

    def _end_by(self, kind: Kind, detail: dict[str, Any]) -> bool:
        """Decide to end the run at the next step that it could resume from; return whether it ends there.

        Nothing is decided if it ends sooner anyway.
        """
        rules, decisions = self.parts.rules, self.state.decisions
        step = rules.resumable(self.state.step)
        while decisions.went_on(step):
            step = rules.resumable(step + 1)
        end = decisions.end(self.state.step)
        if step >= min(self._natural_end(), end.step if end else math.inf):
            return False
        self._decide(Decision(step, kind, detail))
        return True

    def _choose_interval(self) -> None:
        """Decide how often to save, if the config leaves that to us and a save has been measured."""
        saver, world = self.parts.saver, self.parts.world
        detail = self._agreement.interval()
        if detail is None:
            return
        decision = Decision(self.state.step, "checkpoint_interval", detail)
        if decision in self.state.decisions:  # by an attempt with other processes
            return
        self._decide(decision)
        saver.save_every(detail["minutes"])
        if world.is_main:
            log.info("checkpoints: %s", interval_in_words(detail))

    def _decide(self, decision: Decision) -> None:
        """Record a decision: on the disk when this returns, and in the run's store if it ends the run."""
        self.parts.recorder.decided(decision)
        self.state.decisions.add(decision)
        if decision.kind in ENDS:
            self.parts.saver.store_journal(decision.step)

    def _log(self) -> None:
        state, now = self.state, time.perf_counter()
        rate = self._rate(state.step - 1) * self._learning_rate_factor
        metrics = {
            **{name: total / max(1, rows) for name, (total, rows) in state.logged.items()},
            "train_loss": state.loss_sum / max(1, state.loss_samples),
            **({"learning_rate": rate} if self.parts.rules.has_learning_rate else {}),
            **(self.parts.learner.measures() or state.measures),
            "epoch": self.parts.order.epochs(state.step),
            "samples_per_second": self._logged_samples / max(1e-9, now - self._logged_at),
        }
        self.parts.recorder.logged(state.step, metrics)
        state.loss_sum, state.loss_samples, state.measures, state.logged = 0.0, 0, {}, {}
        self._logged_at, self._logged_samples = now, 0

    def _plan(self) -> None:
        """Compute the last step, and the next one at which something is due: once for many steps."""
        parts, state, now = self.parts, self.state, time.perf_counter()
        state.train_seconds += now - self._clock
        self._clock = now
        last, end = self._natural_end(), state.decisions.end(state.step)
        last = last if self._pause_at is None else min(last, self._pause_at)
        self._last_step = min(last, end.step if end else last)
        self._learning_rate_factor = parts.rules.learning_rate_factor(state.evaluations)
        self._next_due = min(
            parts.rules.next_due(state.step),
            state.decisions.next_end(state.step) or self._last_step,
            state.step + _DRAIN_STEPS,
            self._last_step,
            self._agreement.next_step,
        )
        if state.step < self._last_step:
            self._agreement.watch(self._next_due - state.step)
        # A request may have come, and woken the loop, before `_next_due` was set above.
        if parts.signals.status or parts.saver.overdue or parts.outside.request:
            self._wake()

    def _wake(self) -> None:
        """End the current stretch of steps after this one; called by signal handlers and other threads.

        Several processes must end it together: there, what came waits for the step at which they agree.
        """
        if self._agreement.may_wake():
            self._next_due = 0
