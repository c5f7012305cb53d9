"""The contract of encoders: from one column of a table to features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from trainwright.config.schema import DataConfig
from trainwright.datasets.tables import table as tables
from trainwright.datasets.tables.table import Kind, Table, kind_of
from trainwright.datasets.tables.target import Target
from trainwright.errors import DataError
from trainwright.types import Array


@dataclass(frozen=True)
class TrainingRows:
    """The rows that encoders are fitted on, with the target and the section `data`."""

    table: Table
    target: Target
    config: DataConfig
    dtype: str = "float32"  # which must hold the targets

    def encode_of(self, name: str) -> str:
        """Return how a column of categories is to be encoded; see `data.encode`."""
        column = self.config.columns.get(name)
        encode = column.encode if column is not None and column.encode else self.config.encode
        if encode == "target" and not self.target.name:
            raise DataError(
                f"data.encode: target given for {name!r}, but data.target is null; give frequency"
            )
        return encode

    @cached_property
    def targets(self) -> Array:
        """The targets, (rows, m) float64: 0 and 1 for the second of two classes or for each of more."""
        values = self.target.encode(self.table, self.dtype)
        if self.target.classes is None:
            return values.reshape(len(values), -1).astype(np.float64)
        classes = np.arange(len(self.target.classes))
        columns = classes[1:] if len(classes) == 2 else classes
        return np.asarray(values[:, None] == columns).astype(np.float64)

    @property
    def keeps(self) -> bool:
        """True where missing values stay missing."""
        return self.config.impute == "keep"

    @property
    def fills(self) -> bool:
        """True where missing values are replaced."""
        return self.config.impute is not None and not self.keeps


@dataclass(frozen=True)
class Encoder(ABC):
    """Turn one column into features.

    It is fitted on the training rows, and immutable: everything that `encode` needs is a field, which
    JSON can hold. Equal rows give equal features on every machine.
    """

    kind: ClassVar[str]  # names the class in JSON; never changed, as older runs hold it
    reads: ClassVar[Kind]  # what `encode` takes columns for; booleans are taken for numbers

    name: str

    @classmethod
    @abstractmethod
    def fit(cls, name: str, rows: TrainingRows) -> Self:
        """Fit an encoder on a column that has at least one value.

        Raises:
            DataError: The column cannot be used; says why, and what to do.
        """

    @property
    def outputs(self) -> Sequence[str]:
        """The names of its features."""
        return [self.name]

    @property
    def codes(self) -> int:
        """The number of categories if its feature holds their codes, for models that accept them; else 0."""
        return 0

    @property
    @abstractmethod
    def accepts_missing(self) -> bool:
        """True where values may be missing: they are replaced, or left to the model."""

    @abstractmethod
    def encode(self, table: Table, out: Array) -> None:
        """Write the features into `out`, (rows, outputs) float32 or float64.

        Raises:
            DataError: A value cannot be used; names the column and the rows.
        """

    def encode_training(self, rows: TrainingRows, out: Array) -> None:
        """Write the features of the rows that it was fitted on into `out`; see `encode`."""
        self.encode(rows.table, out)

    def unseen(self, table: Table) -> Array:  # noqa: ARG002
        """Return the values that no training row has, (n,) str, row by row; missing ones are left out."""
        return np.empty(0, dtype=object)

    @property
    def unseen_as(self) -> str:
        """The replacement of the values that `unseen` returns, in words."""
        return "missing"

    @property
    def content(self) -> str:
        """The content of the column, in words."""
        return self.kind

    @property
    @abstractmethod
    def example(self) -> str | float:
        """A synthetic cell that it takes, of what it was fitted on."""

    @property
    def shown_categories(self) -> Sequence[str]:
        """The categories that its features stand for: one each if `is_onehot`, else one feature of codes."""
        return ()

    @property
    def is_onehot(self) -> bool:
        """True where each category has a feature of its own."""
        return False

    @property
    def shown_scaling(self) -> tuple[float, float]:
        """The mean and scale that turn its first feature into a number for people: feature * scale + mean.

        The mean is NaN where no single number stands for the column.
        """
        return float("nan"), 1.0

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        return {"kind": self.kind, **{field.name: getattr(self, field.name) for field in fields(self)}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        """Restore the encoder that `to_json` was called on."""
        return cls(**{key: value for key, value in data.items() if key != "kind"})


def no_value(table: Table, name: str, absent: Array) -> DataError:
    """Return the error about missing values, at the rows `absent` (rows,), that are not to be filled."""
    return DataError(
        f"{table.source}: column {name!r} has no value in {table.where(absent)}; the model was trained "
        "without missing values: fill them, or train it with data.impute"
    )


def as_numbers(table: Table, name: str) -> Array:
    """Return a column as (rows,) float64; text is parsed as numbers.

    Raises:
        DataError: It holds dates, or text that is not a number.
    """
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


def as_texts(table: Table, name: str) -> Array:
    """Return a column as (rows,) str or None; integers have no decimal point even if stored as floats."""
    return tables.as_texts(table.column(name))
