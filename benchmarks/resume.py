"""What it costs to resume in the middle of an epoch of 10^8 samples: `python benchmarks/resume.py`.

A run is stopped by SIGTERM in the middle of its first epoch and resumed for some steps; a fresh run makes as many. The
same with 10^4 samples shows what of the time and memory comes from the number of rows.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness import ONE_THREAD, Cost, machine, median, run, table, workplace

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
SHORT = "10^4 samples"
ROWS = {SHORT: 10**4, "10^8 samples": 10**8}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--seconds", type=float, default=8.0, help="how long the run trains before it is stopped")
    options.add_argument("--steps", type=int, default=200, help="steps of the fresh and of the resumed run")
    given = options.parse_args()
    print(machine())
    costs: dict[str, list[Cost]] = {f"{kind}, {name}": [] for name in ROWS for kind in ("fresh", "resumed")}
    with workplace() as folder:
        (folder / "computed.py").write_text(MODULE)
        for name, rows in ROWS.items():
            (folder / f"{rows}.yaml").write_text(CONFIG.replace("ROWS", str(rows)))
        for number in range(given.rounds):
            for name, rows in ROWS.items():
                fresh = [*COMMAND, "train", f"{rows}.yaml", f"training.max_steps={given.steps}", "--quiet"]
                costs[f"fresh, {name}"].append(run(fresh, folder, ONE_THREAD))
                at = interrupted(rows, folder, given.seconds)
                more = [*fresh[:-2], f"training.max_steps={at + given.steps}", "--quiet"]
                costs[f"resumed, {name}"].append(run([*COMMAND, "resume", "last", "--quiet"], folder, ONE_THREAD) if more else None)
            print(f"round {number + 1} of {given.rounds} done", file=sys.stderr)
