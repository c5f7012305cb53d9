"""The processor time and memory that the training process uses."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainwright.callbacks.base import Callback, RunView

SECONDS = 10.0  # at most one record in this time
_MIB = 2**20


class Resources(Callback):
    """Emits `cpu_percent` and `rss_mib` of this process, at most every 10 s.

    100 `cpu_percent` is one processor, averaged since the last record. `rss_mib` is left out where the system
    does not report resident memory (outside Linux).
    """

    def __init__(self, emit: Callable[[int, dict[str, Any]], None]) -> None:
        self._emit = emit
        self._wall = time.monotonic()
        self._cpu = time.process_time()

    def on_start(self, run: RunView) -> None:  # noqa: ARG002
        """Begin the first period."""
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:  # noqa: ARG002
        """Emit a record if the last one is 10 s old."""
        wall = time.monotonic()
        if wall - self._wall < SECONDS:
            return
        cpu = time.process_time()
        self._emit(step, {"cpu_percent": 100 * (cpu - self._cpu) / (wall - self._wall), **_memory()})
        self._wall, self._cpu = wall, cpu


def _memory() -> dict[str, float]:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return {}
    return {"rss_mib": pages * os.sysconf("SC_PAGE_SIZE") / _MIB}
