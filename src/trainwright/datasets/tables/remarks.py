"""Oddities of rows to predict, compared with the training rows: one line for each column."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from trainwright.datasets.tables.encoders.base import Encoder
from trainwright.datasets.tables.table import Table, kind_of, missing, nearest
from trainwright.errors import DataError
from trainwright.numerals import listed

UNSEEN = "values of "  # begins the key of a remark on values that no training row has
_EXAMPLES = 3  # values that a line names
_PLURALS = {"number": "numbers", "boolean": "booleans", "time": "times", "text": "text"}


Remarks = Iterator[tuple[str, str]]  # a key, to say each once, and a line


def changed_types(table: Table, columns: Sequence[Encoder], given: Mapping[str, str]) -> Remarks:
    """Yield a remark for each column of another type than in training.

    Args:
        table: The rows, as they were given.
        columns: The columns that the model was trained with.
        given: The types of the training rows, where these are not what the encoder reads.
    """
    for column in columns:
        values = table.column(column.name)
        kind, count = kind_of(values), len(values) - int(missing(values).sum())
        expected = {column.reads, given.get(column.name, column.reads)}
        if column.reads == "number":
            expected.add("boolean")
        if column.reads == "time":
            expected.add("text")  # as in a file; what is no time is an error
        if count and kind not in expected and not (kind == "text" and _beside_a_bad_cell(table, column)):
            hold, reads = _rows(count, "holds", "hold"), _PLURALS[column.reads]
            yield (
                f"type of {column.name}",
                f"column {column.name!r}: {hold} {_PLURALS[kind]} where the training rows hold {reads}; read "
                f"as {reads}",
            )


def _beside_a_bad_cell(table: Table, column: Encoder) -> bool:
    """Return whether these numbers are text only as a cell of the same file is none, which is an error."""
    return column.reads == "number" and table.source != Table.source


def unseen_values(table: Table, columns: Sequence[Encoder]) -> Remarks:
    """Yield a remark for each column with values that no training row has."""
    for column in columns:
        values = column.unseen(table)
        if len(values):
            examples = listed(map(repr, dict.fromkeys(values)), _EXAMPLES)
            rows = _rows(len(values), "has a value", "have values")
            yield (
                f"{UNSEEN}{column.name}",
                f"column {column.name!r}: {rows} that no training row has: {examples}; taken as "
                f"{column.unseen_as}",
            )


def unused_columns(table: Table, columns: Sequence[Encoder], known: Collection[str]) -> Remarks:
    """Yield a remark about columns that the model does not use, if there are others than those in `known`."""
    used = {column.name for column in columns} | {*known}
    if extra := [name for name in [*table.columns, *table.unread] if name not in used]:
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
    others = [name for name in given if name not in {column.name for column in columns}]
    lines = [
        f"there is no column {column.name!r}; {nearest(column.name, others, there=given)}"
        for column in lacking[:3]
    ]
    if len(lacking) > len(lines):
        lines.append(f"and {len(lacking) - len(lines)} more")
    elif all(column.accepts_missing for column in lacking):
        them = "it" if len(lacking) == 1 else "them"
        lines.append(f"the model accepts missing values: to use that, add {them}, and leave {them} empty")
    raise DataError(f"{table.source}: " + "\n  ".join(lines))


def _rows(count: int, one: str, several: str) -> str:
    return f"{count} row {one}" if count == 1 else f"{count} rows {several}"
