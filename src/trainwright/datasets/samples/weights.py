"""Weights of samples: how much each row counts in the loss and in metrics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainwright.datasets.tables.table import Table, kind_of, missing
from trainwright.errors import DataError
from trainwright.types import Array, Ids, SplitName


def encode(table: Table, name: str, setting: str = "data.weight") -> Array:
    """Return the weights in a column of a table, (rows,) float64.

    Args:
        table: The rows.
        name: The column.
        setting: The key of the config that names it.

    Raises:
        DataError: There is no such column, or it holds anything but finite numbers of at least 0.
    """
    values = table.column(name, setting)
    where = f"{table.source}: the weight {name!r}"
    if kind_of(values) not in ("number", "boolean"):
        raise DataError(f"{where} holds {kind_of(values)} values; give a column of numbers of at least 0")
    if (absent := missing(values)).any():
        raise DataError(f"{where} has no value in {table.where(absent)}; give 0 for rows that do not count")
    return checked(values, where, table)


def checked(values: Array, where: str, table: Table | None = None) -> Array:
    """Return weights as (rows,) float64.

    Args:
        values: The numbers, (rows,) or (rows, 1).
        where: What they are, for messages.
        table: What names rows in messages; None if they are counted from 1.

    Raises:
        DataError: They are not one number for each row, or one is negative or not finite.
    """
    array = np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)
    if array.dtype.kind not in "biuf" or array.reshape(len(array), -1).shape[1:] != (1,):
        raise DataError(f"{where} is {array.dtype} of shape {array.shape}; give one number for each row")
    weights: Array = array.reshape(-1).astype(np.float64)
    for what, bad in (("negative", weights < 0), ("NaN or infinite", ~np.isfinite(weights))):
        if bad.any():
            rows = (table or Table({})).where(bad)
            raise DataError(f"{where} is {what} in {rows}; give finite numbers of at least 0")
    return weights


def check_totals(weights: Mapping[str, Array], name: str, setting: str = "data.weight") -> None:
    """Refuse splits whose weights are all zero, or have no finite sum.

    Args:
        weights: The weights of each split, (rows,).
        name: Their column.
        setting: The key of the config that names it.

    Raises:
        DataError: All weights of a split are 0, or they add up to infinity.
    """
    for split, values in weights.items():
        with np.errstate(over="ignore"):
            total = values.sum()
        if not np.isfinite(total):
            raise DataError(
                f"the weights {name!r} of the {split} rows add up to infinity: no number is larger than "
                f"{np.finfo(np.float64).max:.2g}; divide all of them by one number"
            )
        if not values.any():
            raise DataError(
                f"the weight {name!r} is 0 in all {len(values)} {split} rows, so none of them "
                f"counts; leave {setting} out, or give other rows"
            )


def of_splits(
    by_source: Mapping[SplitName, Array], rows: Mapping[SplitName, Ids], name: str
) -> dict[SplitName, Array]:
    """Return the weights of each split, (rows,) float64.

    Args:
        by_source: The weights of the rows of each source.
        rows: The positions in the source `train` of the splits that are taken from it.
        name: The column, for messages.

    Raises:
        DataError: All weights of a split are 0.
    """
    weights = {split: by_source["train"][ids] for split, ids in rows.items()}
    weights |= {split: values for split, values in by_source.items() if split != "train"}
    check_totals({str(split): values for split, values in weights.items()}, name)
    return weights
