"""What is odd about rows to predict, compared with the training rows: one line for each column."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from trainyard.datasets.rows.encoders.base import Encoder
from trainyard.datasets.rows.table import Table, kind_of, listed, missing, nearest
from trainyard.errors import DataError

_EXAMPLES = 3  # values that a line names
_PLURALS = {"number": "numbers", "boolean": "booleans", "time": "times", "text": "text"}


def remarks(table: Table, columns: Sequence[Encoder], known: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield what a user should know of rows that can be used; each with a key, to be said once.

    Args:
        table: The rows, as they were given.
        columns: The columns that the model was trained with.
        known: Names of other columns, which the model is known not to use.
    """
    for column in columns:
        if line := _changed_type(table, column):
            yield f"type of {column.name}", line
        if line := _unseen(table, column):
            yield f"values of {column.name}", line
    used = {column.name for column in columns}
    if extra := [name for name in [*table.columns, *table.unread] if name not in used and name not in known]:
        are = "column is" if len(extra) == 1 else "columns are"
        yield f"columns {extra}", f"{len(extra)} {are} not used by the model: {listed(map(repr, extra))}"


def require_columns(table: Table, columns: Sequence[Encoder]) -> None:
    """Refuse rows that lack a column of the training rows.

    Raises:
        DataError: Columns are missing; names all of them, with the nearest names that there are.
    """
    lacking = [column for column in columns if column.name not in table.columns]
    if not lacking:
        return
    given = [*table.columns, *table.unread]
    others = [name for name in given if name not in {column.name for column in columns}] or given
    lines = [f"there is no column {column.name!r}; {nearest(column.name, others)}" for column in lacking[:3]]
    if len(lacking) > len(lines):
        lines.append(f"and {len(lacking) - len(lines)} more columns are missing")
    elif all(column.accepts_missing for column in lacking):
        them = "it" if len(lacking) == 1 else "them"
        lines.append(f"the model accepts missing values: where they are meant, give {them} without values")
    raise DataError(f"{table.source}: " + "\n  ".join(lines))


def _changed_type(table: Table, column: Encoder) -> str | None:
    values = table.column(column.name)
    given = kind_of(values)
    if given == column.reads or {given, column.reads} == {"boolean", "number"}:
        return None
    count = len(values) - int(missing(values).sum())
    if not count:
        return None
    return (
        f"column {column.name!r}: {_rows(count, 'holds', 'hold')} {_PLURALS[given]} where the training rows "
        f"hold {_PLURALS[column.reads]}; read as {_PLURALS[column.reads]}"
    )


def _unseen(table: Table, column: Encoder) -> str | None:
    values = column.unseen(table)
    if not len(values):
        return None
    examples = listed(map(repr, dict.fromkeys(values)), _EXAMPLES)
    return (
        f"column {column.name!r}: {_rows(len(values), 'has a value', 'have values')} that no training row "
        f"has: {examples}; taken as {column.unseen_as}"
    )


def _rows(count: int, one: str, several: str) -> str:
    return f"{count} row {one}" if count == 1 else f"{count} rows {several}"
