"""Cells that hold lists: the labels of a row, the words of a text, or their tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trainwright.config.schema import DataConfig
from trainwright.datasets.tables.table import Table
from trainwright.errors import DataError
from trainwright.numerals import listed
from trainwright.plugins import task_of
from trainwright.tasks.support.columns import MULTILABEL
from trainwright.types import NO_LABEL, Array, SplitName


def holds_lists(values: Array) -> bool:
    """Return whether the cells of a column, (rows,), are lists; missing ones tell nothing."""
    if values.dtype.kind != "O":
        return False
    return isinstance(next((value for value in values if value is not None), None), list)


def lists_of(values: Array, where: str, table: Table | None = None) -> list[list[Any]]:
    """Return the cells of a column of lists.

    Args:
        values: (rows,) the cells.
        where: The name of the column, in messages.
        table: The table that it is from, which knows the rows of the file.

    Raises:
        DataError: A cell holds something else.
    """
    for row, value in enumerate(values):
        if not isinstance(value, list):
            raise DataError(
                f"{where}: {value!r} in {_place(row, table)} is not a list; an empty list is written []"
            )
    return list(values)


def _place(row: int, table: Table | None) -> str:
    return f"row {row + 1}" if table is None else table.where(np.arange(len(table)) == row)


def _labels_of(table: Table, name: str) -> list[list[str]]:
    """Return the labels in the lists of a column.

    Raises:
        DataError: A cell is no list, or a label is missing.
    """
    where = f"{table.source}: the target {name!r}"
    cells = lists_of(table.column(name), where, table)
    for row, cell in enumerate(cells):
        if None in cell:
            raise DataError(
                f"{where} has a list with a missing label, {cell}, in {_place(row, table)}; leave the "
                "missing one out of the list"
            )
    return [[str(label) for label in cell] for cell in cells]


def with_label_columns(
    tables: Mapping[SplitName, Table], config: DataConfig
) -> tuple[Mapping[SplitName, Table], DataConfig]:
    """Return tables whose target, a column of lists of labels, is a column of 0 and 1 for each label.

    The labels are those of the training source, sorted. Without such a column all is returned as it is.

    Raises:
        DataError: A list is missing, or has a label that no training row has, or the task is another one.
    """
    name = config.target_name
    if len(config.targets) > 1 or not holds_lists(tables["train"].columns.get(name, np.empty(0))):
        return tables, config
    if config.task != "auto" and not task_of(config.task).targets_are_labels:
        raise DataError(
            f"{tables['train'].source}: the target {name!r} holds lists, of labels for each row, but the "
            f"task is {config.task}; leave it out, or give data.task: {MULTILABEL}"
        )
    if config.missing_target == "drop":
        tables = {key: _present(table, name) for key, table in tables.items()}
    labels = sorted({label for cell in _labels_of(tables["train"], name) for label in cell})
    if len(labels) < 2:
        only = f"hold {listed(labels)} only" if labels else "are all empty"
        raise DataError(f"{tables['train'].source}: the lists of the target {name!r} {only}")
    tables = {key: expanded(table, name, labels) for key, table in tables.items()}
    return tables, config.model_copy(update={"target": labels, "task": MULTILABEL})


def expanded(table: Table, name: str, labels: Sequence[str]) -> Table:
    """Return a table with a column of 0 and 1 for each label instead of a column of lists of them.

    Raises:
        DataError: A cell is no list, or has another label.
    """
    index = {label: i for i, label in enumerate(labels)}
    matrix = np.zeros((len(table), len(labels)), np.int64)
    for row, cell in enumerate(_labels_of(table, name)):
        for label in cell:
            if label not in index:
                raise DataError(
                    f"{table.source}: the target {name!r} has {label!r} in {_place(row, table)}, a "
                    f"label without training rows; training knows {listed(labels)}; leave the label out, or "
                    "give it training rows"
                )
            matrix[row, index[label]] = 1
    table = replace(table, columns={key: table.columns[key] for key in table.columns if key != name})
    for label, values in zip(labels, matrix.T, strict=True):
        table = table.with_column(label, values)
    return table


def tags_of(words: Sequence[Sequence[Any]], tags: Array, where: str, table: Table | None = None) -> Array:
    """Return the tags of words, (rows, words of the longest row): int64, or str as objects.

    What is no tag (None, or beyond a row's words) is NO_LABEL, or an empty text.

    Args:
        words: The words of each row.
        tags: (rows,) a list of tags for each.
        where: The name of the column of tags, in messages.
        table: The table that it is from, which knows the rows of the file.

    Raises:
        DataError: A row has not as many tags as words, or tags are neither texts nor whole numbers.
    """
    cells = lists_of(tags, where, table)
    for row, (some, own) in enumerate(zip(words, cells, strict=True)):
        if len(some) != len(own):
            raise DataError(
                f"{where} has {len(own)} tags in {_place(row, table)}, which has {len(some)} words; give one "
                f"for each word, or data.task: {MULTILABEL} if they are the labels of a row"
            )
    kinds = {type(tag) for cell in cells for tag in cell} - {type(None)}
    if not kinds <= {int} and not kinds <= {str}:
        names = listed(sorted(kind.__name__ for kind in kinds))
        raise DataError(f"{where} holds tags of type {names}; give texts, or whole numbers")
    blank = NO_LABEL if kinds == {int} else ""
    shape = len(cells), max(1, *(len(cell) for cell in cells)) if cells else 1
    matrix = np.full(shape, blank, np.int64 if kinds == {int} else object)
    for row, cell in enumerate(cells):
        matrix[row, : len(cell)] = [blank if tag is None else tag for tag in cell]
    return matrix


def _present(table: Table, name: str) -> Table:
    present = np.flatnonzero(np.array([value is not None for value in table.column(name)], bool))
    return table if len(present) == len(table) else table.take(present)
