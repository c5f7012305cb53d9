"""Call functions at a later time, in one thread for all of the process.

A thread for each clock of a run would take longer to start than most of what a short run does.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("trainwright")
SILENCE = 2.0  # seconds, after which a line says what is going on
_IDLE_SECONDS = 0.25  # that the thread waits for another alarm when there is none


class Alarm:
    """A function that is called at a time, unless it is cancelled before."""

    def __init__(self, at: float, function: Callable[[], object]) -> None:
        self.at = at  # by the monotonic clock
        self.function = function

    def cancel(self) -> None:
        """Do not call the function, unless it has just been begun."""
        _clock.remove(self)


def call_later(seconds: float, function: Callable[[], object]) -> Alarm:
    """Call a function once, when some seconds have passed; it must return soon, as others wait for it."""
    alarm = Alarm(time.monotonic() + seconds, function)
    _clock.add(alarm)
    return alarm


@contextmanager
def announced(work: str, silence: float = SILENCE) -> Iterator[None]:
    """Log one line if the work takes longer than `silence` seconds.

    Args:
        work: What is done, as `reading a.csv`.
        silence: Seconds without a line.
    """
    alarm = call_later(silence, lambda: log.info("%s ...", work))
    try:
        yield
    finally:
        alarm.cancel()


class _Clock:
    """The alarms of this process, and the thread that waits for the next one while there are any."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._alarms: list[Alarm] = []
        self._thread: threading.Thread | None = None
        self._wakes_at = 0.0

    def add(self, alarm: Alarm) -> None:
        """Add an alarm; the thread is woken only if it would sleep for too long."""
        with self._changed:
            self._alarms.append(alarm)
            if self._thread is None or not self._thread.is_alive():  # it could not be started before
                self._thread = threading.Thread(target=self._run, name="trainwright-clock", daemon=True)
                self._thread.start()
            elif alarm.at < self._wakes_at:
                self._changed.notify()

    def remove(self, alarm: Alarm) -> None:
        """Forget an alarm. The thread sleeps on: the next run will soon need it again."""
        with self._changed:
            if alarm in self._alarms:
                self._alarms.remove(alarm)

    def _run(self) -> None:
        while (due := self._due()) is not None:
            for alarm in due:
                try:
                    alarm.function()
                except Exception:  # the other alarms go on
                    log.exception("a function that was to be called later has failed")

    def _due(self) -> list[Alarm] | None:
        """Wait for the next alarms and return them; None ends the thread: there are no others."""
        with self._changed:
            is_idle = False
            while self._alarms or not is_idle:
                now, is_idle = time.monotonic(), not self._alarms
                if due := [alarm for alarm in self._alarms if alarm.at <= now]:
                    self._alarms = [alarm for alarm in self._alarms if alarm.at > now]
                    return due
                self._wakes_at = min((alarm.at for alarm in self._alarms), default=now + _IDLE_SECONDS)
                self._changed.wait(min(self._wakes_at - now, threading.TIMEOUT_MAX))
            self._thread = None
            return None


_clock = _Clock()
if hasattr(os, "register_at_fork"):  # a child has neither the thread, nor its parent's runs
    os.register_at_fork(after_in_child=_clock.__init__)  # type: ignore[misc]
