"""The column to predict: its task and its encoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.config.schema import DataConfig
from trainwright.datasets.tables.list_cells import expanded
from trainwright.datasets.tables.table import Table, kind_of, missing
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.plugins import task_of
from trainwright.tasks.support.columns import distinct_labels, doubts, infer_task, infer_task_of_matrix
from trainwright.types import Array

_UNTARGETED = "custom_loss"  # the task of data without a target
_UNLIKE = 10  # times: targets whose standard deviations differ by more are of unlike scales


@dataclass(frozen=True)
class Target:
    """The column to predict, and its task; `classes` are the labels in the order of their indices, if any.

    Of several columns, `names` are theirs, and `name` joins them; it is empty where there is no target.
    `lists` is the column that holds the names of those that are 1, if they come so.
    """

    name: str
    task: str
    classes: Sequence[Any] | None = None
    names: Sequence[str] = ()
    lists: str | None = None

    @property
    def columns(self) -> list[str]:
        """The columns that hold it."""
        return [self.lists] if self.lists is not None else list(self.names) or [self.name] * bool(self.name)

    def encode(self, table: Table, dtype: str = "float32") -> Array:
        """Return the targets of a table.

        Args:
            table: The rows.
            dtype: NumPy's name of the dtype of features, in which a framework must hold values, too.

        Returns:
            (rows,) int64 class indices or float64 values; (rows, columns) of several columns, float32 of
            labels.

        Raises:
            DataError: A cell is empty, not a class of the training rows, or not a finite number.
        """
        if self.lists is not None and self.lists in table.columns:
            table = expanded(table, self.lists, self.names)
        if self.names:
            matrix = _matrix(table, self.names, dtype, self.task)
            return matrix.astype(np.float32) if task_of(self.task).targets_are_labels else matrix
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
        return as_values(values, where, table, dtype)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        classes = None if self.classes is None else list(self.classes)
        more: dict[str, Any] = {"names": list(self.names)} if self.names else {}
        more |= {"lists": self.lists} if self.lists is not None else {}
        return {"name": self.name, "task": self.task, "classes": classes, **more}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Target:
        """Restore the target that `to_json` was called on."""
        return Target(
            data["name"],
            data["task"],
            data["classes"],
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


def as_values(values: Array, where: str, table: Table, dtype: str) -> Array:
    """Return the numbers of a target, (rows,), as float64.

    Args:
        values: The numbers.
        where: The target, for messages.
        table: Its table.
        dtype: See `Target.encode`.

    Raises:
        DataError: One is infinite, or beyond what the framework can hold; or it is a whole number that
            float64 cannot hold.
    """
    held = np.dtype(dtype if dtype == "float64" else "float32")
    with np.errstate(over="ignore"):
        numbers = values.astype(np.float64)
        finite = np.isfinite(numbers.astype(held))
    if not finite.all():
        raise DataError(
            f"{where} is infinite, or too large for {held}, in {table.where(~finite)}; "
            "fix or remove these rows"
        )
    if (rounded := beyond_float64(values)).any():
        raise DataError(
            f"{where} is {values[rounded][0]} in {table.where(rounded)}, which float64 cannot hold exactly; "
            "subtract a constant from all, or give data.task: classification if they are classes"
        )
    return numbers


def beyond_float64(values: Array) -> Array:
    """Return which whole numbers, (rows,), change when they become float64: (rows,) bool."""
    if values.dtype.kind not in "iu" or values.dtype.itemsize < 8:
        return np.zeros(len(values), bool)
    large = (values > 2**53) | (values < -(2**53) if values.dtype.kind == "i" else False)
    changed = np.zeros(len(values), bool)
    changed[large] = [int(float(value)) != value for value in values[large].tolist()]
    return changed


def inspect(table: Table, config: DataConfig, dtype: str = "float32") -> tuple[str, list[str]]:
    """Decide which task the target stands for, and check that it fits.

    Args:
        table: The rows.
        config: The data section.
        dtype: See `Target.encode`.

    Returns:
        The name of the task, and warnings.

    Raises:
        DataError: The target is missing, has missing values, or does not fit the task in the config.
    """
    if not config.targets:
        return untargeted(config), []
    if len(config.targets) > 1:
        return _inspect_several(table, config, dtype)
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


def require_target(config: DataConfig) -> None:
    """Check that there is a target, which samples of this type need.

    Raises:
        DataError: There is none.
    """
    if not config.targets:
        raise DataError(
            "data.target: null is for tables, arrays, images and map-style data sets; the samples of "
            f"data.type: {config.type} need a target: name it"
        )


def untargeted(config: DataConfig) -> str:
    """Return the task of data without a target.

    Raises:
        DataError: The config names another.
    """
    if config.task not in ("auto", _UNTARGETED):
        raise DataError(
            f"data.target is null, but the task is {config.task}; name the target, or leave data.task out"
        )
    return _UNTARGETED


def _inspect_several(table: Table, config: DataConfig, dtype: str) -> tuple[str, list[str]]:
    """Decide which task several columns of numbers stand for, as `inspect` does for one."""
    if len(set(config.targets)) < len(config.targets):
        raise DataError(f"data.target names a column twice: {listed(config.targets)}; name each once")
    matrix, warnings = _matrix(table, config.targets, dtype), list[str]()
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


def _matrix(table: Table, names: Sequence[str], dtype: str, task: str | None = None) -> Array:
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
        numbers = as_values(values, where, table, dtype)
        if task is not None and not task_of(task).accepts(values[:, None]):
            other = (values != 0) & (values != 1)
            raise DataError(f"{where} must be {task_of(task).wants}, but is not in {table.where(other)}")
        columns.append(numbers)
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
