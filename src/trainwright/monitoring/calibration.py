"""Thresholds of drift: how far windows of the training rows themselves seem to drift, by resampling them.

A replicate draws, with replacement, a training set and a window from the training rows: whole rows, so that
columns that go together count as they do. Its scores have the noise of both. Each test is scaled to the same
tail, and a column's score is the largest of its tests; the largest score of all columns is the statistic
whose quantiles are the thresholds: they hold for all columns together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from trainwright.monitoring.columns import CategoryColumn, Column, NumberColumn
from trainwright.monitoring.statistics import scores
from trainwright.order import stream_seed
from trainwright.types import Array

SIZES = (50, 200, 500, 1000, 2000, 5000, 10_000, 20_000)  # rows of a window
REPLICATES = 2000
RATES = (0.5, 0.2, 0.1, 0.05)
_TAIL = RATES[-1]  # beyond it, the rate falls by a fixed factor for each unit of the score
_STREAM = 37
_MOST_ROWS = 100_000  # of the training rows, to draw from
_MOST_HELD = 20_000_000  # of their cells
_MOST_CELLS = 2_000_000_000  # that all replicates read: with more columns, windows are shorter
_CHUNK = 50_000_000  # counts in memory
_TESTS = 3
_PERCENT = 2.0  # -log10 of a probability of 1 percent
# Tests whose probabilities are exact or too large get no smaller threshold: what no row had, may yet come.
_LEAST_SCALE = {"ks": 0.5, "chi2": 0.5}


class Block(NamedTuple):
    """Rows that are drawn together: the columns, and the cell of each row in each, (rows, columns)."""

    columns: Sequence[Column]
    cells: Array


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of windows of several sizes.

    Attributes:
        sizes: The numbers of rows of windows.
        columns: The names of the columns that decide.
        scales: What the scores of tests are divided by, (sizes, columns, tests).
        levels: The scores that the largest of all columns exceeds at `RATES`, (sizes, rates).
        slope: The fall of log10 of the rate for each unit of the score beyond the last of them.
    """

    sizes: Sequence[int]
    columns: Sequence[str]
    scales: Array
    levels: Array
    slope: float

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        return {
            "sizes": list(self.sizes),
            "columns": list(self.columns),
            "scales": np.round(self.scales, 4).tolist(),
            "levels": np.round(self.levels, 4).tolist(),
            "slope": self.slope,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Thresholds:
        """Restore the thresholds that `to_json` was called on."""
        scales, levels = (np.array(data[name], np.float64) for name in ("scales", "levels"))
        scales = scales.reshape(len(levels), len(data["columns"]), _TESTS)
        return cls(tuple(data["sizes"]), tuple(data["columns"]), scales, levels, float(data["slope"]))

    def for_rows(self, rows: int) -> Threshold:
        """Return the thresholds of a window; of other sizes than the simulated ones, between them."""
        at = np.log(np.clip(rows, self.sizes[0], self.sizes[-1]))
        right = min(len(self.sizes) - 1, max(1, int(np.searchsorted(np.log(self.sizes), at))))
        left = max(0, right - 1)
        span = np.log(self.sizes[right] / self.sizes[left]) or 1.0
        share = float((at - np.log(self.sizes[left])) / span)

        def between(values: Array) -> Array:
            mixed: Array = (1 - share) * values[left] + share * values[right]
            return mixed

        scales = dict(zip(self.columns, between(self.scales), strict=True))
        return Threshold(scales, between(self.levels), self.slope)


class Threshold(NamedTuple):
    """The thresholds of one window: the scales of each column's tests, and rates with their scores."""

    scales: Mapping[str, Array]
    levels: Array
    slope: float

    def score_at(self, rate: float) -> float:
        """Return the score that the largest of all columns exceeds with a probability."""
        if rate >= _TAIL:
            return float(np.interp(np.log10(rate), np.log10(RATES[::-1]), self.levels[::-1]))
        return float(self.levels[-1] + np.log10(_TAIL / rate) / self.slope)

    def rate_at(self, score: float) -> float:
        """Return the probability that the largest score of all columns is as large."""
        if score <= self.levels[-1]:
            below = score < self.levels[0]
            return 1.0 if below else float(10 ** np.interp(score, self.levels, np.log10(RATES)))
        return float(_TAIL * 10 ** (-self.slope * (score - self.levels[-1])))


def calibrate(blocks: Sequence[Block], seed: int = 0, replicates: int = REPLICATES) -> Thresholds:
    """Return the thresholds for windows like the rows of blocks, which are drawn apart.

    Args:
        blocks: The training rows; and the rows of the outputs, which are others. All columns decide.
        seed: The seed of the draws.
        replicates: The number of draws.
    """
    columns = [column for block in blocks for column in block.columns]
    draw = np.random.default_rng(stream_seed(seed, _STREAM))
    budget = _MOST_CELLS // max(1, replicates * len(columns))
    sizes = [size for size in SIZES if size <= budget] or [SIZES[0]]
    if not columns:
        none = np.zeros((len(sizes), 0, _TESTS))
        return Thresholds(sizes, (), none, np.ones((len(sizes), len(RATES))), 1.0)
    found = np.concatenate([_simulated(block, sizes, replicates, draw) for block in blocks], axis=2)
    least = np.array([[_LEAST_SCALE.get(test, 1.0) for test in column.tests] for column in columns])
    scales = np.maximum(np.quantile(found, 0.99, axis=0) / _PERCENT, least)
    largest = np.sort((found / scales).max(axis=(2, 3)), axis=0)
    levels = np.quantile(largest, 1 - np.array(RATES), axis=0).T
    tail = largest[-int(_TAIL * replicates) :]
    slope = 1 / (float(np.log(10)) * max(float((tail - levels[:, -1]).mean()), 1e-3))
    return Thresholds(sizes, tuple(column.name for column in columns), scales, levels, slope)


def _simulated(block: Block, sizes: Sequence[int], replicates: int, draw: np.random.Generator) -> Array:
    """Return the scores of replicates, (replicates, sizes, columns, tests)."""
    rows = len(block.cells)
    cells = block.cells
    if rows > (most := min(_MOST_ROWS, _MOST_HELD // len(block.columns))):
        cells = cells[draw.choice(rows, most, replace=False)]
    widths = [column.cells for column in block.columns]
    starts = np.cumsum([0, *widths])
    flat = cells + starts[:-1]
    drawn, total = min(rows, sizes[-1]), int(starts[-1])
    found = np.zeros((replicates, len(sizes), len(block.columns), _TESTS), np.float32)
    chunk = max(1, _CHUNK // (total * (len(sizes) + 1)))
    for start in range(0, replicates, chunk):
        count = min(chunk, replicates - start)
        first = np.zeros((count, total), np.int64)
        windows = np.zeros((count, len(sizes), total), np.int64)
        for i in range(count):
            first[i] = _counted(flat, draw.integers(0, len(flat), drawn), total)
            ids, done = draw.integers(0, len(flat), sizes[-1]), 0
            for j, size in enumerate(sizes):
                windows[i, j] = _counted(flat, ids[done:size], total)
                done = size
        windows = windows.cumsum(axis=1)
        for c, column in enumerate(block.columns):
            at = slice(starts[c], starts[c + 1])
            found[start : start + count, :, c] = _of_column(
                column, first[:, None, at], windows[..., at], draw, drawn / rows
            )
    return found


def _counted(cells: Array, ids: Array, total: int) -> Array:
    return np.bincount(np.take(cells, ids, axis=0).ravel(), minlength=total)


def _of_column(column: Column, first: Array, second: Array, draw: np.random.Generator, share: float) -> Array:
    """Return the scores of a column, (replicates, sizes, tests), also by what no resampled row can hold.

    That is: the values beyond those of all training rows, of which j or more come with the probability
    (m / (n + m)) ** j; and the error of the share of unseen categories that `once` estimates, whose variance
    in rows is `once + 2 * twice` (Esty 1983), of which resampling gives the first part.
    """
    if isinstance(column, NumberColumn):
        n, m = first[..., 1:].sum(axis=-1), second[..., 1:].sum(axis=-1)
        end = np.broadcast_to((n + 1) / (n + m + 1), second.shape[:-1])[..., None]
        beyond = draw.geometric(np.broadcast_to(end, (*second.shape[:-1], 2))) - 1
        return scores(column, first, second, beyond)
    extra: Array | float = 0.0
    if isinstance(column, CategoryColumn) and column.twice:
        extra = draw.normal(0, np.sqrt(2 * column.twice * share), first.shape[:-1])
    return scores(column, first, second, np.zeros((*second.shape[:-1], 2)), extra)
