"""The column to predict: its task and its encoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainyard.config.schema import DataConfig
from trainyard.datasets.rows.table import Table, kind_of, listed, missing
from trainyard.errors import DataError
from trainyard.registry import task_of
from trainyard.tasks.support.columns import distinct_labels, doubts, infer_task
from trainyard.types import Array


@dataclass(frozen=True)
class Target:
    """The column to predict, and its task; `classes` are the labels in the order of their indices, if any.

    Values become `dtype`.
    """

    name: str
    task: str
    classes: Sequence[Any] | None = None
    dtype: str = "float32"

    def encode(self, table: Table) -> Array:
        """Return the targets of a table, (rows,): int64 class indices, or values of `dtype`.

        Raises:
            DataError: A cell is empty, not a class of the training rows, or not a finite number.
        """
        values = table.column(self.name, "data.target")
        where = f"{table.source}: the target {self.name!r}"
        if (absent := missing(values)).any():
            raise DataError(f"{where} has no value in {table.where(absent)}; remove these rows")
        if self.classes is not None:
            codes = class_indices(values, self.classes)
            if (unknown := codes < 0).any():
                label = values[unknown][0]
                raise DataError(
                    f"{where} is {label!r} in {table.where(values == label)}, a class without training rows; "
                    f"training knows {listed(self.classes)}"
                )
            return codes
        task_of(self.task).check_column(values, where)
        with np.errstate(over="ignore"):
            numbers = values.astype(self.dtype)
        if not (finite := np.isfinite(numbers)).all():
            raise DataError(f"{where} is infinite, or too large for {self.dtype}, in {table.where(~finite)}")
        return numbers

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        classes = None if self.classes is None else list(self.classes)
        dtype = {} if self.dtype == "float32" else {"dtype": self.dtype}
        return {"name": self.name, "task": self.task, "classes": classes, **dtype}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Target:
        """Restore the target that `to_json` was called on."""
        return Target(data["name"], data["task"], data["classes"], data.get("dtype", "float32"))


def class_indices(values: Array, classes: Sequence[Any]) -> Array:
    """Return the index of each label in the sorted `classes`, (rows,) int64; -1 for an unknown label."""
    known = np.asarray(classes)
    if known.dtype.kind in "biuf" and kind_of(values) in ("number", "boolean"):
        at = np.minimum(np.searchsorted(known, values), len(known) - 1)
        return np.where(known[at] == values, at, -1).astype(np.int64)
    index = {str(label): i for i, label in enumerate(classes)}
    return np.fromiter(
        (index.get(str(value), -1) for value in values.tolist()), dtype=np.int64, count=len(values)
    )


def inspect(table: Table, config: DataConfig) -> tuple[str, list[str]]:
    """Decide which task the target stands for, and check that it fits.

    Returns:
        The name of the task, and warnings.

    Raises:
        DataError: The target is missing, has missing values, or does not fit the task in the config.
    """
    name = config.target
    values = table.column(name, "data.target")
    where = f"{table.source}: the target {name!r}"
    if (absent := missing(values)).any():
        raise DataError(
            f"{where} has no value in {table.where(absent)}; remove these rows, or "
            "leave them out with data.missing_target: drop"
        )
    if kind_of(values) == "time":
        raise DataError(f"{where} holds dates; a target holds classes or numbers")
    if kind_of(values) == "number" and not np.isfinite(values).all():
        raise DataError(
            f"{where} is infinite in {table.where(~np.isfinite(values))}; fix or remove these rows"
        )
    if len(distinct_labels(values)) < 2:
        raise DataError(f"{where} has only one value ({values[0]!r}): there is nothing to learn")
    task = infer_task(values) if config.task == "auto" else config.task
    task_of(task).check_column(values, where)
    return task, doubts(values, where) if config.task == "auto" else []


def rows_with_target(table: Table, name: str) -> tuple[Table, str]:
    """Return the rows whose target is not missing, and a warning if some are dropped.

    Raises:
        DataError: No row has a target.
    """
    absent = missing(table.column(name, "data.target"))
    count = int(absent.sum())
    if not count:
        return table, ""
    if count == len(table):
        raise DataError(f"{table.source}: the target {name!r} has no value in any row")
    return table.take(np.flatnonzero(~absent)), (
        f"{table.source}: {count:,} of {len(table):,} rows have no target, and are dropped "
        "(data.missing_target: drop)"
    )
