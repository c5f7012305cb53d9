"""What it costs to resume in the middle of an epoch of 10^8 samples: `python benchmarks/resume.py`.

A run is stopped by SIGTERM within its epoch and resumed; both are timed to their first ten steps. The same with 10^4
samples shows what of the time and memory comes from the number of rows. Training half an epoch of 10^8 samples would
take an hour, so the order in its very middle is timed by itself.
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

from harness import ONE_THREAD, machine, median, table, workplace

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
COMMAND = [sys.executable, "-m", "trainyard"]
ROWS = {"10^4 samples": 10**4, "10^8 samples": 10**8}
STOP_AT = 2000  # steps
PREEMPTED = 75  # the exit code
ORDER = """\
import resource, sys, time
from trainyard.order import SampleOrder
order = SampleOrder(int(sys.argv[1]), 32, 1)
before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
order.batch(order.steps_per_epoch // 2)
taken = time.perf_counter() - began
print(taken, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


class Start(NamedTuple):
    """Seconds from the start of the process to its first ten steps; the peak MiB of its whole life."""

    wall: float
    peak: float


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    print(machine())
    starts: dict[str, list[Start]] = {f"{kind}, {name}": [] for name in ROWS for kind in ("fresh", "resumed")}
    with workplace() as folder:
        (folder / "computed.py").write_text(MODULE)
        for number in range(given.rounds):
            for name, rows in ROWS.items():
                (folder / "config.yaml").write_text(CONFIG.replace("ROWS", str(rows)))
                starts[f"fresh, {name}"].append(start([*COMMAND, "train", "config.yaml"], folder, STOP_AT))
                starts[f"resumed, {name}"].append(start([*COMMAND, "resume", "last"], folder, 0))
            print(f"round {number + 1} of {given.rounds} done", file=sys.stderr)
    rows_shown = [
        [
            name,
            f"{min(s.wall for s in some):.2f}",
            f"{median([s.wall for s in some]):.2f}",
            f"{median([s.peak for s in some]):.0f}",
        ]
        for name, some in starts.items()
    ]
    print(table(["to the first 10 steps", "least s", "median s", "peak MiB"], rows_shown))
    for name in ROWS:
        pairs = zip(starts[f"resumed, {name}"], starts[f"fresh, {name}"], strict=True)
        extra = median([resumed.wall - fresh.wall for resumed, fresh in pairs])
        print(f"{name}: resuming costs {extra:+.2f} s (median) over a fresh start")
    for name, rows in ROWS.items():
        taken, grown = subprocess.run(
            [sys.executable, "-c", ORDER, str(rows)], capture_output=True, text=True, check=True
        ).stdout.split()
        print(
            f"{name}: the order in the middle of an epoch takes {float(taken) * 1e3:.1f} ms and {float(grown):.1f} MiB"
        )


def start(command: list[str], folder: Path, stop_at: int) -> Start:
    """Starts a run, times it to its first line of training metrics, and stops it by SIGTERM behind step `stop_at`."""
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
        if found := re.match(r"trainyard step=(\d+)/\d+ .*train_loss=", line):
            first = first or time.perf_counter() - began
            if int(found[1]) >= stop_at:
                process.send_signal(signal.SIGTERM)
                stop_at = sys.maxsize
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != PREEMPTED or not first:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{''.join(output)}")
    return Start(first, usage.ru_maxrss / 1024)


if __name__ == "__main__":
    main()
