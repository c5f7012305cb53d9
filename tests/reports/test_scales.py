"""Ticks, scales, envelopes and how numbers are written."""

from __future__ import annotations

import numpy as np
import pytest

from trainwright.reports.curves import envelope
from trainwright.reports.scales import (
    duration,
    fitted,
    fitted_to,
    linear_ticks,
    log_ticks,
    spread,
    tick_label,
)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.421, "0.42 s"), (42.4, "42 s"), (59.7, "60 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_duration(seconds, shown):
    assert duration(seconds) == shown


def test_linear_ticks_are_round_and_inside():
    assert linear_ticks(0.0, 1.0, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert linear_ticks(-13, 870, 5) == [0, 200, 400, 600, 800]


def test_log_ticks():
    assert log_ticks(0.01, 3.0, 8) == pytest.approx([0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0])
    assert log_ticks(1e-9, 1e9, 5) == pytest.approx([1e-9, 1e-6, 1e-3, 1, 1e3, 1e6, 1e9])


@pytest.mark.parametrize("low", [-1e12, -3.0, 0.0, 1e-9, 0.5, 7.0, 1e8])
@pytest.mark.parametrize("span", [1e-7, 0.3, 12.0, 1e6, 1e13])
def test_every_axis_has_some_ticks_with_different_labels_inside(low, span):
    scale = fitted(np.array([low, low + span]), 0, 300)
    ticks = scale.ticks(5)
    assert 2 <= len(ticks) <= 12
    assert all(scale.low <= value <= scale.high for value, _ in ticks)
    if span / max(abs(low), span) > 1e-3:
        assert len({label for _, label in ticks}) == len(ticks)


@pytest.mark.parametrize(
    ("value", "step", "shown"),
    [
        (20000, 5000, "20k"),
        (2e6, 1e6, "2M"),
        (500, 100, "500"),
        (0.4, 0.2, "0.4"),
        (1e-3, 5e-4, "1e-3"),
        (5e-4, 5e-4, "5e-4"),
        (1e-18, 0.1, "0"),
    ],
)
def test_tick_labels(value, step, shown):
    assert tick_label(value, step) == shown


def test_an_envelope_keeps_single_spikes_and_the_mean():
    y = np.ones(10_000)
    y[1234] = 50.0
    cut = envelope(np.arange(10_000), y, 100)
    assert len(cut.x) == 100
    assert cut.high.max() == 50.0
    assert cut.low.min() == 1.0
    assert cut.mean.mean() == pytest.approx(y.mean())
    assert np.all(np.diff(cut.x) > 0)


def test_an_envelope_of_few_points_is_the_points():
    cut = envelope(np.array([1, 5, 9]), np.array([3.0, 2.0, 1.0]), 100)
    np.testing.assert_array_equal(cut.mean, [3, 2, 1])
    np.testing.assert_array_equal(cut.x, [1, 5, 9])


def test_an_envelope_leaves_out_what_is_not_finite():
    cut = envelope(np.arange(6), np.array([1.0, np.nan, np.inf, -np.inf, 1e300, 5.0]), 3)
    np.testing.assert_array_equal(cut.mean, [1.0, np.nan, 5.0])
    assert len(envelope(np.empty(0), np.empty(0), 10).x) == 0


def test_a_scale_without_values_or_with_one():
    assert (fitted(np.empty(0), 0, 10).low, fitted(np.array([np.nan]), 0, 10).high) == (0.0, 1.0)
    for value in (0.0, 3.0, -1e-30):
        scale = fitted(np.array([value]), 0, 10)
        assert scale.low < value < scale.high


def test_losses_that_fall_far_get_a_logarithmic_axis():
    def scale(*values):
        return fitted_to([envelope(np.arange(len(values)), np.array(values), 100)], 100, 0, None)

    assert scale(2.0, 1.0, 0.01).log
    assert not scale(2.0, 1.0, 0.5).log
    assert not scale(2.0, 0.5, 0.0).log
    assert scale(2.0, 1.0, 0.01)(0.1) == pytest.approx(50, abs=10)
    assert scale(2.0, 1.0, 0.01)(1e-30) == 100.0  # beyond the axis: at its edge


def test_labels_are_moved_apart():
    placed = spread([10.0, 11.0, 50.0], 14, 0, 100)
    assert placed[1] - placed[0] >= 14
    assert placed[2] == 50.0
    assert spread([99.0, 98.0], 14, 0, 100) == [100, 86]
