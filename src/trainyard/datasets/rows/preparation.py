"""Turn raw columns into features: fitted on the training rows, applied to all rows, stored as JSON.

Numbers become (x - mean) / scale and booleans 0 and 1. Categories become one column each (`onehot`), or their
index in alphabetical order (`ordinal` and `category`, which are not standardized). A category that no
training row has becomes all zeros, -1 (`ordinal`) or NaN (`category`). So does a missing one if `data.impute`
is `keep`; missing numbers then stay NaN.

All arithmetic is in float64, and sums run in row order, so that every machine gets the same bits; the result
is float32.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from trainyard.config.schema import DataConfig
from trainyard.datasets.rows.table import Table, as_table, kind_of, listed, missing
from trainyard.datasets.rows.target import Target
from trainyard.errors import DataError
from trainyard.types import Array

MAX_FEATURES = 10_000  # of all columns; more of them mean that identifiers were taken for categories


@dataclass(frozen=True)
class NumberColumn:
    """A number or boolean.

    `fill` replaces missing values; without it they are an error, or NaN with `keep`.
    """

    kind: ClassVar[str] = "number"
    name: str
    mean: float = 0.0
    scale: float = 1.0
    fill: float | None = None
    keep: bool = False

    @property
    def outputs(self) -> list[str]:
        """The names of its features."""
        return [self.name]

    def encode(self, table: Table, out: Array) -> None:
        """Write the features into `out`, (rows, 1) float32."""
        values = _numbers(table, self.name)
        absent = np.isnan(values)
        if absent.any() and not self.keep:
            if self.fill is None:
                raise _no_value(table, self.name, absent)
            values = np.where(absent, self.fill, values)
        with np.errstate(over="ignore"):
            out[:, 0] = (values - self.mean) / self.scale
        if not (finite := np.isfinite(out[:, 0]) | (absent & self.keep)).all():
            raise DataError(
                f"{table.source}: column {self.name!r} is infinite, or too large for float32, in "
                f"{table.where(~finite)}; fix these cells, or leave the column out with data.exclude"
            )


@dataclass(frozen=True)
class CategoryColumn:
    """Text that names categories.

    `fill` replaces missing values; without it they are an error, or no category with `keep`. `native`: the
    codes are for a model that takes categories.
    """

    kind: ClassVar[str] = "category"
    name: str
    categories: Sequence[str]
    onehot: bool = True
    fill: str | None = None
    keep: bool = False
    native: bool = False

    @property
    def outputs(self) -> list[str]:
        """The names of its features."""
        return [f"{self.name}={category}" for category in self.categories] if self.onehot else [self.name]

    def unseen(self, table: Table) -> Array:
        """Return the values that no training row has, (n,) str, row by row; missing ones are left out."""
        values = _texts(table, self.name)
        known = set(self.categories)
        unseen: Array = values[
            ~missing(values) & np.array([value not in known for value in values], dtype=bool)
        ]
        return unseen

    def encode(self, table: Table, out: Array) -> None:
        """Write the features into `out`, (rows, categories) or (rows, 1) float32."""
        values = _texts(table, self.name)
        absent = missing(values)
        if absent.any() and not self.keep:
            if self.fill is None:
                raise _no_value(table, self.name, absent)
            values = np.where(absent, self.fill, values)
        index = {category: i for i, category in enumerate(self.categories)}
        codes = np.fromiter((index.get(value, -1) for value in values), dtype=np.int64, count=len(values))
        if not self.onehot:
            out[:, 0] = np.where(codes < 0, np.nan, codes) if self.native else codes
            return
        out[:] = 0
        seen = np.flatnonzero(codes >= 0)
        out[seen, codes[seen]] = 1


Column = NumberColumn | CategoryColumn


def _no_value(table: Table, name: str, absent: Array) -> DataError:
    return DataError(
        f"{table.source}: column {name!r} has no value in {table.where(absent)}; the model was trained "
        "without missing values: fill them, or train it with data.impute"
    )


def _numbers(table: Table, name: str) -> Array:
    """Return the column as (rows,) float64; text is parsed as numbers."""
    values = table.column(name)
    if kind_of(values) == "time":
        raise DataError(f"{table.source}: column {name!r} holds dates, where the training rows hold numbers")
    if kind_of(values) != "text":
        return values.astype(np.float64)
    numbers = np.full(len(values), np.nan)
    for row, text in enumerate(values):
        try:
            numbers[row] = np.nan if text is None else float(text)
        except ValueError:
            rows = table.where(np.arange(len(values)) == row)
            raise DataError(
                f"{table.source}: column {name!r} must hold numbers, but is {text!r} in {rows}"
            ) from None
    return numbers


def _texts(table: Table, name: str) -> Array:
    """Return the column as (rows,) str or None; integers have no decimal point even if stored as floats."""
    values = table.column(name)
    if kind_of(values) == "text":
        return values
    absent = missing(values)
    texts = np.empty(len(values), dtype=object)
    for row, value in enumerate(values.tolist()):
        is_integer = isinstance(value, float) and value.is_integer()
        texts[row] = None if absent[row] else str(int(value) if is_integer else value)
    return texts


class TabularPreparation:
    """The preparation of a table's rows; see `trainyard.datasets.base.Preparation`."""

    def __init__(self, columns: Sequence[Column], target: Target) -> None:
        self.columns = list(columns)
        self.target = target
        self.feature_names = [output for column in columns for output in column.outputs]

    @property
    def categories(self) -> list[int]:
        """The number of categories of each feature of codes, 0 for others; empty if there are only others."""
        counts = [
            len(column.categories) if isinstance(column, CategoryColumn) and column.native else 0
            for column in self.columns
            for _ in column.outputs
        ]
        return counts if any(counts) else []

    @property
    def text_columns(self) -> list[str]:
        """The columns to read as text from files without types."""
        names = [column.name for column in self.columns if isinstance(column, CategoryColumn)]
        text_target = any(isinstance(label, str) for label in self.target.classes or ())
        return [*names, *self.target.columns] if text_target else names

    def features(self, rows: Any) -> Array:
        """Return the features, (rows, features) float32, of a data frame, mappings, or a `Table`.

        Raises:
            DataError: A column is missing, or a value cannot be used; names both column and row.
        """
        table = as_table(rows, only={column.name for column in self.columns})
        features = np.empty((len(table), len(self.feature_names)), dtype=np.float32)
        start = 0
        for column in self.columns:
            stop = start + len(column.outputs)
            column.encode(table, features[:, start:stop])
            start = stop
        return features

    def unseen(self, rows: Any) -> list[str]:
        """Return a line for each column with categories that no training row has, and the number of rows."""
        columns = [column for column in self.columns if isinstance(column, CategoryColumn)]
        table = as_table(rows, only={column.name for column in columns})
        unseen = {column.name: column.unseen(table) for column in columns}
        return [
            f"column {name!r}: {len(values)} {'row has a value' if len(values) == 1 else 'rows have values'} "
            f"that no training row has: {listed(map(repr, dict.fromkeys(values)), 3)}"
            for name, values in unseen.items()
            if len(values)
        ]

    def targets(self, rows: Any) -> Array | None:
        """Return the targets as `Target.encode` does; None if the rows have no target column.

        Raises:
            DataError: A cell is empty, not a class of the training rows, or not a finite number.
        """
        table = as_table(rows, only=set(self.target.columns))
        return self.target.encode(table) if table.columns else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        columns = [{"kind": column.kind, **asdict(column)} for column in self.columns]
        return {"version": 1, "columns": columns, "target": self.target.to_json()}


def from_json(data: dict[str, Any]) -> TabularPreparation:
    """Restore the preparation that `to_json` was called on.

    Raises:
        DataError: Another version of Trainyard wrote it, in a format that this one cannot read.
    """
    if data.get("version") != 1:
        raise DataError(
            f"the preparation has version {data.get('version')!r}; this version of Trainyard reads version 1"
        )
    columns: list[Column] = []
    for entry in data["columns"]:
        options = {key: value for key, value in entry.items() if key != "kind"}
        columns.append(NumberColumn(**options) if entry["kind"] == "number" else CategoryColumn(**options))
    return TabularPreparation(columns, Target.from_json(data["target"]))


def fit(table: Table, names: Sequence[str], target: Target, config: DataConfig) -> TabularPreparation:
    """Fit a preparation on the training rows.

    Args:
        table: The training rows.
        names: The columns to make features of, in their order.
        target: The column to predict.
        config: The data section.

    Raises:
        DataError: A column cannot be used: it holds dates, no values, or too many categories.
    """
    columns = [_fit_column(table, name, config) for name in names]
    widest = max(columns, key=lambda column: len(column.outputs))
    if sum(len(column.outputs) for column in columns) > MAX_FEATURES:
        raise DataError(
            f"{table.source}: the columns make more than {MAX_FEATURES} features, {len(widest.outputs)} of "
            f"them from {widest.name!r}; leave it out with data.exclude, or give data.encode: ordinal"
        )
    return TabularPreparation(columns, target)


def _fit_column(table: Table, name: str, config: DataConfig) -> Column:
    values = table.column(name)
    absent = missing(values)
    if absent.all():
        raise DataError(
            f"{table.source}: column {name!r} has no value in any training row; leave it out with "
            "data.exclude"
        )
    keep = config.impute == "keep"
    fills = config.impute is not None and not keep
    match kind_of(values):
        case "text":
            counts = Counter(values[~absent])
            fill = min(counts, key=lambda category: (-counts[category], category)) if fills else None
            return CategoryColumn(
                name, sorted(counts), config.encode == "onehot", fill, keep, config.encode == "category"
            )
        case "boolean":
            return NumberColumn(name, fill=float(_most_frequent(values)) if fills else None, keep=keep)
        case "number":
            return _fit_number(name, values.astype(np.float64), absent, config, table)
        case _:
            raise DataError(
                f"{table.source}: column {name!r} holds dates, which no model can use as they are; make "
                f"numbers of them (year, weekday), divide the rows by them with data.split.time: {name}, or "
                "leave the column out with data.exclude"
            )


def _fit_number(name: str, values: Array, absent: Array, config: DataConfig, table: Table) -> NumberColumn:
    fill, keep = None, config.impute == "keep"
    if keep:
        values = values[~absent]
    elif config.impute:
        fill = _FILLS[config.impute](values[~absent])
        values = np.where(absent, fill, values)
    if not config.standardize:
        return NumberColumn(name, fill=fill, keep=keep)
    low, high = float(values.min()), float(values.max())
    if low == high:
        return NumberColumn(name, mean=low, fill=fill, keep=keep)
    mean, scale = mean_and_scale(values)
    if not np.isfinite([mean, scale]).all() or scale == 0:
        raise DataError(
            f"{table.source}: column {name!r} has values from {low:g} to {high:g}, which cannot be "
            "standardized in float64; fix them, or leave the column out with data.exclude"
        )
    return NumberColumn(name, mean, scale, fill, keep)


def mean_and_scale(values: Array) -> tuple[float, float]:
    """Return mean and population standard deviation in float64; they may overflow, and the scale may be 0."""
    wide = values.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = _mean(wide)
        return mean, float(np.sqrt(_mean((wide - mean) ** 2)))


def _mean(values: Array) -> float:
    # numpy.sum adds in an order that depends on the processor's vector width; cumsum adds from first to last.
    mean = np.cumsum(values)[-1] / len(values)
    return float(mean + np.cumsum(values - mean)[-1] / len(values))


def _most_frequent(values: Array) -> float:
    distinct, counts = np.unique(values, return_counts=True)
    return float(distinct[np.argmax(counts)])


def _median(values: Array) -> float:
    return float(np.median(values))


_FILLS: dict[str, Callable[[Array], float]] = {
    "mean": _mean,
    "median": _median,
    "most_frequent": _most_frequent,
}
