"""Sampling weights: training samples are drawn with replacement in proportion to them (`data.sampling`)."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np

from trainwright.config.sampling import sampling_column
from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.weights import check_totals, checked, encode
from trainwright.datasets.tables.table import Table
from trainwright.errors import DataError
from trainwright.types import Array, Ids

SAMPLING = "data.sampling.weight"


@runtime_checkable
class NumberColumns(Protocol):
    """A map-style data set that can read a column of numbers without its samples."""

    def numbers(self, name: str) -> Array | None:
        """Return a column, (rows,); None if there is none of that name."""


def sampling_weights(table: Table, rows: Ids, config: DataConfig) -> Array | None:
    """Return the sampling weights of the training rows, (rows,) float64; None: the config names no column.

    Args:
        table: The rows of the source.
        rows: The positions of those that train.
        config: The data section.

    Raises:
        DataError: The column is missing, or holds no weights.
    """
    name = sampling_column(config.sampling)
    if name is None:
        return None
    weights: Array = encode(table, name, SAMPLING)[rows]
    check_totals({"training": weights}, name, SAMPLING)
    return weights


def balanced(codes: Array, classes: int) -> Array:
    """Return weights that draw each class as often as the others, (rows,) float64.

    Args:
        codes: (rows,) the class of each sample.
        classes: The number of classes.
    """
    counts = np.bincount(codes, minlength=classes)
    weights: Array = 1.0 / counts[codes]
    return weights


def item_weights(dataset: Any, name: str) -> Array:
    """Return the weights of the samples of a map-style data set, (rows,) float64.

    Args:
        dataset: Has them as a column, or as an attribute.
        name: The name of that.

    Raises:
        DataError: It has none, or they are no weights.
    """
    values = dataset.numbers(name) if isinstance(dataset, NumberColumns) else getattr(dataset, name, None)
    if values is None:
        raise DataError(
            f"{SAMPLING}: the train dataset has no {name!r}: give it an attribute of this name with a number "
            "for each sample, or shards a column (Parquet)"
        )
    weights = checked(values, f"{SAMPLING}: {name!r} of the train dataset")
    if len(weights) != len(dataset):
        raise DataError(
            f"{SAMPLING}: {name!r} of the train dataset has {len(weights)} weights for {len(dataset)} samples"
        )
    check_totals({"training": weights}, name, SAMPLING)
    return weights
