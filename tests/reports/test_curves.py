"""Curves that are merged while they are read, against the same computed from all points at once."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from trainwright.reports.curves import MOST_POINTS, CurveBuilder, joined, single_points, thinned, up_to


def built(steps, values):
    builder = CurveBuilder()
    for step, value in zip(steps, values, strict=True):
        builder.extend([step], [value])
    return builder.built()


def test_up_to_a_limit_every_point_is_kept():
    rng = np.random.default_rng(0)
    values = rng.normal(size=MOST_POINTS - 1)
    curve = built(range(1, MOST_POINTS), values)
    assert curve.envelope.x.tolist() == list(range(1, MOST_POINTS))
    assert curve.envelope.mean.tolist() == curve.envelope.low.tolist() == values.tolist()


def test_of_a_step_that_comes_again_the_newest_value_counts():
    curve = built([1, 2, 3, 2], [1.0, 2.0, 3.0, 20.0])
    assert curve.envelope.x.tolist() == [1, 2, 3]
    assert curve.envelope.mean.tolist() == [1, 20, 3]
    assert (curve.last, curve.last_step) == (3.0, 3)


@pytest.mark.parametrize(
    ("count", "block"), [(MOST_POINTS, 1), (50_000, 1), (123_457, 1000), (400_000, 1000)]
)
def test_many_points_keep_their_range_mean_and_spikes(count, block):
    rng = np.random.default_rng(count)
    values = rng.random(count) + np.linspace(5, 0, count)
    values[count // 3] = 99.0
    values[count // 2] = -99.0
    builder = CurveBuilder()
    for first in range(0, count, block):
        builder.extend(
            range(first + 1, first + 1 + len(values[first : first + block])),
            values[first : first + block].tolist(),
        )
    curve = builder.built()
    cut = curve.envelope
    assert len(cut.x) <= 3 * MOST_POINTS
    assert cut.points.sum() == cut.finite.sum() == count
    assert (cut.low.min(), cut.high.max()) == (-99.0, 99.0)
    assert np.sum(cut.mean * cut.points) == pytest.approx(values.sum())
    assert (curve.last, curve.last_step) == (values[-1], count)
    spike = np.argmax(cut.high)
    assert abs(cut.x[spike] - count // 3) <= cut.points[spike]
    # The picture has as many buckets as one of all points, each with about the same mean.
    mine, theirs = thinned(cut, 50), thinned(single_points(np.arange(1, count + 1), values), 50)
    assert len(mine.x) == len(theirs.x) == 50
    assert np.abs(mine.mean - theirs.mean).max() < 0.25


def test_values_that_are_not_finite_leave_gaps():
    builder = CurveBuilder()
    builder.extend(range(1, 5), [1.0, "NaN", "Infinity", 4])
    builder.extend([5], ["-Infinity"])
    curve = builder.built().envelope
    assert [value if math.isfinite(value) else None for value in curve.mean] == [1.0, None, None, 4.0, None]
    assert curve.finite.tolist() == [1, 0, 0, 1, 0]


def test_parts_are_cut_and_joined():
    first, second = built(range(1, 51), range(1, 51)), built(range(31, 61), [100.0] * 30)
    whole = joined([up_to(first, 30), second])
    assert whole.envelope.x.tolist() == list(range(1, 61))
    assert whole.envelope.mean.tolist() == [*range(1, 31), *[100.0] * 30]
    assert (whole.last, whole.last_step) == (100.0, 60)
    assert (up_to(first, 30).last, up_to(first, 30).last_step) == (30.0, 30)
    assert up_to(first, 30.5).last_step == 30
    assert len(up_to(first, 0).envelope.x) == 0
    assert up_to(first, 50) is first


def test_long_and_short_parts_share_the_width_by_their_points():
    long, short = CurveBuilder(), CurveBuilder()
    long.extend(range(1, 1_000_001), [1.0] * 1_000_000)
    short.extend(range(1_000_001, 1_004_001), [2.0] * 4000)
    cut = thinned(joined([long.built(), short.built()]).envelope, 100)
    assert np.sum(cut.mean < 1.5) >= 98


def test_memory_does_not_grow_with_the_points():
    peaks = []
    for count in (100_000, 400_000):
        builder, block = CurveBuilder(), [0.5] * 10_000
        tracemalloc.start()
        for first in range(1, count, len(block)):
            builder.extend(range(first, first + len(block)), block)
        builder.built()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]
