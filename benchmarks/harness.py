"""Timing of whole processes, in interleaved rounds so that other load affects all jobs alike."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


class Cost(NamedTuple):
    """The cost of a process and its awaited children: seconds, CPU seconds, peak MiB of the largest."""

    wall: float
    cpu: float
    peak: float


def run(command: Sequence[str], folder: Path, environment: Mapping[str, str] | None = None) -> Cost:
    """Run a command to its end and return its cost.

    Raises:
        RuntimeError: if it failed; the message contains the end of its output.
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
        _, status, usage = os.wait4(process.pid, 0)  # unlike Popen.wait, it returns the usage
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            tail = output.read().decode(errors="replace")[-2000:]
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{tail}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def noted_times(folder: Path) -> list[float]:
    """Return when each interval of steps ended: what `times.txt` says, or else the newest journal."""
    if (folder / "times.txt").exists():
        return list(map(float, (folder / "times.txt").read_text().split()))
    newest = max((folder / "runs").glob("*/*/journal/*.jsonl"), key=lambda path: path.stat().st_mtime)
    rows = map(json.loads, newest.read_text().splitlines())
    return [row["time"] for row in rows if row["kind"] == "metrics" and "train_loss" in row["values"]]


def interval_of(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> float:
    """Run a job that notes the time every few steps; return the seconds of its median interval.

    Neither the start-up counts nor a moment in which the machine did something else.
    """
    (folder / "times.txt").unlink(missing_ok=True)
    run(command, folder, environment)
    return statistics.median(later - earlier for earlier, later in pairwise(noted_times(folder)))


def median(values: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, with the first column left-aligned and the others right-aligned."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    cells = [
        [
            cell.ljust(w) if i == 0 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        for row in [header, *rows]
    ]
    rule = ["-" * w if i == 0 else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [cells[0], rule, *cells[1:]])


def machine() -> str:
    """Return a description of the machine and its load at the start: other work distorts wall times."""
    load = os.getloadavg()[0]
    return (
        f"{len(os.sched_getaffinity(0))} cores {platform.machine()}, {platform.system()}, "
        f"Python {platform.python_version()}; load average {load:.1f} at the start"
        + ("  <- NOT QUIET" if load > 0.5 else "")
    )


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """Yield an empty folder in `parent`; by default in the temporary folder, which may be in memory."""
    with tempfile.TemporaryDirectory(prefix="trainwright-bench-", dir=parent) as folder:
        yield Path(folder)
