"""Rounds, some at a time, each time from where CatBoost's own snapshot left off.

CatBoost gives a model only when it ends, but its training goes on from a snapshot. So it is asked for all the rounds (some
defaults depend on their number), stopped after some, and what these left is the model of each of them, too. Where it goes on
is always after the same rounds: with bootstrap_type MVS and leaves that are estimated as Exact (those of MAE, Quantile, MAPE
and LogCosh by default) it draws other rows after a snapshot than it would have without.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from trainyard.errors import TrainingError

_NOT_BEFORE_THE_END = 1_000_000  # seconds between two snapshots


class _Stop:
    """A callback of CatBoost's."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    def after_iteration(self, info: Any) -> bool:
        """Whether to go on."""
        return bool(info.iteration < self._rounds)


class Rounds:
    """A model that grows.

    Args:
        library: the module `catboost`.
        options: all but the number of rounds.
        pool: the training rows.
        total: the rounds of the run.
        ahead: that are made at a time.
    """

    def __init__(self, library: Any, options: dict[str, Any], pool: Any, total: int, ahead: int) -> None:
        self._library = library
        self._options = options
        self._pool = pool
        self._total = total
        self._ahead = ahead
        self.model: Any = None
        self.made = 0
        self.snapshot = b""  # after `made` rounds; empty where there is none

    def reach(self, rounds: int) -> None:
        """Makes the model have so many rounds at least.

        Raises:
            TrainingError: there are some already, but no snapshot to go on from.
        """
        if rounds <= self.made:
            return
        if self.made and not self.snapshot:
            raise TrainingError(
                f"CatBoost goes on from its own snapshots only, and there is none of round {self.made}"
            )
        upto = min(self._total, self.made + self._ahead)
        with tempfile.TemporaryDirectory(prefix="trainyard-catboost-") as folder:
            file = Path(folder) / "snapshot"
            if self.snapshot:
                file.write_bytes(self.snapshot)
            self.model = self._library.CatBoost(
                self._options | {"iterations": self._total, "train_dir": folder}
            )
            if self._ahead < self._total:
                how = {
                    "save_snapshot": True,
                    "snapshot_file": str(file),
                    "snapshot_interval": _NOT_BEFORE_THE_END,
                }
                self._fit(callbacks=[_Stop(upto)], **how)
                self.snapshot = file.read_bytes()
            else:
                self._fit()
        self.made = upto

    def _fit(self, **how: Any) -> None:
        """In a thread, since the error of a user's objective stays, in the one where it came up, the cause of all later ones."""
        with ThreadPoolExecutor(1) as thread:
            thread.submit(self.model.fit, self._pool, verbose=False, **how).result()

    def resume(self, model: Any, rounds: int, snapshot: bytes) -> None:
        """Takes up what was made before."""
        self.model, self.made, self.snapshot = model, rounds, snapshot
