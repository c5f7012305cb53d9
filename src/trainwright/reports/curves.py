"""Curves that stay small: a metric over the steps, merged into buckets while it is read."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright.types import Array

Floats = NDArray[np.float64]

LARGEST = 1e100  # larger values count as infinite: no axis can show them, and differences overflow
MOST_POINTS = 8192  # up to here, a builder keeps every single point
_MOST_BUCKETS = 2048  # what is left of more points, about


class Envelope(NamedTuple):
    """A series in buckets, all (buckets,): the mean, lowest and highest value of each; NaN if none is finite.

    `points` counts the values in a bucket, `finite` those of them that are finite.
    """

    x: Floats
    mean: Floats
    low: Floats
    high: Floats
    points: Floats
    finite: Floats


class Curve(NamedTuple):
    """A metric over the steps; `last` is its newest value, `last_step` the step of that."""

    envelope: Envelope
    last: float
    last_step: int


def single_points(x: Array, y: Array) -> Envelope:
    """Return an envelope with one bucket per point."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    y = np.where(np.abs(y) < LARGEST, y, np.nan)
    return Envelope(x, y, y, y, np.ones(len(x)), np.isfinite(y).astype(np.float64))


def thinned(series: Envelope, buckets: int) -> Envelope:
    """Merge a series into at most `buckets` buckets of about equally many points.

    A spike of one point stays visible in `low` or `high`.
    """
    if len(series.x) <= buckets:
        return series
    before = np.cumsum(series.points) - series.points  # points ahead of each bucket
    edges = np.linspace(0, series.points.sum(), buckets, endpoint=False)
    return _merged(series, np.unique(np.searchsorted(before, edges, side="right") - 1))


def envelope(x: Array, y: Array, buckets: int) -> Envelope:
    """Merge points into at most `buckets` buckets."""
    return thinned(single_points(x, y), buckets)


def _merged(series: Envelope, starts: Array) -> Envelope:
    """Merge the buckets from each of `starts` to the next."""
    if len(starts) == 0:
        return series
    points, finite = np.add.reduceat(series.points, starts), np.add.reduceat(series.finite, starts)
    sums = np.add.reduceat(np.where(series.finite > 0, series.mean * series.finite, 0.0), starts)
    return Envelope(
        np.add.reduceat(series.x * series.points, starts) / points,
        np.divide(sums, finite, out=np.full(len(starts), np.nan), where=finite > 0),
        np.fmin.reduceat(series.low, starts),
        np.fmax.reduceat(series.high, starts),
        points,
        finite,
    )


def _joined(parts: Sequence[Envelope]) -> Envelope:
    return Envelope(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


class CurveBuilder:
    """Collect the points of one curve, in memory that does not grow with their number."""

    def __init__(self) -> None:
        self._steps = array("q")
        self._values = array("d")
        self._size = 1  # points in a bucket
        self._room = MOST_POINTS  # in the buffer
        self._buckets: list[Envelope] = []
        self._last, self._last_step = 0.0, -1

    def extend(self, steps: Sequence[int], values: Sequence[float | str]) -> None:
        """Add values, as the journal holds them, and the step of each."""
        try:
            self._values.extend(array("d", values))  # type: ignore[arg-type] # a string raises
        except TypeError:
            self._values.extend(map(float, values))
        self._steps.extend(steps)
        if len(self._steps) >= self._room:
            self._compact()

    def built(self) -> Curve:
        """Return the curve so far."""
        steps, values = self._sorted()
        rest = _merged(single_points(steps, values), np.arange(0, len(steps), self._size))
        last = (float(values[-1]), int(steps[-1])) if len(steps) else (self._last, self._last_step)
        return Curve(_joined([*self._buckets, rest]), *max(last, (self._last, self._last_step), key=_step))

    def _compact(self) -> None:
        """Move the points that fill buckets out of the buffer, and merge buckets while there are too many."""
        steps, values = self._sorted()
        self._last, self._last_step = max(
            (float(values[-1]), int(steps[-1])), (self._last, self._last_step), key=_step
        )
        count = len(steps) // self._size * self._size
        taken = single_points(steps[:count], values[:count])
        buckets = _joined([*self._buckets, _merged(taken, np.arange(0, count, self._size))])
        while len(buckets.x) > _MOST_BUCKETS:
            buckets = _merged(buckets, np.arange(0, len(buckets.x), 2))
            self._size *= 2
        self._room = max(MOST_POINTS, 2 * self._size)
        self._buckets = [buckets]
        self._steps, self._values = array("q", steps[count:].tolist()), array("d", values[count:].tolist())

    def _sorted(self) -> tuple[Array, Array]:
        """Return the points of the buffer in the order of their steps; of equal steps, the newest counts."""
        steps, values = np.array(self._steps, np.int64), np.array(self._values, np.float64)
        if np.all(steps[1:] > steps[:-1]):
            return steps, values
        order = np.argsort(steps, kind="stable")
        steps, values = steps[order], values[order]
        newest = np.append(steps[1:] != steps[:-1], True)[: len(steps)]
        return steps[newest], values[newest]


def _step(point: tuple[float, int]) -> int:
    return point[1]


def up_to(curve: Curve, limit: float) -> Curve:
    """Return the part of a curve up to a step; exact where its buckets are single points."""
    if curve.last_step <= limit:
        return curve
    kept = Envelope(*(column[curve.envelope.x <= limit] for column in curve.envelope))
    if len(kept.x) == 0:
        return Curve(kept, 0.0, -1)
    return Curve(kept, float(kept.mean[-1]), int(kept.x[-1]))


def joined(parts: Sequence[Curve]) -> Curve:
    """Join the parts of a curve, oldest first, in the order of their steps."""
    envelope = _joined([part.envelope for part in parts])
    order = np.argsort(envelope.x, kind="stable")
    newest = max(parts, key=lambda part: part.last_step)
    return Curve(Envelope(*(column[order] for column in envelope)), newest.last, newest.last_step)
