"""Turn raw columns into features: fitted on the training rows, applied to all rows, stored as JSON.

Each column has an encoder: numbers become (x - mean) / scale and booleans 0 and 1. Times become days and
parts, such as the month and the hour, and free text the weights of its words. Categories become one
feature each (`onehot`), their index in alphabetical order (`ordinal` and `category`, which are not
standardized), their mean target (`target`) or their share of the rows (`frequency`). A category that no
training row has becomes all zeros, -1 (`ordinal`), NaN (`category`), the mean of all targets, or 0. Missing
values stay missing if `data.impute` is `keep`: NaN, but all zeros (`onehot`) or -1 (`ordinal`).

All arithmetic is in float64, and sums run in row order, so that every machine gets the same bits; the result
is float32, or float64 for frameworks that ask for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from trainyard.config.schema import DataConfig
from trainyard.datasets.base import feature_form
from trainyard.datasets.rows import raw
from trainyard.datasets.rows.encoders.base import Encoder, TrainingRows
from trainyard.datasets.rows.encoders.categories import Categories, CategoryColumn
from trainyard.datasets.rows.encoders.many_categories import FrequencyColumn, TargetMeanColumn
from trainyard.datasets.rows.encoders.numbers import NumberColumn
from trainyard.datasets.rows.encoders.texts import TextColumn
from trainyard.datasets.rows.encoders.times import TimeColumn
from trainyard.datasets.rows.table import Table, as_table, kind_of, listed, missing
from trainyard.datasets.rows.target import Target
from trainyard.errors import DataError
from trainyard.types import Array

MAX_FEATURES = 10_000  # of all columns; more of them mean that identifiers were taken for categories
MAX_ONEHOT = 500  # categories that `encode: auto` gives a feature each
_ENCODERS: Sequence[type[Encoder]] = (
    NumberColumn,
    CategoryColumn,
    FrequencyColumn,
    TargetMeanColumn,
    TimeColumn,
    TextColumn,
)
ENCODERS = {encoder.kind: encoder for encoder in _ENCODERS}


class TabularPreparation:
    """The preparation of a table's rows; see `trainyard.datasets.base.Preparation`."""

    def __init__(self, columns: Sequence[Encoder], target: Target, dtype: str = "float32") -> None:
        self.columns = list(columns)
        self.dtype = dtype
        self.target = target
        self.feature_names = [output for column in columns for output in column.outputs]

    @property
    def categories(self) -> list[int]:
        """The number of categories of each feature of codes, 0 for others; empty if there are only others."""
        counts = [column.codes for column in self.columns for _ in column.outputs]
        return counts if any(counts) else []

    @property
    def column_names(self) -> list[str]:
        """The columns that rows must have."""
        return [column.name for column in self.columns]

    @property
    def text_columns(self) -> list[str]:
        """The columns to read as text from files without types."""
        names = [column.name for column in self.columns if column.reads_text]
        text_target = any(isinstance(label, str) for label in self.target.classes or ())
        return [*names, self.target.name] if text_target else names

    def features(self, rows: Any) -> Array:
        """Return the features, (rows, features), of a data frame, mappings, or a `Table`.

        Raises:
            DataError: A column is missing, or a value cannot be used; names both column and row.
        """
        table = as_table(rows, only={column.name for column in self.columns})
        return self._encoded(table, lambda column, out: column.encode(table, out))

    def _encoded(self, table: Table, encode: Callable[[Encoder, Array], None]) -> Array:
        features = np.empty((len(table), len(self.feature_names)), dtype=self.dtype)
        start = 0
        for column in self.columns:
            stop = start + len(column.outputs)
            encode(column, features[:, start:stop])
            start = stop
        return features

    def training_features(self, table: Table, config: DataConfig) -> Array:
        """Return the features of the rows that it was fitted on; see `features`.

        They differ from those that `features` gives to these rows where a column becomes the mean target of
        its categories: no training row sees its own target.
        """
        rows = TrainingRows(table, self.target, config)
        return self._encoded(table, lambda column, out: column.encode_training(rows, out))

    def unseen(self, rows: Any) -> list[str]:
        """Return a line for each column with categories that no training row has, and the number of rows."""
        columns = [column for column in self.columns if isinstance(column, Categories)]
        table = as_table(rows, only={column.name for column in columns})
        unseen = {column.name: column.unseen(table) for column in columns}
        return [
            f"column {name!r}: {len(values)} {'row has a value' if len(values) == 1 else 'rows have values'} "
            f"that no training row has: {listed(map(repr, dict.fromkeys(values)), 3)}"
            for name, values in unseen.items()
            if len(values)
        ]

    def targets(self, rows: Any) -> Array | None:
        """Return the targets, (rows,) int64 class indices or values.

        None if the rows have no target column.

        Raises:
            DataError: A cell is empty, not a class of the training rows, or not a finite number.
        """
        table = as_table(rows, only={self.target.name})
        return self.target.encode(table) if self.target.name in table.columns else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        columns = [column.to_json() for column in self.columns]
        dtype = {} if self.dtype == "float32" else {"dtype": self.dtype}
        version = 2 if dtype else 1  # earlier versions of Trainyard know float32 only
        return {"version": version, "columns": columns, "target": self.target.to_json(), **dtype}


def from_json(data: dict[str, Any]) -> TabularPreparation | raw.RawPreparation:
    """Restore the preparation that `to_json` was called on.

    Raises:
        DataError: Another version of Trainyard wrote it, in a format that this one cannot read.
    """
    if data.get("version") not in (1, 2):
        raise DataError(
            f"the preparation has version {data.get('version')!r}; this version of Trainyard reads 1 and 2"
        )
    if "frame" in data:
        return raw.from_json(data)
    if unknown := sorted({entry["kind"] for entry in data["columns"]} - ENCODERS.keys()):
        raise DataError(
            f"the preparation has columns of kind {listed(unknown)}; this version of Trainyard reads "
            f"{listed(ENCODERS)}: use the version that trained the model, or a newer one"
        )
    columns = [ENCODERS[entry["kind"]].from_json(entry) for entry in data["columns"]]
    return TabularPreparation(columns, Target.from_json(data["target"]), data.get("dtype", "float32"))


def fit(
    table: Table, names: Sequence[str], target: Target, config: DataConfig, texts: Collection[str] = ()
) -> TabularPreparation:
    """Fit a preparation on the training rows.

    Args:
        table: The training rows.
        names: The columns to make features of, in their order.
        target: The column to predict.
        config: The data section.
        texts: The columns of free text; other columns of text name categories.

    Raises:
        DataError: A column cannot be used: it holds no values, or too many categories.
    """
    rows = TrainingRows(table, target, config)
    columns = [_encoder(name, rows, texts).fit(name, rows) for name in names]
    widest = max(columns, key=lambda column: len(column.outputs))
    # A table may have more columns of numbers than that.
    if len(widest.outputs) > 1 and sum(len(column.outputs) for column in columns) > MAX_FEATURES:
        raise DataError(
            f"{table.source}: the columns make more than {MAX_FEATURES} features, {len(widest.outputs)} of "
            f"them from {widest.name!r}; leave it out with data.exclude, or give data.encode: target"
        )
    return TabularPreparation(columns, target, feature_form().dtype)


def _encoder(name: str, rows: TrainingRows, texts: Collection[str]) -> type[Encoder]:
    """Return the class of the encoder for a column."""
    table = rows.table
    values = table.column(name)
    if missing(values).all():
        raise DataError(
            f"{table.source}: column {name!r} has no value in any training row; leave it out with "
            "data.exclude"
        )
    match kind_of(values):
        case "text":
            return TextColumn if name in texts else _category_encoder(values, rows.config.encode)
        case "time":
            return TimeColumn
        case _:
            return NumberColumn


def _category_encoder(values: Array, encode: str) -> type[Encoder]:
    if encode == "frequency":
        return FrequencyColumn
    if encode == "target" or (encode == "auto" and len(set(values) - {None}) > MAX_ONEHOT):
        return TargetMeanColumn
    return CategoryColumn
