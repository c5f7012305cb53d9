"""The column to predict: whether it holds classes or values, and their encoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainyard.config.schema import DataConfig
from trainyard.datasets.rows.table import Table, kind_of, listed, missing
from trainyard.errors import DataError
from trainyard.types import Array, Task

_FEW = 20  # more different integers are taken for values rather than classes


@dataclass(frozen=True)
class Target:
    """The column to predict; `classes` are the labels in the order of their indices, None for regression."""

    name: str
    task: Task
    classes: Sequence[Any] | None = None

    def encode(self, table: Table) -> Array:
        """Return the targets of a table, (rows,): int64 class indices, or float32 values.

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
        numbers = _as_values(values, where)
        if not (finite := np.isfinite(numbers)).all():
            raise DataError(f"{where} is infinite, or too large for float32, in {table.where(~finite)}")
        return numbers

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        classes = None if self.classes is None else list(self.classes)
        return {"name": self.name, "task": self.task, "classes": classes}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Target:
        """Restore the target that `to_json` was called on."""
        return Target(data["name"], data["task"], data["classes"])


def _as_values(values: Array, where: str) -> Array:
    if kind_of(values) not in ("number", "boolean"):
        raise DataError(
            f"{where} holds {kind_of(values)}, but the task is regression; give numbers, or data.task: "
            "classification"
        )
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def labels_in(values: Array) -> list[Any]:
    """Return the distinct labels, sorted, as plain Python values; floats that are integers become int."""
    if kind_of(values) == "text":
        return sorted(set(values))
    labels = np.unique(values)
    if labels.dtype.kind == "f" and (labels == np.trunc(labels)).all():
        labels = labels.astype(np.int64)
    return labels.tolist()  # type: ignore[no-any-return]


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


def inspect(table: Table, config: DataConfig) -> tuple[Task, list[str]]:
    """Decide whether the target holds classes or values.

    With `auto`, text and booleans are classes, and so are integers with few distinct values (up to 20, each
    three times on average); everything else is values.

    Returns:
        The task, and warnings.

    Raises:
        DataError: The target is missing, has missing values, or does not fit the task in the config.
    """
    name = config.target
    values = table.column(name, "data.target")
    where = f"{table.source}: the target {name!r}"
    if (absent := missing(values)).any():
        raise DataError(f"{where} has no value in {table.where(absent)}; remove these rows")
    if kind_of(values) == "time":
        raise DataError(f"{where} holds dates; a target holds classes or numbers")
    if kind_of(values) == "number" and not np.isfinite(values).all():
        raise DataError(
            f"{where} is infinite in {table.where(~np.isfinite(values))}; fix or remove these rows"
        )
    distinct = len(labels_in(values))
    if distinct < 2:
        raise DataError(f"{where} has only one value ({values[0]!r}): there is nothing to learn")
    task = _guess(values, distinct) if config.task == "auto" else config.task
    if task == "classification":
        _refuse_continuous(values, distinct, where)
    else:
        _as_values(values, where)
    return task, _doubts(values, distinct, where) if config.task == "auto" else []


def _are_integers(values: Array) -> bool:
    return kind_of(values) == "number" and bool((values == np.trunc(values)).all())


def _few(values: Array, distinct: int) -> bool:
    return distinct <= max(2, min(_FEW, len(values) // 3))


def _guess(values: Array, distinct: int) -> Task:
    if kind_of(values) in ("text", "boolean") or (_are_integers(values) and _few(values, distinct)):
        return "classification"
    return "regression"


def _refuse_continuous(values: Array, distinct: int, where: str) -> None:
    if kind_of(values) == "number" and not _are_integers(values) and not _few(values, distinct):
        raise DataError(
            f"{where} is continuous ({distinct} different values such as {values[0]:g}), but the task is "
            "classification; give data.task: regression, or a column of classes"
        )
    if distinct > max(_FEW, len(values) // 2):
        raise DataError(
            f"{where} has {distinct} classes in {len(values)} rows, hardly one row per class; "
            "give data.task: regression if these are amounts, or another column"
        )


def _doubts(values: Array, distinct: int, where: str) -> list[str]:
    if not _are_integers(values) or distinct <= _FEW // 2:
        return []
    if _few(values, distinct):
        return [
            f"{where} has {distinct} different integers, taken for classes; set data.task: regression if "
            "they are amounts"
        ]
    if len(values) >= 10 * distinct:
        return [
            f"{where} has {distinct} different integers, taken for amounts; set data.task: classification "
            "if they are classes"
        ]
    return []
