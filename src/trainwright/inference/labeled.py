"""Rows with their targets, to evaluate a model on, as users give them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainwright.datasets.base import Split
from trainwright.datasets.samples.arrays import Arrays
from trainwright.datasets.samples.weights import check_totals, checked
from trainwright.datasets.samples.weights import encode as encode_weights
from trainwright.datasets.tables.preparation import AnyPreparation, TabularPreparation
from trainwright.datasets.tables.raw import RawPreparation
from trainwright.datasets.tables.table import Table, as_table, tidy
from trainwright.datasets.tables.target import Target
from trainwright.errors import InputError
from trainwright.inference.input_rows import InputRows
from trainwright.plugins import task_for
from trainwright.tasks.support.transforms import transform_of
from trainwright.types import WEIGHT, Array, DataInfo

log = logging.getLogger("trainwright")


def refuse_masks(info: DataInfo, run_id: str) -> None:
    """Refuse to evaluate other rows if the targets are masks, which rows do not hold.

    Raises:
        InputError: The targets are masks.
    """
    if task_for(info).gives_masks:
        raise InputError(
            f"run {run_id} predicts masks, and is evaluated on its own splits only: --split; for "
            "other images train with a test split of them (data.test_path, or a folder test)"
        )


def labeled(given: Any, rows: InputRows) -> Split:
    """Return rows to evaluate: the inputs of the model, the targets, and the weights that they have.

    Args:
        given: Rows with the columns of the training data, the target among them; or, where the data set
            brought arrays, such arrays by name.
        rows: What turns them into the inputs of the model.

    Raises:
        InputError: There is no target, or an input of the model is missing or has another shape than in
            training.
        DataError: A target is not a class of the training rows, or no finite number.
    """
    if rows.preparation is None:
        return _labeled_arrays(given, rows)
    return _labeled_rows(given, rows, rows.preparation)


def _labeled_rows(given: Any, rows: InputRows, preparation: AnyPreparation) -> Split:
    data, weights = rows.data, _weights(given, rows)
    given = rows.derived(given)
    if not rows.info.target:
        return Arrays(rows.prepared(given))
    if data is not None and data.missing_target == "drop":
        given = preparation.with_targets(given)
        if weights and given.numbers is not None:
            weights = {WEIGHT: weights[WEIGHT][given.numbers]}
    targets = preparation.targets(given)
    if targets is None:
        raise InputError(f"the rows have no column {rows.info.target!r}: evaluation needs the target")
    if (transform := transform_of(rows.info)) is not None:
        transform.check(targets, "targets given")
    if weights:
        check_totals({"given": weights[WEIGHT]}, "data.weight")
    return Arrays({**rows.prepared(given), rows.task.target: targets, **weights})


def _weights(given: Any, rows: InputRows) -> dict[str, Array]:
    """Return the weights of rows, if they have the column that held them in training."""
    name = rows.data.weight if rows.data is not None else None
    if name is None:
        return {}
    table = as_table(given, only={name})
    if name not in table.columns:
        log.warning("the rows have no column %r (data.weight): they all count the same", name)
        return {}
    return {WEIGHT: encode_weights(table, name)}


def encoded_targets(given: Mapping[str, Any], rows: InputRows) -> Array:
    """Return targets as batches hold them, (rows, ...).

    Args:
        given: The targets by the names of their columns, (rows,) each.
        rows: What turns rows into the inputs of the model.

    Raises:
        InputError: A target is missing, or has another shape than in training.
        DataError: A target is not a class of the training rows, or no finite number.
    """
    if isinstance(rows.preparation, TabularPreparation | RawPreparation):
        names = rows.preparation.target.columns
        if missing := [name for name in names if name not in given]:
            raise InputError(f"the target {missing[0]!r} is missing; give {', '.join(names)}")
        made = rows.preparation.targets({name: given[name] for name in names})
        assert made is not None, "the columns are there"
        return made
    if rows.info.target not in given:
        raise InputError(f"the target {rows.info.target!r} is missing")
    values = np.asarray(given[rows.info.target])
    return _targets(values, rows.info, len(values))


def _labeled_arrays(given: Any, rows: InputRows) -> Split:
    info, task, data = rows.info, rows.task, rows.data
    if not info.target:
        return Arrays(rows.inputs(given))
    if not isinstance(given, Mapping) or info.target not in given:
        raise InputError(
            f"there is no target {info.target!r} among the arrays given, and evaluation needs it: give an "
            f"npz file of X and y, or arrays by name, {info.target!r} among them"
        )
    if task.is_open:
        _, encoded = task.encode_arrays({"test": np.asarray(given[info.target])}, None)
        return Arrays({**rows.inputs(given), task.target: encoded["test"]})
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
    blank = task.blank_targets(rows)
    if values.shape[1:] == (1,) and blank.ndim == 1:
        values = values.reshape(-1)
    if values.shape != blank.shape:
        raise InputError(
            f"targets {info.target!r} of shape {values.shape} given, for {rows} rows; the model was trained "
            f"on {blank.shape[1:]} a row"
        )
    if task.has_inner_labels:
        return task.encode_inner(values, info.classes or (), f"the targets {info.target!r}")
    if values.ndim == 1:
        table = Table({info.target: tidy(values, info.target, "the rows given")}, "the rows given")
        return Target(info.target, info.task, info.classes).encode(table)
    return values.astype(blank.dtype)
