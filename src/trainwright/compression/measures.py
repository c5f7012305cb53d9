"""Measure models beside each other: size, latency, memory, metrics."""

from __future__ import annotations

import json
import logging
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trainwright.datasets.samples.arrays import Arrays, is_frame
from trainwright.digest import WEIGHTS_FILE, files_of

if TYPE_CHECKING:
    from trainwright.datasets.base import Split
    from trainwright.inference.predictor import Predictor
    from trainwright.records.run_dir import RunDir

log = logging.getLogger("trainwright")
BATCHES = (1, 64)  # rows, of which the latency is measured
LATENCY, BYTES, MEMORY = "latency_{}", "bytes", "memory"
NAMES = (BYTES, *(LATENCY.format(rows) for rows in BATCHES), MEMORY)
_WARM, _REPEATS, _SECONDS = 5, 100, 2.0
_MINUTES = 120.0  # seconds that a process which measures memory may take


def stored_bytes(folder: Path) -> int:
    """Return the bytes of the files of a model's weights."""
    return sum(path.stat().st_size for path in files_of(folder, WEIGHTS_FILE))


def latencies(predictors: Sequence[Predictor], split: Split) -> list[dict[str, float]]:
    """Return the milliseconds that each model takes for batches of prepared rows, in the median.

    The models take turns, so that a load of the machine strikes all of them.
    """
    found: list[dict[str, float]] = [{} for _ in predictors]
    for rows in BATCHES:
        ids = np.resize(np.arange(len(split)), rows)
        batch = Arrays(split.take(ids))
        times: list[list[float]] = [[] for _ in predictors]
        begin = time.perf_counter()
        for repeat in range(_WARM + _REPEATS):
            for predictor, own in zip(predictors, times, strict=True):
                start = time.perf_counter()
                for _ in predictor.model.predict(batch):
                    pass
                if repeat >= _WARM:
                    own.append(1000 * (time.perf_counter() - start))
            if repeat > _WARM and time.perf_counter() - begin > _SECONDS * len(predictors):
                break
        for own, values in zip(times, found, strict=True):
            values[LATENCY.format(rows)] = statistics.median(own)
    return found


def peak_memory(run: RunDir, folder: Path, split: Split, *, trust: bool) -> float | None:
    """Return the bytes by which a process grows, at its peak, to load a model and predict for 64 rows.

    None where it cannot be measured: the system does not say, or the model needs an object of this process.
    """
    batch = split.take(np.resize(np.arange(len(split)), max(BATCHES)))
    if any(is_frame(array) or array.dtype.kind == "O" for array in batch.values()):
        return None
    with tempfile.TemporaryDirectory(prefix="trainwright-") as name:
        rows = Path(name) / "rows.npz"
        np.savez(rows, **dict(batch))  # type: ignore[arg-type]
        words = [str(run.path), str(folder), str(rows), *(["--trust"] if trust else [])]
        command = [sys.executable, "-m", "trainwright.compression.memory", *words]
        try:
            done = subprocess.run(command, capture_output=True, check=True, timeout=_MINUTES)
            grown: float | None = json.loads(done.stdout.splitlines()[-1])
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
            detail: Any = getattr(error, "stderr", b"") or b""
            log.debug(
                "the memory of a model cannot be measured: %s %s", error, detail.decode(errors="replace")
            )
            return None
        return grown
