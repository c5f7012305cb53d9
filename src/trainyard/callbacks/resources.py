"""How much of the machine the training process takes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainyard.callbacks.base import Callback, RunView

SECONDS = 10.0  # at most one record in this time
_MIB = 2**20


class Resources(Callback):
    """At most every 10 s, hands on `cpu_percent` (100 is one processor, over the time since the last record) and `rss_mib`.

    Both are of this process alone. Where the system does not tell the resident memory (outside Linux), it is left out.
    """

    def __init__(self, emit: Callable[[int, dict[str, Any]], None]) -> None:
        self._emit = emit
        self._wall = time.monotonic()
        self._cpu = time.process_time()

    def on_start(self, run: RunView) -> None:  # noqa: ARG002 - only the moment counts
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:  # noqa: ARG002 - only the moment counts
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
