"""The column to predict: its task and its encoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.config.schema import DataConfig
from trainwright.datasets.rows.list_cells import expanded
from trainwright.datasets.rows.table import Table, kind_of, listed, missing
from trainwright.errors import DataError
from trainwright.registry import task_of
from trainwright.tasks.support.columns import distinct_labels, doubts, infer_task, infer_task_of_matrix
from trainwright.types import Array

_UNLIKE = 10  # times: targets whose standard deviations differ by more are of unlike scales


@dataclass(frozen=True)
class Target:
    """The column to predict, and its task; `classes` are the labels in the order of their indices, if any.

    Values become `dtype`. Of several columns, `names` are theirs, and `name` joins them. `lists` is the
    column that holds the names of those that are 1, if they come so.
    """

    name: str
    task: str
    classes: Sequence[Any] | None = None
    dtype: str = "float32"
    names: Sequence[str] = ()
    lists: str | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that hold it."""
        return [self.lists] if self.lists is not None else list(self.names) or [self.name]

    def encode(self, table: Table) -> Array:
        """Return the targets of a table.

        Returns:
            (rows,) int64 class indices or values of `dtype`; (rows, columns) of several columns.

        Raises:
            DataError: A cell is empty, not a class of the training rows, or not a finite number.
        """
        if self.lists is not None and self.lists in table.columns:
            table = expanded(table, self.lists, self.names)
        if self.names:
            dtype = "float32" if task_of(self.task).targets_are_labels else self.dtype
            return _matrix(table, self.names, self.task).astype(dtype)
        values = table.column(self.name, "data.target")
        where = f"{table.source}: the target {self.name!r}"
        if (absent := missing(values)).any():
            raise DataError(f"{where} has no value in {table.where(absent)}; remove these rows")
        if self.classes is not None:
            codes = class_indices(values, self.classes)
            if (unknown := codes < 0).any():
                label = values[unknown][0]
                raise DataError(
                    f"{where} is {label!r} in {table.where(values == label)}, a class without "
                    f"training rows; training knows {listed(self.classes)}; remove these rows, or train "
                    "with rows of this class"
                )
            return codes
        task_of(self.task).check_column(values, where)
        with np.errstate(over="ignore"):
            numbers = values.astype(self.dtype)
        if not (finite := np.isfinite(numbers)).all():
            raise DataError(
                f"{where} is infinite, or too large for {self.dtype}, in {table.where(~finite)}; "
                "fix or remove these rows"
            )
        return numbers

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        classes = None if self.classes is None else list(self.classes)
        more: dict[str, Any] = {} if self.dtype == "float32" else {"dtype": self.dtype}
        more |= {"names": list(self.names)} if self.names else {}
        more |= {"lists": self.lists} if self.lists is not None else {}
        return {"name": self.name, "task": self.task, "classes": classes, **more}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Target:
        """Restore the target that `to_json` was called on."""
        return Target(
            data["name"],
            data["task"],
            data["classes"],
            data.get("dtype", "float32"),
            tuple(data.get("names", ())),
            data.get("lists"),
        )


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
    if len(config.targets) > 1:
        return _inspect_several(table, config)
    name = config.target_name
    values = table.column(name, "data.target")
    where = f"{table.source}: the target {name!r}"
    if (absent := missing(values)).any():
        raise DataError(
            f"{where} has no value in {table.where(absent)}; remove these rows, or "
            "leave them out with data.missing_target: drop"
        )
    if kind_of(values) == "time":
        raise DataError(f"{where} holds dates, but a target must hold classes or numbers")
    if kind_of(values) == "number" and not np.isfinite(values).all():
        raise DataError(
            f"{where} is infinite in {table.where(~np.isfinite(values))}; fix or remove these rows"
        )
    if len(distinct_labels(values)) < 2:
        raise DataError(f"{where} has only one value ({values.tolist()[0]!r}): there is nothing to learn")
    task = infer_task(values) if config.task == "auto" else config.task
    task_of(task).check_column(values, where)
    return task, doubts(values, where) if config.task == "auto" else []


def _inspect_several(table: Table, config: DataConfig) -> tuple[str, list[str]]:
    """Decide which task several columns of numbers stand for, as `inspect` does for one."""
    if len(set(config.targets)) < len(config.targets):
        raise DataError(f"data.target names a column twice: {listed(config.targets)}; name each once")
    matrix, warnings = _matrix(table, config.targets), list[str]()
    for name, values in zip(config.targets, matrix.T, strict=True):
        if (values == values[0]).all():
            raise DataError(
                f"{table.source}: the target {name!r} has only one value ({values[0]:g}): there is nothing "
                "to learn"
            )
    task = config.task
    if task == "auto":
        task, warnings = infer_task_of_matrix(matrix, f"{table.source}: the targets {config.target_name}")
    if task_of(task).has_classes() or not task_of(task).accepts(matrix):
        raise DataError(
            f"data.target names {len(config.targets)} columns, but the task is {task}, which takes "
            f"{task_of(task).wants}; give one column, or data.task: regression"
        )
    return task, warnings + _unlike_scales(matrix, table, config)


def _unlike_scales(matrix: Array, table: Table, config: DataConfig) -> list[str]:
    """Return a warning about targets, (rows, columns), of which one is most of any squared error."""
    scales = matrix.std(axis=0)
    if config.target_transform is not None or scales.max() <= _UNLIKE * scales.min():
        return []
    large, small = (config.targets[int(pick(scales))] for pick in (np.argmax, np.argmin))
    return [
        f"{table.source}: the target {large!r} varies {scales.max() / scales.min():.3g} "
        f"times as much as {small!r}, so a loss over both hardly depends on the latter; set "
        "data.target_transform: standardize"
    ]


def _matrix(table: Table, names: Sequence[str], task: str | None = None) -> Array:
    """Return several targets of a task, which if None may be any numbers: (rows, columns) float64.

    Raises:
        DataError: A cell is empty or no finite number; or, for labels, neither 0 nor 1.
    """
    columns = []
    for name in names:
        values, where = table.column(name, "data.target"), f"{table.source}: the target {name!r}"
        if kind_of(values) not in ("number", "boolean"):
            raise DataError(
                f"{where} holds {kind_of(values)} values; several targets must be numbers, or 0 and 1 for "
                "labels"
            )
        if (absent := missing(values)).any():
            raise DataError(f"{where} has no value in {table.where(absent)}; remove these rows")
        with np.errstate(over="ignore"):
            bad = ~np.isfinite(values.astype(np.float32))
        if bad.any():
            raise DataError(
                f"{where} is infinite, or too large for float32, in {table.where(bad)}; fix or "
                "remove these rows"
            )
        if task is not None and not task_of(task).accepts(values[:, None]):
            other = (values != 0) & (values != 1)
            raise DataError(f"{where} must be {task_of(task).wants}, but is not in {table.where(other)}")
        columns.append(values.astype(np.float64))
    return np.stack(columns, axis=1)


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
        raise DataError(
            f"{table.source}: the target {name!r} has no value in any row; name another column in data.target"
        )
    return table.take(np.flatnonzero(~absent)), (
        f"{table.source}: {count:,} of {len(table):,} rows have no target, and are dropped "
        "(data.missing_target: drop)"
    )
