"""Numbers and booleans: standardized, one feature each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from trainwright.datasets.tables.encoders.base import Encoder, TrainingRows, as_numbers, no_value
from trainwright.datasets.tables.table import Kind, Table, kind_of, missing
from trainwright.errors import DataError
from trainwright.types import Array


@dataclass(frozen=True)
class NumberColumn(Encoder):
    """A number or boolean.

    `fill` replaces missing values; without it they are an error, or NaN with `keep`.
    """

    kind: ClassVar[str] = "number"
    reads: ClassVar[Kind] = "number"
    mean: float = 0.0
    scale: float = 1.0
    fill: float | None = None
    keep: bool = False

    @classmethod
    def fit(cls, name: str, rows: TrainingRows) -> Self:
        """Fit an encoder on a column of numbers or booleans; booleans are not standardized."""
        values = rows.table.column(name)
        if kind_of(values) == "boolean":
            return cls(name, fill=_most_frequent(values) if rows.fills else None, keep=rows.keeps)
        return cls._fit_numbers(name, values.astype(np.float64), missing(values), rows)

    @classmethod
    def _fit_numbers(cls, name: str, values: Array, absent: Array, rows: TrainingRows) -> Self:
        present, keep = values[~absent], rows.keeps
        fill = replacement(present, rows)
        values = present if fill is None else np.where(absent, fill, values)
        if not rows.config.standardize:
            return cls(name, fill=fill, keep=keep)
        low, high = float(values.min()), float(values.max())
        if low == high:
            return cls(name, mean=low, fill=fill, keep=keep)
        mean, scale = mean_and_scale(values)
        if not np.isfinite([mean, scale]).all() or scale == 0:
            raise DataError(
                f"{rows.table.source}: column {name!r} has values from {low:g} to {high:g}, which cannot be "
                "standardized in float64; fix them, or leave the column out with data.exclude"
            )
        return cls(name, mean, scale, fill, keep)

    @property
    def accepts_missing(self) -> bool:
        """True where values may be missing: they are replaced, or left to the model."""
        return self.keep or self.fill is not None

    @property
    def example(self) -> str | float:
        """The number that replaces missing values, or the mean; rounded."""
        return float(f"{self.mean if self.fill is None else self.fill:.4g}")

    @property
    def shown_scaling(self) -> tuple[float, float]:
        """The mean and scale of the numbers."""
        return self.mean, self.scale

    def encode(self, table: Table, out: Array) -> None:
        """Write (value - mean) / scale into `out`, (rows, 1)."""
        values = as_numbers(table, self.name)
        absent = np.isnan(values)
        if absent.any() and not self.keep:
            if self.fill is None:
                raise no_value(table, self.name, absent)
            values = np.where(absent, self.fill, values)
        with np.errstate(over="ignore"):
            out[:, 0] = (values - self.mean) / self.scale
        if not (finite := np.isfinite(out[:, 0]) | (absent & self.keep)).all():
            raise DataError(
                f"{table.source}: column {self.name!r} is infinite, or too large for {out.dtype.name}, in "
                f"{table.where(~finite)}; fix these cells, or train without the column (data.exclude)"
            )


def mean_and_scale(values: Array) -> tuple[float, float]:
    """Return mean and population standard deviation in float64; they may overflow, and the scale may be 0."""
    wide = values.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = mean_of(wide)
        return mean, float(np.sqrt(mean_of((wide - mean) ** 2)))


def replacement(values: Array, rows: TrainingRows) -> float | None:
    """Return the number that replaces missing ones, of the others (rows,) float64; None if none does."""
    return _FILLS[rows.config.impute](values) if rows.config.impute in _FILLS else None


def mean_of(values: Array) -> float:
    """Return the mean of (rows,) float64."""
    # numpy.sum adds in an order that depends on the processor's vector width; cumsum adds from first to last.
    mean = np.cumsum(values)[-1] / len(values)
    return float(mean + np.cumsum(values - mean)[-1] / len(values))


def _most_frequent(values: Array) -> float:
    distinct, counts = np.unique(values, return_counts=True)
    return float(distinct[np.argmax(counts)])


def _median(values: Array) -> float:
    return float(np.median(values))


_FILLS: dict[str, Callable[[Array], float]] = {
    "mean": mean_of,
    "median": _median,
    "most_frequent": _most_frequent,
}
