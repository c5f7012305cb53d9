"""Measure the memory of one model, in a process of its own: `python -m trainwright.compression.memory`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from trainwright.datasets.samples.arrays import Arrays
from trainwright.records.run_dir import RunDir
from trainwright.runs.predictor import open_predictor
from trainwright.runs.workdir import working_for


def _now(key: str) -> int | None:
    """Return an entry of the kernel's account of this process, in bytes; None where there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), None)


def main(run: str, folder: str, rows: str, *words: str) -> None:
    """Load a model, predict, and print the bytes by which the process has grown.

    The first model brings the library, and what that allocates once; the second one is measured.
    """
    directory = RunDir(Path(run))
    with np.load(rows, allow_pickle=False) as arrays:
        batch = Arrays(dict(arrays))
    with working_for(directory, trust="--trust" in words):
        first = open_predictor(directory, pinned=True)
        for _ in first.model.predict(Arrays(batch.take(np.arange(1)))):
            pass
        del first
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak counts from now on
        before = _now("VmRSS")
        measured = open_predictor(directory, pinned=True, folder=Path(folder))
        for _ in measured.model.predict(batch):
            pass
    peak = _now("VmHWM")
    grown = None if peak is None or before is None else max(0, peak - before)
    sys.stdout.write(f"{json.dumps(grown)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
