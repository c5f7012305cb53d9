"""What a trained model costs whoever uses it: bytes on the disk, and time for a prediction."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trainyard.datasets.base import Split
from trainyard.datasets.rows.arrays import Arrays
from trainyard.frameworks.base import Framework
from trainyard.types import Batch

_WARM_UP = 3
_SECONDS = 0.1  # how long each measurement may take, beyond its first few calls
_LEAST, _MOST = 5, 200
_BULK_ROWS = 4096


class Latency(NamedTuple):
    """The median time of a prediction: `one_ms` milliseconds for one row, `rows_per_second` for some thousands at once.

    From prepared features to probabilities or values; reading and preparing rows is not in it.
    """

    one_ms: float
    rows_per_second: float


def latency(framework: Framework, split: Split) -> Latency:
    """Measures a loaded model on rows of a split, after a warm-up."""
    one, bulk = _rows(split, 1), _rows(split, _BULK_ROWS)
    seconds = _median_seconds(lambda: _predict(framework, one))
    return Latency(1000 * seconds, _BULK_ROWS / _median_seconds(lambda: _predict(framework, bulk)))


def _rows(split: Split, count: int) -> Batch:
    """So many rows of the split, again from the beginning where it has fewer."""
    return split.take(np.arange(count, dtype=np.int64) % len(split))


def _predict(framework: Framework, rows: Batch) -> None:
    # As rows that were never seen before: an adapter may keep what it made of a split, and even what it predicted for it.
    for _ in framework.predict(Arrays(rows.features, rows.targets)):
        pass


def _median_seconds(predict: Callable[[], None]) -> float:
    for _ in range(_WARM_UP):
        predict()
    taken: list[float] = []
    while len(taken) < _LEAST or (sum(taken) < _SECONDS and len(taken) < _MOST):
        start = time.perf_counter()
        predict()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)
