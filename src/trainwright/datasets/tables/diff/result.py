"""The differences of two tables, as a record: for Python, JSON and sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trainwright.datasets.tables.diff.shift import ColumnShift
from trainwright.numerals import counted, listed


@dataclass(frozen=True)
class TypeChange:
    """A column whose type changed; `values_equal` says whether each row that both tables have kept its value.

    Values are compared as they are read: 1, 1.0 and the text "1" are equal.
    """

    column: str
    before: str
    after: str
    values_equal: bool


@dataclass(frozen=True)
class SchemaDiff:
    """The columns that were added, removed or renamed (same content), or that changed their type.

    `reordered`: the columns of both tables come in another order.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    types: tuple[TypeChange, ...] = ()
    reordered: bool = False

    @property
    def equal(self) -> bool:
        """True if nothing but the types of columns differs."""
        return not (self.added or self.removed or self.renamed or self.reordered)


@dataclass(frozen=True)
class RowPlace:
    """A row of a table: its number, from 1 without the header, its key, if rows have one, and some cells."""

    row: int
    key: Mapping[str, Any] | None = None
    cells: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RowDiff:
    """The rows of both tables, and which of them differ.

    `counts` are those of both tables. Rows are matched by `key`, which `key_found` says was chosen here; by
    content where it is empty: then a row that changed is one that both tables have at the same place, with at
    least half of its cells equal. `changed` have another cell, and `moved` stand in another order, whether
    they changed or not. `removed_rows` and `added_rows` are the first ones. `repeated_keys` and `keyless`
    count, in each table, keys of more than one row and rows without a key: these are matched by content.
    `passed_over` says why columns that are named like identifiers were not chosen, where none was.
    """

    counts: tuple[int, int]
    key: tuple[str, ...]
    removed: int
    added: int
    changed: int
    moved: int
    key_found: bool = False
    removed_rows: tuple[RowPlace, ...] = ()
    added_rows: tuple[RowPlace, ...] = ()
    repeated_keys: tuple[int, int] = (0, 0)
    keyless: tuple[int, int] = (0, 0)
    passed_over: Mapping[str, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """True if both tables have the same rows in the same order."""
        return not (self.removed or self.added or self.changed or self.moved)


@dataclass(frozen=True)
class CellChange:
    """A cell that changed: its column, its row in the first and in the second table, and its values."""

    column: str
    before_row: int
    after_row: int
    key: Mapping[str, Any] | None
    before: Any
    after: Any


@dataclass(frozen=True)
class TableDiff:
    """The differences of two tables.

    `split` is the split that a run reads from them, empty for files. `changed` counts the changed rows by
    column; `cells` are the first cells that changed; `shift` is of the columns that both tables have, empty
    where nothing differs. Values of columns that are named like credentials are hidden.
    """

    split: str
    schema: SchemaDiff
    rows: RowDiff
    changed: Mapping[str, int]
    cells: tuple[CellChange, ...]
    shift: tuple[ColumnShift, ...]

    @property
    def equal(self) -> bool:
        """True if both tables have the same columns and rows in the same order; types may differ."""
        return self.schema.equal and self.rows.equal

    def sentences(self) -> Iterator[str]:
        """Yield what differs, one thing a line."""
        split = f"{self.split}: " if self.split else ""
        yield from (f"{split}{text}" for text in (*_of_schema(self.schema), *self._of_rows()))

    def _of_rows(self) -> Iterator[str]:
        rows = self.rows
        by = f" (key {', '.join(rows.key)})" if rows.key else ""
        if rows.changed:
            yield f"{_changed(rows.changed, self.changed)}{by}"
        if rows.added:
            yield f"{counted(rows.added, 'row')} added{by}"
        if rows.removed:
            yield f"{counted(rows.removed, 'row')} removed{by}"
        if rows.moved:
            yield f"{counted(rows.moved, 'row')} moved: the order differs{by}"


def _of_schema(schema: SchemaDiff) -> Iterator[str]:
    for names, what in ((schema.added, "added"), (schema.removed, "removed")):
        if names:
            yield f"{_columns(names)} {what}"
    for old, new in schema.renamed.items():
        yield f"column {old} renamed to {new}, its content is the same"
    for one in schema.types:
        values = ", values equal" if one.values_equal else ""
        yield f"type of column {one.column} changed from {one.before} to {one.after}{values}"
    if schema.reordered:
        yield "the order of the columns differs"


def _changed(rows: int, columns: Mapping[str, int]) -> str:
    ordered = sorted(columns.items(), key=lambda item: -item[1])
    if len(ordered) == 1:
        return f"{counted(rows, 'row')} changed in column {ordered[0][0]}"
    named = listed((f"{count:,} in column {name}" for name, count in ordered), 6)
    return f"{counted(rows, 'row')} changed: {named}"


def _columns(names: Sequence[str]) -> str:
    return f"column{'s' if len(names) > 1 else ''} {listed(names)}"


def _known(value: Any) -> Any:
    return "missing" if value is None else value


@dataclass(frozen=True)
class RecordedChange:
    """A difference of two runs' data as their manifests record them."""

    what: str
    before: Any
    after: Any


@dataclass(frozen=True)
class DataDiff:
    """The differences of two data sets.

    `first` and `second` name them. `compared` says how: `rows`, or `records` where the rows of a run are
    gone: then `recorded` has what the two descriptions differ in, and `notes` why; `columns` where such a run
    is compared with a file, of which that describes only the columns and the number of rows. `tables` has an
    entry for each file, or each split of a run that has a file of its own.
    """

    first: str
    second: str
    compared: Literal["rows", "records", "columns"]
    tables: tuple[TableDiff, ...] = ()
    recorded: tuple[RecordedChange, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """True if nothing differs; types of columns may, where all values are equal.

        False, too, where only columns and the number of rows can be compared: that proves nothing.
        """
        is_known = self.compared != "columns"
        return is_known and not self.recorded and all(table.equal for table in self.tables)

    def sentences(self) -> list[str]:
        """Return what differs, one thing a line."""
        texts = [text for table in self.tables for text in table.sentences()]
        pairs = ((one.what, *(_known(value) for value in (one.before, one.after))) for one in self.recorded)
        return [*texts, *(f"{what} was {before}, is {after}" for what, before, after in pairs)]

    def to_json(self) -> dict[str, Any]:
        """Return the differences for JSON."""
        tables = [asdict(one) | {"equal": one.equal} for one in self.tables]
        return {"equal": self.equal, **asdict(self), "tables": tables}
