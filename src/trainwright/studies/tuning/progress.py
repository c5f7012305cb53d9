"""The progress of a search: trials done, running, pruned and failed, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from trainwright.records.trials import LoggedTrial


class Progress:
    """The progress of a search since this process works on it.

    Args:
        total: The number of trials, if nothing ends the search early.
        max_minutes: The time limit, if there is one.
        clock: Returns seconds.
    """

    def __init__(
        self, total: int, max_minutes: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._clock = total, clock
        self._limit = None if max_minutes is None else 60 * max_minutes
        self._began, self._before = clock(), 0

    def resumed(self, trials: Sequence[LoggedTrial]) -> None:
        """Do not count trials that ended earlier when estimating the time left."""
        self._before = sum(trial.ending is not None for trial in trials)

    def shown(self, trials: Sequence[LoggedTrial], running: int) -> dict[str, str | int]:
        """Return what a progress line says; `running` is the number of trials that are being trained."""
        statuses = [trial.ending.status for trial in trials if trial.ending is not None]
        counts = {name: statuses.count(name) for name in ("pruned", "failed")}
        shown: dict[str, str | int] = {"done": f"{len(statuses)}/{self._total}", "running": running}
        shown |= {name: count for name, count in counts.items() if count}
        if (left := self._left(len(statuses))) is not None:
            shown["time_left"] = _brief(left)
        return shown

    def _left(self, ended: int) -> float | None:
        """Return the seconds that are left at the pace so far; None before the first trial has ended."""
        passed, own = self._clock() - self._began, ended - self._before
        if own <= 0:
            return None
        left = passed / own * max(0, self._total - ended)
        return left if self._limit is None else min(left, max(0.0, self._limit - passed))


def _brief(seconds: float) -> str:
    """Return a time span without spaces: `45s`, `3m20s`, `2h05m`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"
