"""Times whole processes, side by side: rounds are interleaved, so that what else the machine does hits all alike."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class Cost(NamedTuple):
    """Of one process and all the processes that it waited for: seconds, CPU seconds, and the largest one's peak MiB."""

    wall: float
    cpu: float
    peak: float


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Cost:
    """Runs a command to its end.

    Raises:
        RuntimeError: it failed; the message holds the end of its output.
    """
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _, status, usage = os.wait4(process.pid, 0)  # unlike Popen.wait, it says what the process used
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            tail = output.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{tail}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    cells = [[cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
             for row in [header, *rows]]  # fmt: skip
    rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [cells[0], rule, *cells[1:]])


def machine() -> str:
    """What this was measured on, and how busy it was before: other work spoils the wall times."""
    load = os.getloadavg()[0]
    return (
        f"{len(os.sched_getaffinity(0))} cores {platform.machine()}, {platform.system()}, Python {platform.python_version()}; "
        f"load average {load:.1f} at the start" + ("  <- NOT QUIET" if load > 0.5 else "")
    )


@contextmanager
def workplace(on: Path | None = None) -> Iterator[Path]:
    """An empty folder; on the disk of `on`, where given, as /tmp may be memory."""
    with tempfile.TemporaryDirectory(prefix="trainyard-bench-", dir=on) as folder:
        yield Path(folder)
