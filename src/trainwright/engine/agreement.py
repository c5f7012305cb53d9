"""The agreement of a run's processes between steps.

Signals, clocks and requests reach one process at a time. Several processes must act on them after the same
step, so each acts only on what all have agreed on, and the steps at which they agree depend on nothing else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from trainwright.engine.outside import Outside, StopRequest
from trainwright.engine.saver import Saver
from trainwright.engine.signals import Signals
from trainwright.engine.step_times import StepClock, StepTimes, Stragglers
from trainwright.records.status import Ended
from trainwright.world import World

MAX_STEPS = 1024  # between two agreements
_SECONDS = 0.5  # between two agreements, but at least _TIMES as long as an agreement takes
_TIMES = 50
# A process hangs if the steps to the next agreement take it this many seconds, and this many times as long as
# the last steps took.
_HANG_SECONDS, _HANG_TIMES = 60.0, 10
_FIRST_HANG_SECONDS = 1800.0  # for the first steps of an attempt, which may compile and warm up


class Agreement:
    """The agreement of a single process, which acts on nothing but its own knowledge.

    Args:
        signals: Say which signal has come.
        outside: Says what was asked from outside.
        saver: Says when a save is due, and how often to save.
    """

    next_step = sys.maxsize  # after which the processes agree next

    def __init__(self, signals: Signals, outside: Outside, saver: Saver) -> None:
        self._signals, self._outside, self._saver = signals, outside, saver

    @property
    def signal(self) -> Ended | None:
        """The request of a signal, if one came."""
        return self._signals.status

    def take_request(self) -> StopRequest | None:
        """Return what was asked from outside since the last call, if anything was."""
        return self._outside.take()

    def save_is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due after a step."""
        return self._saver.is_due(step)

    def interval(self) -> dict[str, Any] | None:
        """Return how often to save from now on, if that is to be decided."""
        return self._saver.suggested_interval()

    def may_wake(self) -> bool:
        """Return whether this process may end a stretch of steps early."""
        return True

    def meet(self, step: int) -> None:
        """Agree with the other processes, after a step."""

    def watch(self, steps: int) -> None:
        """Expect the next call of `meet` in `steps` steps; end the process if it takes far longer."""

    def finish(self, step: int) -> None:
        """Exchange the last reports, after the last step."""


class _Report(NamedTuple):
    """One process's report at an agreement point; the main process's numbers count."""

    signal: Ended | None
    request: StopRequest | None
    steps: int  # to the next agreement
    save_is_due: bool
    interval: dict[str, Any] | None  # a decision on how often to save
    wants_times: bool  # whether all report their step times next time
    times: StepTimes | None
    waited: float  # seconds the last agreement took here; the minimum over processes is its cost


class SharedAgreement(Agreement):
    """The agreement of several processes: the state of all when they last met.

    Args:
        own: What this process knows by itself.
        world: The processes.
        step: The step after which the attempt begins.
        step_seconds: Returns how long the steps took in this process since the last call.
        stragglers: Records the step times of all processes.
    """

    def __init__(
        self,
        own: Agreement,
        world: World,
        step: int,
        step_seconds: Callable[[], Sequence[float]],
        stragglers: Stragglers,
    ) -> None:
        self._own, self._world, self._step_seconds = own, world, step_seconds
        self._agreed: _Report | None = None
        self._signal: Ended | None = None
        self._request: StopRequest | None = None
        self.next_step = step + 1
        self._met_at, self._met_after = time.perf_counter(), step
        self._pace: float | None = None  # seconds that a step took lately
        self._waited = 0.0  # seconds of the last agreement
        self._cost = 0.0  # seconds that it took at least, in every process
        self._clock, self._stragglers = StepClock(), stragglers
        self._wants_times = False

    @property
    def signal(self) -> Ended | None:
        """The request of a signal to any of the processes."""
        return self._signal

    def take_request(self) -> StopRequest | None:
        """Return the request that any of the processes received, if one did."""
        request, self._request = self._request, None
        return request

    def save_is_due(self, step: int) -> bool:  # noqa: ARG002 - the step was that of the agreement
        """Return whether the main process has a checkpoint due."""
        return self._agreed is not None and self._agreed.save_is_due

    def interval(self) -> dict[str, Any] | None:
        """Return how often the main process suggests to save."""
        return None if self._agreed is None else self._agreed.interval

    def may_wake(self) -> bool:
        """Return False: the others would make more steps."""
        return False

    def meet(self, step: int) -> None:
        """Tell all processes of signals and requests that came to one of them, and when to agree next."""
        began = time.perf_counter()
        own = self._report(step, began)
        reports = self._world.gather(own)
        self._world.rest()
        self._met_at, self._met_after = time.perf_counter(), step
        self._waited = self._met_at - began
        self._cost = min(report.waited for report in reports)
        self._record(step, [report.times for report in reports])
        self._agreed = reports[0]
        # Its `is_due` was read before `take` began a new window.
        self._wants_times = self._agreed.wants_times and not self._wants_times
        self._signal = next((report.signal for report in reports if report.signal), None)
        self._request = next((report.request for report in reports if report.request), None)
        self.next_step = step + self._agreed.steps

    def watch(self, steps: int) -> None:
        """End this process if the next `steps` steps take far longer than the latest ones did."""
        self._world.barrier()  # the main process may have been writing: all begin their steps together
        least = _FIRST_HANG_SECONDS if self._pace is None else _HANG_SECONDS
        self._world.watch(max(least, _HANG_TIMES * steps * (self._pace or 0.0)))

    def finish(self, step: int) -> None:
        """Record the step times since the last window."""
        self._clock.add(self._step_seconds())
        self._record(step, self._world.gather(self._clock.take()))

    def _report(self, step: int, now: float) -> _Report:
        self._request = self._request or self._own.take_request()
        self._clock.add(self._step_seconds())
        return _Report(
            self._own.signal,
            self._request,
            self._stretch(step, now),
            self._own.save_is_due(step),
            self._own.interval(),
            self._clock.is_due(self._world.size),
            self._clock.take() if self._wants_times else None,
            self._waited,
        )

    def _stretch(self, step: int, now: float) -> int:
        """Return the number of steps to the next agreement, by how long the last ones took."""
        steps = step - self._met_after
        if steps <= 0:
            return 1
        self._pace = (now - self._met_at) / steps
        seconds = max(_SECONDS, _TIMES * self._cost)
        return max(1, min(MAX_STEPS, int(seconds / max(1e-9, self._pace))))

    def _record(self, step: int, times: Sequence[StepTimes | None]) -> None:
        """Journal the step times of all processes, if they have told them."""
        known = [one for one in times if one is not None]
        if known and self._world.is_main:
            self._stragglers.record(step, known)
