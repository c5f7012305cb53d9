"""Causes from outside to end a run early: its time limit, a request to stop, a verdict on an evaluation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Literal

from trainwright.errors import InputError
from trainwright.process.alarms import Alarm, call_later
from trainwright.records.decision import Decisions
from trainwright.types import Metrics

# `pause` is no decision: the attempt ends with a commit, and the run can go on as if it had not paused.
Verdict = Literal["keep", "prune", "pause"]
VerdictFunction = Callable[[int, Metrics], Verdict]  # judges a run by the step and metrics of an evaluation
StopRequest = Literal["stop", "time_limit"]
POLL_SECONDS = 0.5


def check_verdict(verdict: VerdictFunction | None) -> None:
    """Refuse what cannot judge an evaluation, before anything is trained for it.

    Raises:
        InputError: It cannot be called with a step and metrics.
    """
    advice = "give a function that takes the step and the metrics, and returns 'keep', 'prune' or 'pause'"
    if verdict is None:
        return
    if not callable(verdict):
        raise InputError(f"verdict: {verdict!r} is not a function; {advice}")
    try:
        inspect.signature(verdict).bind(None, None)
    except TypeError as error:
        name = getattr(verdict, "__name__", type(verdict).__name__)
        raise InputError(
            f"verdict: {name} cannot be called with (step, metrics): {error}; {advice}"
        ) from None
    except ValueError:
        pass  # nothing is known of the arguments of a function that is built in


class Outside:
    """Watch for the time limit and for a request to stop while the loop runs.

    Either becomes `request` and wakes the loop. The loop alone decides at which step it takes effect.

    Args:
        max_minutes: The limit of the training time, counted anew after each resume of a stopped run; None: no
            limit.
        is_asked: Returns whether the run is asked to stop; None: it cannot be.
        verdict: Judges each evaluation; None: nothing does.
    """

    def __init__(
        self,
        max_minutes: float | None = None,
        is_asked: Callable[[], bool] | None = None,
        verdict: VerdictFunction | None = None,
    ) -> None:
        self.max_minutes = max_minutes
        self.verdict = verdict
        self.request: StopRequest | None = None
        self._is_asked = is_asked
        self._wake: Callable[[], None]  # set by `start`
        self._is_watching = False
        self._limit: Alarm | None = None
        self._poll: Alarm | None = None

    def start(self, wake: Callable[[], None], train_seconds: float, decisions: Decisions) -> None:
        """Start to watch.

        Args:
            wake: Called in another thread when there is a request.
            train_seconds: The training time of the run so far.
            decisions: The decisions of the run so far.
        """
        self._wake, self._is_watching = wake, True
        if self.max_minutes is not None:
            left = decisions.seconds_before_limit() + 60 * self.max_minutes - train_seconds
            self._limit = call_later(max(0.0, left), lambda: self._found("time_limit"))
        if self._is_asked is not None:
            self._poll = call_later(0.0 if self._is_asked() else POLL_SECONDS, self._look)

    def take(self) -> StopRequest | None:
        """Return the request, if there is one, and forget it."""
        request, self.request = self.request, None
        return request

    def close(self) -> None:
        """Stop watching."""
        self._is_watching = False
        for alarm in (self._limit, self._poll):
            if alarm is not None:
                alarm.cancel()

    def _look(self) -> None:
        """Look for a request to stop, now and again."""
        if self._is_asked is not None and self._is_asked():
            self._found("stop")
        elif self._is_watching:
            self._poll = call_later(POLL_SECONDS, self._look)

    def _found(self, request: StopRequest) -> None:
        """Tell the loop of the first request; then there is nothing more to watch for."""
        if self._is_watching:
            self.close()
            self.request = request
            self._wake()
