"""Axes: which range, linear or logarithmic, where the ticks are, and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.reports.curves import LARGEST, Envelope
from trainwright.types import Array

LOG_FROM = 20.0  # from this ratio of its ends, a range is easier to read on a logarithmic axis


@dataclass(frozen=True)
class Scale:
    """Map values onto pixels: `low` onto `first`, `high` onto `last`, values beyond onto the edge."""

    low: float
    high: float
    first: float
    last: float
    log: bool = False
    whole: bool = False  # ticks at whole numbers only

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.first + (value - low) / (high - low) * (self.last - self.first)

    def ticks(self, count: int = 5) -> list[tuple[float, str]]:
        """Return about `count` round values on the axis, and how they are written."""
        values = (
            log_ticks(self.low, self.high, count) if self.log else linear_ticks(self.low, self.high, count)
        )
        if self.whole:
            values = [float(round(value)) for value in values if abs(value - round(value)) < 1e-9]
        step = min(np.diff(values), default=1.0) if not self.log else 0.0
        return [(value, tick_label(value, float(step))) for value in values]


def fitted(values: Array, first: float, last: float, log: bool = False, pad: float = 0.05) -> Scale:
    """Return the scale that shows all finite values (0 to 1 without any); for `log`, they are positive."""
    real = values[np.isfinite(values)]
    if len(real) == 0:
        return Scale(0.0, 1.0, first, last)
    low, high = float(real.min()), float(real.max())
    if log:
        margin = (high / low) ** pad if high > low else 1.5
        return Scale(low / margin, high * margin, first, last, log=True)
    flat = high - low <= 1e-9 * max(abs(low), abs(high))
    margin = (abs(low) * 0.1 or 1.0) if flat else (high - low) * pad
    return Scale(low - margin, high + margin, first, last)


def fitted_to(cut: Sequence[Envelope], first: float, last: float, log: bool | None) -> Scale:
    """Return the scale that shows all means of some series, and their bands except for rare spikes."""
    means = np.concatenate([series.mean for series in cut] or [np.empty(0)])
    lows = [np.nanquantile(series.low, 0.05) for series in cut if np.isfinite(series.low).any()]
    highs = [np.nanquantile(series.high, 0.95) for series in cut if np.isfinite(series.high).any()]
    real = means[np.isfinite(means)]
    if log is None:
        log = len(real) > 0 and bool(real.min() > 1 / LARGEST and real.max() / real.min() > LOG_FROM)
    values = np.concatenate([real, lows, highs])
    return fitted(values[values > 1 / LARGEST] if log else values, first, last, log)


def linear_ticks(low: float, high: float, count: int) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten within [low, high]."""
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 1.0
    step = next((power * factor for factor in (1, 2, 5) if power * factor >= rough * 0.75), power * 10)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """Return about `count` powers of ten within [low, high]; between few of them, also 2 and 5 times."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if len(powers) <= 4 else (1,)
    values = [factor * 10.0**power for power in powers for factor in factors]
    inside = [value for value in values if low <= value <= high]
    return inside[:: max(1, math.ceil(len(inside) / (count + 2)))]


def tick_label(value: float, step: float = 0.0) -> str:
    """Return a tick's number with as many decimals as the step between ticks needs; 20k, 3M, 2e-5."""
    if value == 0 or abs(value) < step * 1e-6:
        return "0"
    size = abs(value)
    for unit, name in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if size >= unit * (10 if unit == 1e3 else 1) and size < 1e13:
            return f"{value / unit:.4g}{name}"
    if size >= 1e13 or size < 1e-3 or (step < 1e-3 and size < 20 * step):
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    if step == 0:
        return f"{value:.3g}"
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def duration(seconds: float) -> str:
    """Return a time span for people: `0.42 s`, `3 min 20 s`, `2 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move labels apart to a distance of `gap`, in their order, and within [low, high] if possible."""
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    placed = [0.0] * len(positions)
    before = low - gap
    for index in order:
        before = placed[index] = max(positions[index], before + gap)
    after = high + gap
    for index in reversed(order):
        after = placed[index] = min(placed[index], after - gap)
    return placed
