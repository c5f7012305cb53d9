"""Arrays in npz files, for models that are called with arrays rather than with prepared columns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.config.schema import DataConfig
from trainyard.datasets.base import Split
from trainyard.datasets.npz import inputs_in
from trainyard.datasets.rows.arrays import Arrays
from trainyard.datasets.rows.preparation import AnyPreparation
from trainyard.datasets.rows.table import Table, tidy
from trainyard.datasets.rows.target import Target
from trainyard.datasets.rows.weights import check_totals, checked
from trainyard.errors import InputError
from trainyard.registry import task_for
from trainyard.runs.given_rows import GivenRows
from trainyard.tasks.support.transforms import transform_of
from trainyard.types import WEIGHT, Array, DataInfo


def arrays_of(
    path: Path | str, info: DataInfo, preparation: AnyPreparation | None
) -> Mapping[str, Array] | None:
    """Return the arrays of an npz file by the names that the model takes them by; None: the rows of a table.

    Raises:
        DataError: The file cannot be read.
        InputError: The model takes images in files, or texts.
    """
    if Path(path).suffix.lower() != ".npz" or (preparation is not None and preparation.has_columns):
        return None
    if preparation is not None:
        raise InputError(
            f"{path} holds arrays, but the run was trained on {' and '.join(preparation.column_names)} in "
            "files; give such files"
        )
    return inputs_in(str(path), info.target)


def labeled(given: Any, rows: GivenRows, data: DataConfig | None, info: DataInfo) -> Split:
    """Return rows to evaluate: the inputs of the model, the targets, and the weights that they have.

    Args:
        given: The arrays by name, the target among them.
        rows: What turns them into the inputs of the model.
        data: The data section of the run's config.
        info: What the run's data are.

    Raises:
        InputError: These are no arrays by name, one is missing, or has another shape than in training.
        DataError: A target is not a class of the training rows, or no finite number.
    """
    if not isinstance(given, Mapping) or info.target not in given:
        raise InputError(
            f"there is no target {info.target!r} among the arrays given, and evaluation needs it: give an "
            f"npz file of X and y, or arrays by name, {info.target!r} among them"
        )
    task = task_for(info)
    if task.sums:  # the targets are among the arrays
        return Arrays(rows.batch(given))
    inputs = rows.inputs(given)
    targets = _targets(np.asarray(given[info.target]), info, len(next(iter(inputs.values()))))
    if (transform := transform_of(info)) is not None:
        transform.check(targets, "targets given")
    arrays = {**inputs, task.target: targets}
    name = data.weight if data is not None else None
    if name is not None and name in given:
        arrays[WEIGHT] = checked(np.asarray(given[name]), f"the array {name!r} (data.weight)")
        check_totals({"given": arrays[WEIGHT]}, "data.weight")
    return Arrays(arrays)


def _targets(values: Array, info: DataInfo, rows: int) -> Array:
    """Return raw targets as batches hold them.

    Raises:
        InputError: They have another shape than in training.
        DataError: One is not a class of the training rows, or no finite number.
    """
    task = task_for(info)
    blank = task.blank_targets(rows).shape
    if values.shape[1:] == (1,) and len(blank) == 1:
        values = values.reshape(-1)
    if values.shape != blank:
        raise InputError(
            f"targets {info.target!r} of shape {values.shape} given, for {rows} rows; the model was trained "
            f"on {blank[1:]} a row"
        )
    if task.has_inner_labels:
        return task.encode_inner(values, info.classes or (), f"the targets {info.target!r}")
    if values.ndim == 1:
        table = Table({info.target: tidy(values, info.target, "the rows given")}, "the rows given")
        return Target(info.target, info.task, info.classes).encode(table)
    return values.astype(np.float32)
