"""The latency and throughput of a trained model's predictions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from trainwright.datasets.base import Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.frameworks.base import Model
from trainwright.types import Batch

_WARM_UP = 3
_SECONDS = 0.1  # the limit of each measurement, after its first few calls
_MIN_CALLS, _MAX_CALLS = 5, 200
_BULK_ROWS = 4096


class Latency(NamedTuple):
    """The median time of a prediction: milliseconds for one row, and rows per second for a large batch.

    It covers the way from prepared features to probabilities or values, without reading and preparing rows.
    """

    one_ms: float
    rows_per_second: float


def latency(model: Model, split: Split) -> Latency:
    """Measure a loaded model on rows of a split, after a warm-up."""
    one, bulk = _rows(split, 1), _rows(split, _BULK_ROWS)
    seconds = _median_seconds(lambda: _predict(model, one))
    return Latency(1000 * seconds, _BULK_ROWS / _median_seconds(lambda: _predict(model, bulk)))


def _rows(split: Split, count: int) -> Batch:
    """Return `count` rows of the split; a shorter split is repeated."""
    return split.take(np.arange(count, dtype=np.int64) % len(split))


def _predict(model: Model, rows: Batch) -> None:
    # A new split each time: an adapter may cache what it converted a split to, and even its predictions.
    for _ in model.predict(Arrays(rows)):
        pass


def _median_seconds(predict: Callable[[], None]) -> float:
    for _ in range(_WARM_UP):
        predict()
    durations: list[float] = []
    while len(durations) < _MIN_CALLS or (sum(durations) < _SECONDS and len(durations) < _MAX_CALLS):
        start = time.perf_counter()
        predict()
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)
