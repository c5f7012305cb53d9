"""The cost of a resume within an epoch of 10^8 samples: `python benchmarks/resume.py`.

A run is stopped by SIGTERM within its epoch and resumed; both attempts are timed until their first ten steps.
The same with 10^4 samples shows how much time and memory depend on the number of rows. Training half an epoch
of 10^8 samples would take an hour, so the computation of the order in the middle of the epoch is timed
separately.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from harness import ONE_THREAD, machine, median, table, temporary_folder

MODULE = '''\
import numpy as np


class Computed:
    """Rows that are computed, not stored."""

    classes = [0, 1]
    fingerprint = "computed-1"

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        return np.array([i % 7, i % 11, i % 13, i % 17], np.float32), i % 2


def splits(rows):
    return {"train": Computed(rows), "val": Computed(64)}
'''
CONFIG = """\
experiment: {name: long}
data: {type: "computed:splits", params: {rows: ROWS}}
model: {type: mlp, hidden: [16]}
training: {max_steps: 1000000, batch_size: 32, threads: 1}
evaluation: {every_n_steps: 1000000}
checkpoint: {every_n_minutes: null}
"""
COMMAND = [sys.executable, "-m", "trainwright"]
ROWS = {"10^4 samples": 10**4, "10^8 samples": 10**8}
STOP_AT = 2000  # steps
PREEMPTED = 75  # the exit code
ORDER = """\
import resource, sys, time
from trainwright.order import SampleOrder
order = SampleOrder(int(sys.argv[1]), 32, 1)
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
order.batch(order.steps_per_epoch // 2)
elapsed = time.perf_counter() - began
print(elapsed, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


class Start(NamedTuple):
    """The seconds from the start of a process to its first ten steps, and its peak memory in MiB."""

    wall: float
    peak: float


def main() -> None:
    """Time fresh and resumed attempts in interleaved rounds and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    print(machine())
    starts: dict[str, list[Start]] = {f"{kind}, {name}": [] for name in ROWS for kind in ("fresh", "resumed")}
    with temporary_folder() as folder:
        (folder / "computed.py").write_text(MODULE)
        for number in range(arguments.rounds):
            for name, rows in ROWS.items():
                (folder / "config.yaml").write_text(CONFIG.replace("ROWS", str(rows)))
                starts[f"fresh, {name}"].append(start([*COMMAND, "train", "config.yaml"], folder, STOP_AT))
                starts[f"resumed, {name}"].append(start([*COMMAND, "resume", "last"], folder, 0))
            print(f"round {number + 1} of {arguments.rounds} done", file=sys.stderr)
    cells = [
        [
            name,
            f"{min(run.wall for run in runs):.2f}",
            f"{median([run.wall for run in runs]):.2f}",
            f"{median([run.peak for run in runs]):.0f}",
        ]
        for name, runs in starts.items()
    ]
    print(table(["to the first 10 steps", "minimum s", "median s", "peak MiB"], cells))
    for name in ROWS:
        pairs = zip(starts[f"resumed, {name}"], starts[f"fresh, {name}"], strict=True)
        extra = median([resumed.wall - fresh.wall for resumed, fresh in pairs])
        print(f"{name}: a resume takes {extra:+.2f} s (median) compared with a fresh start")
    for name, rows in ROWS.items():
        elapsed, growth = subprocess.run(
            [sys.executable, "-c", ORDER, str(rows)], capture_output=True, text=True, check=True
        ).stdout.split()
        print(
            f"{name}: the order in the middle of an epoch takes {float(elapsed) * 1e3:.1f} ms "
            f"and {float(growth):.1f} MiB"
        )


def start(command: list[str], folder: Path, stop_at: int) -> Start:
    """Time a run to its first line of training metrics, and stop it by SIGTERM after `stop_at` steps.

    Raises:
        RuntimeError: if it does not end as preempted.
    """
    began, first = time.perf_counter(), 0.0
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, **ONE_THREAD},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output = []
    assert process.stdout is not None
    for line in process.stdout:
        output.append(line)
        if match := re.match(r"trainwright step=(\d+)/\d+ .*train_loss=", line):
            first = first or time.perf_counter() - began
            if int(match[1]) >= stop_at:
                process.send_signal(signal.SIGTERM)
                stop_at = sys.maxsize
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != PREEMPTED or not first:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(output)}")
    return Start(first, usage.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
