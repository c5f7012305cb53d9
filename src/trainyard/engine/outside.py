"""What may end a run early: its time limit, a request to stop it, a verdict on an evaluation."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable
from typing import Literal

from trainyard.errors import InputError
from trainyard.records.decision import Decisions
from trainyard.types import Metrics

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
    """Watch for the time limit and for a request to stop while the loop runs, in a thread of its own.

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
        self._closed = threading.Event()

    def start(self, wake: Callable[[], None], train_seconds: float, decisions: Decisions) -> None:
        """Start to watch.

        Args:
            wake: Called in the thread when there is a request.
            train_seconds: The training time of the run so far.
            decisions: The decisions of the run so far.
        """
        left = None
        if self.max_minutes is not None:
            left = decisions.seconds_before_limit() + 60 * self.max_minutes - train_seconds
        if left is not None or self._is_asked is not None:
            name = "trainyard-outside"
            threading.Thread(target=self._watch, args=(wake, left), name=name, daemon=True).start()

    def take(self) -> StopRequest | None:
        """Return the request, if there is one, and forget it."""
        request, self.request = self.request, None
        return request

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()

    def _watch(self, wake: Callable[[], None], left: float | None) -> None:
        end = None if left is None else time.monotonic() + left
        while self.request is None:
            if self._is_asked is not None and self._is_asked():
                self.request = "stop"
            elif end is not None and time.monotonic() >= end:
                self.request = "time_limit"
            else:
                polling = [POLL_SECONDS] if self._is_asked is not None else []
                rest = [max(0.0, end - time.monotonic())] if end is not None else []
                if self._closed.wait(min(*polling, *rest, threading.TIMEOUT_MAX)):
                    return
        wake()
