"""Boosting in chunks of rounds, each of which continues from CatBoost's own snapshot.

CatBoost returns a model only when training ends, but can continue from a snapshot. So each chunk starts
training for the total number of rounds (some defaults depend on it) and stops it at the end of the chunk; the
model of a chunk holds those of all its rounds. Chunks always end after the same rounds: with bootstrap_type
MVS and leaf_estimation_method Exact (the default of MAE, Quantile, MAPE and LogCosh), CatBoost draws other
rows after a snapshot than without one.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainwright.errors import TrainingError

_NO_INTERVAL = 1_000_000  # seconds between two snapshots: only the one at the end is written


class _StopAfter:
    """A CatBoost callback that ends training after `rounds` rounds."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def after_iteration(self, info: Any) -> bool:
        """Return whether to continue."""
        return bool(info.iteration < self._rounds)


class Rounds:
    """A growing model.

    Args:
        library: The module `catboost`.
        options: All options except the number of rounds.
        pool: The training rows.
        total: The number of rounds of the run.
        chunk: The number of rounds to run at a time.
    """

    def __init__(self, library: Any, options: dict[str, Any], pool: Any, total: int, chunk: int) -> None:
        self._library = library
        self._options = options
        self._pool = pool
        self._total = total
        self._chunk = chunk
        self.model: Any = None
        self.completed = 0
        self.snapshot = b""  # after `completed` rounds; empty where there is none

    def reach(self, rounds: int) -> None:
        """Grow the model to at least `rounds` rounds.

        Raises:
            TrainingError: The model has rounds but no snapshot to continue from.
        """
        if rounds <= self.completed:
            return
        if self.completed and not self.snapshot:
            raise TrainingError(
                f"CatBoost continues only from its own snapshots, and there is none of round "
                f"{self.completed}; resume from another checkpoint"
            )
        end = min(self._total, self.completed + self._chunk)
        with tempfile.TemporaryDirectory(prefix="trainwright-catboost-") as folder:
            file = Path(folder) / "snapshot"
            if self.snapshot:
                file.write_bytes(self.snapshot)
            self.model = self._library.CatBoost(
                self._options | {"iterations": self._total, "train_dir": folder}
            )
            if self._chunk < self._total:
                kwargs = {
                    "save_snapshot": True,
                    "snapshot_file": str(file),
                    "snapshot_interval": _NO_INTERVAL,
                }
                self._fit(callbacks=[_StopAfter(end)], **kwargs)
                self.snapshot = file.read_bytes()
            else:
                self._fit()
        self.completed = end

    def _fit(self, **kwargs: Any) -> None:
        """Fit in a thread of its own.

        After an error in a user's objective, every later error in the same thread would have it as its cause.
        """
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self.model.fit, self._pool, verbose=False, **kwargs).result()

    def resume(self, model: Any, rounds: int, snapshot: bytes) -> None:
        """Continue from a model of `rounds` rounds and CatBoost's snapshot after them, which may be empty."""
        self.model, self.completed, self.snapshot = model, rounds, snapshot
