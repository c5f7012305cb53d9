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

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from trainwright.config.schema import DataConfig
from trainwright.datasets.tables import raw
from trainwright.datasets.tables.encoders.base import Encoder, TrainingRows
from trainwright.datasets.tables.encoders.categories import Categories, CategoryColumn
from trainwright.datasets.tables.encoders.many_categories import FrequencyColumn, TargetMeanColumn
from trainwright.datasets.tables.encoders.numbers import NumberColumn
from trainwright.datasets.tables.encoders.texts import TextColumn
from trainwright.datasets.tables.encoders.times import TimeColumn
from trainwright.datasets.tables.feature_steps import FeatureSteps
from trainwright.datasets.tables.ranges import UnusualValues
from trainwright.datasets.tables.remarks import changed_types, require_columns, unseen_values, unused_columns
from trainwright.datasets.tables.table import Table, as_table, frame_of, kind_of, missing
from trainwright.datasets.tables.target import Target, rows_with_target
from trainwright.datasets.tables.typed import ColumnKind, typed
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.types import FEATURES, Array

if TYPE_CHECKING:
    from trainwright.datasets.images.preparation import ImagePreparation
    from trainwright.datasets.texts.preparation import TextPreparation

# Those that have columns (`has_columns`) also take rows by position, and may have remarks on them; the others
# take images or texts.
AnyPreparation: TypeAlias = "TabularPreparation | raw.RawPreparation | ImagePreparation | TextPreparation"

log = logging.getLogger("trainwright")
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


@runtime_checkable
class FilePreparation(Protocol):
    """A preparation of rows that may also be files, one each: images or texts."""

    noun: str  # what the files are, in messages

    @property
    def path_column(self) -> str:
        """The column of predictions that holds the paths of the files."""

    def files_at(self, path: Path | str) -> list[Path] | None:
        """Return the files at a path, such as those in a folder; None if it is a file of rows.

        Raises:
            DataError: It is a folder that holds none.
        """

    def rows_of_files(self, files: Sequence[Path]) -> Sequence[Any]:
        """Return files as rows, to be predicted.

        Raises:
            DataError: One cannot be read.
        """

    def readable(self, files: Sequence[Path]) -> list[Path]:
        """Return the files without those to be left out as corrupt, with a warning.

        Raises:
            DataError: None is left.
        """


class TabularPreparation:
    """The preparation of a table's rows; see `trainwright.datasets.base.Preparation`."""

    has_columns = True

    def __init__(
        self,
        columns: Sequence[Encoder],
        target: Target,
        kinds: Mapping[str, ColumnKind] | None = None,
        dtype: str = "float32",
    ) -> None:
        self.columns = list(columns)
        self.dtype = dtype
        self.target = target
        self.kinds = dict(kinds or {})  # of all columns that were judged
        self.feature_names = [output for column in columns for output in column.outputs]
        self.steps: FeatureSteps | None = None  # which make the columns of those that are given

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
    def contents(self) -> list[str]:
        """A line for each column that rows must have: its name, and what it holds."""
        return [
            f"{column.name}: {column.content}{', may be missing' if column.accepts_missing else ''}"
            for column in self.columns
        ]

    @property
    def text_columns(self) -> list[str]:
        """The columns to read as text from files without types."""
        names = [column.name for column in self.columns if column.reads == "text"]
        names += [name for name, kind in self.kinds.items() if kind.reads_text and name not in names]
        text_target = self.target.lists or any(isinstance(label, str) for label in self.target.classes or ())
        return [*names, *self.target.columns] if text_target else names

    @property
    def number_columns(self) -> list[str]:
        """The columns of numbers, which files without types may hold in text."""
        return [column.name for column in self.columns if column.reads == "number"]

    def set_decimal(self, mark: str) -> None:
        """Read numbers in text with another decimal mark than in training."""
        for name in self.number_columns:
            kind = self.kinds.get(name, ColumnKind("number"))
            self.kinds[name] = replace(kind, decimal=mark) if kind.kind == "number" else kind

    def features(self, rows: Any) -> Array:
        """Return the features, (rows, features), of a data frame, mappings, or a `Table`.

        Raises:
            DataError: Columns are missing, or a value cannot be used; names both column and row.
        """
        table = self._table(rows, {column.name for column in self.columns})
        require_columns(table, self.columns)
        return self._encoded(table, lambda column, out: column.encode(table, out))

    def arrays(self, rows: Any) -> dict[str, Array]:
        """Return the features by their name; see `features`."""
        return {FEATURES: self.features(rows)}

    def rows_in(self, table: Table) -> Any:
        """Return the rows of a file's table: as a data frame where columns may be meant by position."""
        is_by_position = not set(self.column_names) <= set(table.columns)
        return frame_of(dict(table.columns)) if is_by_position else table

    def _encoded(self, table: Table, encode: Callable[[Encoder, Array], None]) -> Array:
        features = np.empty((len(table), len(self.feature_names)), dtype=self.dtype)
        start = 0
        for column in self.columns:
            stop = start + len(column.outputs)
            encode(column, features[:, start:stop])
            start = stop
        return features

    @property
    def encodes_training_otherwise(self) -> bool:
        """True where `training_features` gives training rows other features than `features` does."""
        return any(type(column).encode_training is not Encoder.encode_training for column in self.columns)

    def training_features(self, table: Table, config: DataConfig) -> Array:
        """Return the features of the rows that it was fitted on; see `features`.

        They differ from those that `features` gives to these rows where a column becomes the mean target of
        its categories: no training row sees its own target.
        """
        rows = TrainingRows(table, self.target, config, self.dtype)
        return self._encoded(table, lambda column, out: column.encode_training(rows, out))

    def remarks(self, rows: Any, known: Collection[str]) -> dict[str, str]:
        """Return what a user should know of rows to predict, by a key that names column and matter.

        That is: values that no training row has, columns of another type than in training, and columns that
        the model does not use, except for those in `known`.
        """
        table = as_table(rows, only={column.name for column in self.columns})
        named = [column for column in self.columns if isinstance(column, Categories)]
        given = {name: kind.given for name, kind in self.kinds.items() if kind.given is not None}
        return {
            **dict(changed_types(table, self.columns, given)),
            **dict(unseen_values(self._table(table, {column.name for column in named}), named)),
            **dict(unused_columns(table, self.columns, {*known, *self.kinds})),
        }

    def checks(self) -> Sequence[Callable[[Any], object]]:
        """Return a function for each column that raises a DataError for rows that it cannot be read in."""
        alone = [TabularPreparation([column], self.target, self.kinds, self.dtype) for column in self.columns]
        return [one.features for one in alone]

    def count_unusual(self, rows: Any, counts: UnusualValues) -> None:
        """Count rows whose values no training row has."""
        counts.add(self._table(rows, {column.name for column in self.columns}), self.columns)

    def columns_of(self, rows: Any) -> Mapping[str, Array]:
        """Return the columns of rows that it knows, targets among them, (rows,) each, read as their kinds."""
        return self._table(rows, {*self.column_names, *self.target.columns}).columns

    def with_targets(self, rows: Any) -> Table:
        """Return the rows whose target is not missing, and say how many are dropped.

        Raises:
            DataError: No row has a target.
        """
        table = self._table(rows, {column.name for column in self.columns} | {*self.target.columns})
        for name in self.target.columns:
            if name in table.columns:
                table, warning = rows_with_target(table, name)
                if warning:
                    log.warning("%s", warning)
        return table

    def targets(self, rows: Any) -> Array | None:
        """Return the targets as `Target.encode` does; None if the rows have no target column.

        Raises:
            DataError: A cell is empty, not a class of the training rows, or not a finite number.
        """
        table = self._table(rows, set(self.target.columns))
        return self.target.encode(table, self.dtype) if table.columns else None

    def _table(self, rows: Any, names: set[str]) -> Table:
        """Return the columns `names` of the rows, read as their kinds."""
        kinds = {name: self.kinds[name] for name in names & self.kinds.keys()}
        return typed(as_table(rows, only=names, lists=self.target.columns), kinds, trains=False)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        plain = {
            "version": raw.FORMAT,
            "columns": [column.to_json() for column in self.columns],
            "target": self.target.to_json(),
            "kinds": {name: kind.to_json() for name, kind in self.kinds.items()},
            "dtype": self.dtype,
        }
        return plain if self.steps is None else {**plain, "steps": self.steps.to_json()}


def from_json(data: dict[str, Any]) -> AnyPreparation:
    """Restore the preparation that `to_json` was called on.

    Raises:
        DataError: Another version of Trainwright wrote it, in a format that this one cannot read.
    """
    if data.get("version") != raw.FORMAT:
        raise DataError(
            f"the preparation has version {data.get('version')!r}; this version of Trainwright reads "
            f"version {raw.FORMAT}"
        )
    if "frame" in data:
        as_it_is = raw.from_json(data)
        as_it_is.steps = _steps(data)
        return as_it_is
    if "images" in data:
        from trainwright.datasets.images.preparation import from_json as images_from_json

        return images_from_json(data)
    if "texts" in data:
        from trainwright.datasets.texts.preparation import from_json as texts_from_json

        return texts_from_json(data)
    if unknown := sorted({entry["kind"] for entry in data["columns"]} - ENCODERS.keys()):
        raise DataError(
            f"the preparation has columns of kind {listed(unknown)}; this version of Trainwright reads "
            f"{listed(ENCODERS)}: use the version that trained the model, or a newer one"
        )
    columns = [ENCODERS[entry["kind"]].from_json(entry) for entry in data["columns"]]
    kinds = {name: ColumnKind.from_json(kind) for name, kind in data["kinds"].items()}
    made = TabularPreparation(columns, Target.from_json(data["target"]), kinds, data["dtype"])
    made.steps = _steps(data)
    return made


def _steps(data: Mapping[str, Any]) -> FeatureSteps | None:
    return FeatureSteps.from_json(data["steps"]) if "steps" in data else None


def fit(
    table: Table,
    names: Sequence[str],
    target: Target,
    config: DataConfig,
    kinds: Mapping[str, ColumnKind] | None = None,
    dtype: str = "float32",
) -> TabularPreparation:
    """Fit a preparation on the training rows.

    Args:
        table: The training rows.
        names: The columns to make features of, in their order.
        target: The column to predict.
        config: The data section.
        kinds: What the columns of the table are, if that was judged; they are read as these.
        dtype: NumPy's name of the dtype of features.

    Raises:
        DataError: A column cannot be used: it holds no values, or too many categories.
    """
    rows = TrainingRows(table, target, config, dtype)
    texts = {name for name, kind in (kinds or {}).items() if kind.kind == "text"}
    columns = [_encoder(name, rows, texts).fit(name, rows) for name in names]
    widest = max(columns, key=lambda column: len(column.outputs))
    # A table may have more columns of numbers than that.
    if len(widest.outputs) > 1 and sum(len(column.outputs) for column in columns) > MAX_FEATURES:
        raise DataError(
            f"{table.source}: the columns make more than {MAX_FEATURES} features, {len(widest.outputs)} of "
            f"them from {widest.name!r}; leave it out with data.exclude, or give data.encode: target"
        )
    return TabularPreparation(columns, target, kinds, dtype)


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
            if name in texts:
                return TextColumn
            return _category_encoder(values, rows.encode_of(name), has_target=bool(rows.target.name))
        case "time":
            return TimeColumn
        case _:
            return NumberColumn


def _category_encoder(values: Array, encode: str, *, has_target: bool) -> type[Encoder]:
    if encode == "frequency":
        return FrequencyColumn
    if encode == "target" or (encode == "auto" and len(set(values) - {None}) > MAX_ONEHOT):
        return TargetMeanColumn if has_target else FrequencyColumn
    return CategoryColumn
