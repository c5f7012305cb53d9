"""Dates and times: days, parts such as the month and the hour, and their cycles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from trainwright.datasets.tables.encoders.base import Encoder, TrainingRows, no_value
from trainwright.datasets.tables.encoders.numbers import mean_and_scale, replacement
from trainwright.datasets.tables.table import Kind, Table, iso_times, kind_of, missing
from trainwright.errors import DataError
from trainwright.types import Array

DAYS = "days"  # the first feature of each column: days since 1970-01-01
_DAYS_OF_YEAR = 365.2425
DAY_US = 86_400_000_000  # microseconds
PERIODS = {"month": 12, "day": 31, "weekday": 7, "hour": 24, "minute": 60}  # of the parts that come back


@dataclass(frozen=True)
class TimeColumn(Encoder):
    """Dates or times.

    The features are the days since 1970-01-01 with their fraction, and the parts that vary in training: year,
    month, day, weekday (0 is Monday), hour and minute. Where numbers are standardized, each part that comes
    back has its sine and cosine, too, so that December is next to January.

    `parts` are the names of the features, whose value is (part - mean) / scale. `fill` is the time, as ISO
    text, that replaces missing ones; without it they are an error, or NaN with `keep`.
    """

    kind: ClassVar[str] = "time"
    reads: ClassVar[Kind] = "time"
    parts: Sequence[str]
    means: Sequence[float]
    scales: Sequence[float]
    fill: str | None = None
    keep: bool = False

    @classmethod
    def fit(cls, name: str, rows: TrainingRows) -> Self:
        """Fit an encoder on a column of times."""
        values = as_times(rows.table, name)
        times, fill = values[~missing(values)], None
        number = replacement(times.astype(np.int64).astype(np.float64), rows)
        if number is not None:
            filled = np.datetime64(round(number), "us")
            times, fill = np.where(missing(values), filled, values), str(filled)
        parts = [part for part in (DAYS, "year", *PERIODS) if part == DAYS or _varies(_PARTS[part](times))]
        scaling = [_scaling(_PARTS[part](times), rows) for part in parts]
        if rows.config.standardize:
            cycles = [f"{part}_{wave}" for part in parts if part in PERIODS for wave in ("sin", "cos")]
            parts, scaling = parts + cycles, scaling + [(0.0, 1.0)] * len(cycles)
        means, scales = zip(*scaling, strict=True)
        return cls(name, parts, list(means), list(scales), fill, rows.keeps)

    @property
    def outputs(self) -> Sequence[str]:
        """The names of its features."""
        return [f"{self.name}.{part}" for part in self.parts]

    @property
    def accepts_missing(self) -> bool:
        """True where values may be missing: they are replaced, or left to the model."""
        return self.keep or self.fill is not None

    @property
    def example(self) -> str | float:
        """A time that any column of times takes."""
        return "2026-01-31T12:00:00"

    @property
    def shown_scaling(self) -> tuple[float, float]:
        """The mean and scale of the year, with a fraction."""
        return 1970 + self.means[0] / _DAYS_OF_YEAR, self.scales[0] / _DAYS_OF_YEAR

    def encode(self, table: Table, out: Array) -> None:
        """Write the features into `out`, (rows, parts)."""
        times = as_times(table, self.name)
        absent = missing(times)
        if absent.any() and not self.keep:
            if self.fill is None:
                raise no_value(table, self.name, absent)
            times = np.where(absent, np.datetime64(self.fill, "us"), times)
        absent = missing(times)
        times = np.where(absent, np.datetime64(0, "us"), times)
        for i, part in enumerate(self.parts):
            values = (_PARTS[part](times) - self.means[i]) / self.scales[i]
            out[:, i] = np.where(absent, np.nan, values)


def as_times(table: Table, name: str) -> Array:
    """Return a column as (rows,) datetime64[us]; text is parsed as ISO times.

    Raises:
        DataError: It holds numbers, or text that is not a time.
    """
    values = table.column(name)
    if kind_of(values) == "time":
        return values.astype("datetime64[us]")
    if missing(values).all():
        return np.full(len(values), "NaT", dtype="datetime64[us]")
    if kind_of(values) != "text":
        raise DataError(
            f"{table.source}: column {name!r} holds {kind_of(values)}s, where the training rows hold dates"
        )
    times = iso_times(values)
    if (unread := missing(times) & ~missing(values)).any():
        raise DataError(
            f"{table.source}: column {name!r} must hold dates, but is {values[unread][0]!r} in "
            f"{table.where(unread)}; write them like 2026-01-31 or 2026-01-31T12:00:00"
        )
    return times


def _varies(values: Array) -> bool:
    return bool((values != values[0]).any())


def _scaling(values: Array, rows: TrainingRows) -> tuple[float, float]:
    """Return the mean and scale to standardize the values of a part with."""
    if not rows.config.standardize:
        return 0.0, 1.0
    return mean_and_scale(values) if _varies(values) else (float(values[0]), 1.0)


def _units(unit: str, offset: int, period: int | None) -> Callable[[Array], Array]:
    """Return a function from times, (rows,) datetime64, to one of their parts, (rows,) float64."""

    def part(times: Array) -> Array:
        counts = times.astype(f"datetime64[{unit}]").astype(np.int64) + offset
        return (counts if period is None else counts % period).astype(np.float64)

    return part


def _days(times: Array) -> Array:
    return times.astype("datetime64[us]").astype(np.int64) / DAY_US


def _day(times: Array) -> Array:
    months = times.astype("datetime64[M]").astype("datetime64[D]")
    return np.asarray(times.astype("datetime64[D]") - months).astype(np.float64)


def waves_of(part: str, wave: str) -> Array:
    """Return the sine or cosine (`sin`, `cos`) of a part that comes back, by the part less `FIRST`.

    The last digits of a sine differ between machines, so that it is rounded.
    """
    period, function = PERIODS[part], getattr(math, wave)
    return np.array([round(function(2 * math.pi * i / period), 12) for i in range(period)])


def _cycle(part: str, wave: str) -> Callable[[Array], Array]:
    """Return a function from times to a wave of one of their parts."""
    waves = waves_of(part, wave)
    return lambda times: waves[(_PARTS[part](times) - FIRST.get(part, 0)).astype(np.int64)]


FIRST = {"month": 1, "day": 1}
_PARTS: dict[str, Callable[[Array], Array]] = {
    DAYS: _days,
    "year": _units("Y", 1970, None),
    "month": lambda times: _units("M", 0, 12)(times) + 1,
    "day": lambda times: _day(times) + 1,
    "weekday": _units("D", 3, 7),  # 1970-01-01 was a Thursday
    "hour": _units("h", 0, 24),
    "minute": _units("m", 0, 60),
}
_PARTS |= {f"{part}_sin": _cycle(part, "sin") for part in PERIODS}
_PARTS |= {f"{part}_cos": _cycle(part, "cos") for part in PERIODS}
