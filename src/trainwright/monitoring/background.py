"""Training rows that a run keeps, as the background that explanations of served rows are relative to."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.errors import CheckpointError
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
