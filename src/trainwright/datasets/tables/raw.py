"""Rows as they are: a data frame for models that prepare their columns themselves."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.arrays import is_frame
from trainwright.datasets.tables.table import Table, as_table, frame_of
from trainwright.datasets.tables.target import Target, rows_with_target
from trainwright.errors import DataError
from trainwright.types import FEATURES, Array

if TYPE_CHECKING:
    from trainwright.datasets.tables.feature_steps import FeatureSteps

log = logging.getLogger("trainwright")
FORMAT = 2  # of the JSON of preparations
_TEXT = ("object", "str", "string", "category")


class RawPreparation:
    """Columns that a model gets as they are, in a data frame; see `trainwright.datasets.base.Preparation`.

    Args:
        names: The columns, in their order.
        dtypes: Their pandas dtypes in the training rows.
        target: The column to predict.
    """

    encodes_training_otherwise = False
    has_columns = True

    def __init__(self, names: Sequence[str], dtypes: Sequence[str], target: Target) -> None:
        self.feature_names = list(names)
        self.dtypes = list(dtypes)
        self.target = target
        self.categories: list[int] = []
        self.steps: FeatureSteps | None = None  # which make the columns of those that are given

    @property
    def column_names(self) -> list[str]:
        """The columns that rows must have."""
        return self.feature_names

    @property
    def contents(self) -> list[str]:
        """A line for each column that rows must have: its name, and what it holds."""
        return [f"{name}: {dtype}" for name, dtype in zip(self.feature_names, self.dtypes, strict=True)]

    @property
    def text_columns(self) -> list[str]:
        """The columns to read as text from files without types."""
        names = [name for name, dtype in zip(self.feature_names, self.dtypes, strict=True) if dtype in _TEXT]
        text_target = any(isinstance(label, str) for label in self.target.classes or ())
        return [*names, self.target.name] if text_target else names

    def features(self, rows: Any) -> Any:
        """Return the columns of a data frame, of mappings, or of a `Table`, as a data frame.

        A frame's columns are not touched. Other rows get the dtypes of the training rows, where they fit.

        Raises:
            DataError: A column is missing.
        """
        if is_frame(rows):
            rows = Table({}, frame=rows)
        table = as_table(rows, only=set(self.feature_names))
        if table.frame is not None:
            at = {str(name): i for i, name in enumerate(table.frame.columns)}
            if missing := [name for name in self.feature_names if name not in at]:
                table = Table({}, table.source, unread=list(at))
                table.column(missing[0])
            return table.frame.iloc[:, [at[name] for name in self.feature_names]]
        frame = frame_of({name: table.column(name) for name in self.feature_names})
        for name, dtype in zip(self.feature_names, self.dtypes, strict=True):
            frame[name] = frame[name].astype(dtype, errors="ignore") if dtype in _TEXT else frame[name]
        return frame

    def arrays(self, rows: Any) -> dict[str, Any]:
        """Return the features by their name; see `features`."""
        return {FEATURES: self.features(rows)}

    def columns_of(self, rows: Any) -> Mapping[str, Array]:
        """Return the columns of rows that it knows, targets among them, (rows,) each."""
        return as_table(rows, only={*self.feature_names, *self.target.columns}).columns

    def rows_in(self, table: Table) -> Any:
        """Return the rows of a file's table as pandas would read them."""
        return frame_of(dict(table.columns))

    def remarks(self, rows: Any, known: Collection[str]) -> dict[str, str]:  # noqa: ARG002
        """Return nothing: the model itself handles unseen values."""
        return {}

    def with_targets(self, rows: Any) -> Table:
        """Return the rows whose target is not missing, and say how many are dropped.

        Raises:
            DataError: No row has a target.
        """
        table = as_table(rows, only={self.target.name} if is_frame(rows) else None)
        if self.target.name not in table.columns:
            return table
        kept, warning = rows_with_target(table, self.target.name)
        if warning:
            log.warning("%s", warning)
        return kept

    def targets(self, rows: Any) -> Array | None:
        """Return the targets, (rows,) int64 class indices or float64 values; None without such a column.

        Raises:
            DataError: A cell is empty, not a class of the training rows, or not a finite number.
        """
        table = as_table(rows, only={self.target.name})
        # Frames are for models of float64 alone.
        return self.target.encode(table, "float64") if self.target.name in table.columns else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        frame = [list(column) for column in zip(self.feature_names, self.dtypes, strict=True)]
        plain = {"version": FORMAT, "frame": frame, "target": self.target.to_json()}
        return plain if self.steps is None else {**plain, "steps": self.steps.to_json()}


def from_json(data: dict[str, Any]) -> RawPreparation:
    """Restore the preparation that `to_json` was called on."""
    names, dtypes = zip(*data["frame"], strict=True)
    return RawPreparation(names, dtypes, Target.from_json(data["target"]))


def fit(table: Table, names: Sequence[str], target: Target) -> RawPreparation:
    """Note the columns of the training rows, and their dtypes."""
    preparation = RawPreparation(names, [""] * len(names), target)
    frame = preparation.features(table)
    preparation.dtypes = [str(dtype) for dtype in frame.dtypes]
    return preparation


def refuse_settings(config: DataConfig) -> None:
    """Refuse settings of the preparation, which the model does itself.

    Raises:
        DataError: Such a setting is given.
    """
    given = {"impute": config.impute not in (None, "keep"), "encode": config.encode not in ("onehot", "auto")}
    for key in (key for key, is_given in given.items() if is_given):
        raise DataError(
            f"data.{key}: the model is a pipeline, which gets the columns as they are; leave it out, and "
            "prepare them in the pipeline"
        )
