"""Training rows that a run keeps, as the background that explanations of served rows are relative to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.errors import CheckpointError
from trainwright.monitoring.columns import CategoryColumn, Column
from trainwright.order import EXPLAIN, permutation, stream_seed
from trainwright.types import Array

FILE = "monitoring/background.json"  # of a run
ROWS = 50
_FORMAT = 1
_KINDS = {"O": "text", "M": "time", "b": "boolean"}  # others are numbers


@dataclass(frozen=True)
class Background:
    """Some rows, column by column, read as their kinds.

    Attributes:
        columns: (rows,) each.
        origin: The words for what they are.
    """

    columns: Mapping[str, Array]
    origin: str = "training rows"

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    @classmethod
    def of(cls, columns: Mapping[str, Array], seed: int, origin: str = "training rows") -> Background:
        """Return a sample of rows, which depends on the seed alone."""
        count = len(next(iter(columns.values()), ()))
        ids = np.sort(permutation(stream_seed(seed, EXPLAIN), count)[:ROWS])
        return cls({name: np.asarray(values)[ids] for name, values in columns.items()}, origin)

    @classmethod
    def drawn(cls, known: Sequence[Column], like: Mapping[str, Array], seed: int) -> Background:
        """Return rows whose cells are drawn column by column from the distributions of the training rows.

        Args:
            known: The columns of the training rows.
            like: Cells of each column of the model, (n,), in the dtype that it takes; those of texts, of
                which the lengths alone are known, are taken from here.
            seed: The seed of the draws.
        """
        by_name = {column.name: column for column in known}
        columns = {
            name: _drawn(by_name.get(name), permutation(stream_seed(seed, EXPLAIN, i), ROWS), cells)
            for i, (name, cells) in enumerate(like.items())
        }
        return cls(columns, "the distribution of each column of the training rows")

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        columns = [
            {"name": name, "kind": _KINDS.get(values.dtype.kind, "number"), "cells": _plain(values)}
            for name, values in self.columns.items()
        ]
        return {"format": _FORMAT, "columns": columns}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Background:
        """Restore the rows that `to_json` was called on.

        Raises:
            CheckpointError: They make no sense.
        """
        try:
            if data["format"] != _FORMAT:
                raise ValueError(f"format {data['format']!r}, not {_FORMAT}")
            return cls({one["name"]: _column(one["kind"], one["cells"]) for one in data["columns"]})
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the training rows for explanations are damaged ({type(error).__name__}: {error}); delete "
                f"{FILE} in the run's folder, and they are taken again from the run's data"
            ) from error


def _drawn(column: Column | None, ids: Array, like: Array) -> Array:
    """Return the quantiles of a column (rows,) in the order of `ids` (rows,)."""
    if column is None or column.kind == "text" or column.rows == column.missing:
        return np.resize(like, len(ids))
    absent = column.missing / column.rows
    shares = ((ids + 0.5) / len(ids) - absent) / (1 - absent)  # below 0: missing
    if isinstance(column, CategoryColumn):
        ends = np.cumsum([*column.counts.values()])
        at = np.searchsorted(ends, np.clip(shares, 0, 1) * ends[-1]).tolist()
        names = [*column.counts]
        if any(isinstance(one, bool | np.bool_) for one in like.tolist()):
            return np.array([names[i] == "True" for i in at])
        texts: Array = np.array([names[i] for i in at], object)
        texts[shares < 0] = None
        return texts
    numbers: Array = column.percentiles[
        np.rint(np.clip(shares, 0, 1) * (len(column.percentiles) - 1)).astype(int)
    ]
    if column.kind == "time":
        times: Array = np.rint(numbers * 1e6).astype("datetime64[us]")
        times[shares < 0] = np.datetime64("NaT")
        return times
    return np.where(shares < 0, np.nan, numbers)


def _plain(values: Array) -> list[Any]:
    """Return the cells of a column as JSON holds them; None for a missing one."""
    if values.dtype.kind == "M":
        values = values.astype("datetime64[us]")
        return [None if np.isnat(one) else str(one) for one in values]
    if values.dtype.kind == "O":
        return [None if one is None else str(one) for one in values]
    return [None if values.dtype.kind == "f" and math.isnan(one) else one for one in values.tolist()]


def _column(kind: str, cells: list[Any]) -> Array:
    if kind == "text":
        column = np.empty(len(cells), object)
        column[:] = cells
        return column
    if kind == "time":
        return np.array(["NaT" if one is None else one for one in cells], "datetime64[us]")
    return np.array(cells, bool if kind == "boolean" else np.float64)
