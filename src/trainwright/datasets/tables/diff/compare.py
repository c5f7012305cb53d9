"""Compare two tables chunk by chunk: hash their rows, match them, and read again those that differ."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainwright.datasets.tables.diff.canonical import MISSING, Hashes, canonical
from trainwright.datasets.tables.diff.changed_cells import ChangedCells, changed_cells
from trainwright.datasets.tables.diff.matching import Keyed, match, moved
from trainwright.datasets.tables.diff.result import RowDiff, SchemaDiff, TableDiff, TypeChange
from trainwright.datasets.tables.diff.shift import ColumnProfile, shift_of
from trainwright.datasets.tables.diff.side import Side
from trainwright.datasets.tables.kinds import IDENTIFIER
from trainwright.datasets.tables.table import nearest
from trainwright.errors import InputError
from trainwright.numerals import counted
from trainwright.redact import is_secret
from trainwright.types import Array

_KEYS = 3  # columns that are tried as a key
_ROW_NUMBERS = re.compile(r"(?i)^(index|row ?id|unnamed: 0)$")


@dataclass(frozen=True)
class _Scan:
    """One pass over a table.

    `rows` (2, rows) are the hashes of the rows in the common columns; `keys` those of the columns that may be
    a key, with a mask (rows,) of missing cells; `orders` are the hashes of the columns that the other table
    does not have, with their order.
    """

    rows: Array
    profiles: Mapping[str, ColumnProfile]
    orders: Mapping[str, Sequence[int]]
    keys: Mapping[str, tuple[Array, Array]]


def _type(profile: ColumnProfile) -> str:
    if profile.rows == profile.missing:
        return "empty"
    if profile.kind != "number":
        return str(profile.kind)
    # Whole numbers are read as floats where one is missing.
    is_whole = profile.is_integer or (profile.missing > 0 and profile.whole)
    return "integer" if is_whole else "float"


def table_diff(
    first: Side, second: Side, key: Sequence[str] = (), limit: int = 10, split: str = ""
) -> TableDiff:
    """Compare two tables.

    Args:
        first: The table of before.
        second: The table of after.
        key: The columns that identify a row; default: a column that is named like an identifier and differs
            in all rows of both tables, or else rows are compared by content.
        limit: The number of cells, and of added and removed rows, that are named.
        split: The split that a run reads from the tables.

    Raises:
        DataError: A table cannot be read.
        InputError: A table has no such column.
    """
    common = [name for name in first.columns if name in second.columns]
    for side in (first, second):
        for name in key:
            if name not in side.columns:
                raise InputError(
                    f"{side.name}: key: there is no column {name!r}; {nearest(name, side.columns)}"
                )
    hashes = Hashes(len(common))
    candidates = list(key) or _candidates(common)
    scans = _scan(first, second, common, candidates, hashes), _scan(second, first, common, candidates, hashes)
    found, passed_over = ((), {}) if key else _found(scans, candidates)
    chosen = (*key, *found)
    matching = match(*(_keyed(scan, chosen, common, hashes) for scan in scans))
    changes = changed_cells(first, second, matching, (scans[0].rows, scans[1].rows), common, chosen, limit)
    rows = RowDiff(
        (scans[0].rows.shape[1], scans[1].rows.shape[1]),
        chosen,
        len(matching.removed) - changes.of_suspects,
        len(matching.added) - changes.of_suspects,
        changes.rows,
        moved(changes.order),
        bool(found),
        changes.removed,
        changes.added,
        matching.repeated,
        matching.keyless,
        passed_over,
    )
    schema = _schema(first, second, scans, changes)
    compared = [] if schema.equal and rows.equal else [name for name in common if not is_secret(name, "x")]
    # Columns with the same cells in another order have the same distribution, to the last bit.
    others = common if rows.removed or rows.added else changes.counts
    shift = tuple(
        shift_of(name, scans[0].profiles[name], (scans[1] if name in others else scans[0]).profiles[name])
        for name in compared
    )
    return TableDiff(split, schema, rows, changes.counts, tuple(changes.cells), shift)


def _candidates(common: Sequence[str]) -> list[str]:
    """Return the columns that may be a key by their names; numbers of rows are none."""
    named = [name for name in common if IDENTIFIER.search(name) and not _ROW_NUMBERS.match(name)]
    return named[:_KEYS]


def _scan(side: Side, other: Side, common: Sequence[str], candidates: Iterable[str], hashes: Hashes) -> _Scan:
    # Texts are measured as training reads them where both tables then hold values of one kind.
    alike = {name for name in common if side.measured(name) == other.measured(name)}
    profiles = {
        name: ColumnProfile(side.readings.get(name) if name in alike else None) for name in side.columns
    }
    orders = {name: np.zeros(2, dtype=np.uint64) for name in side.columns if name not in common}
    index = {name: i for i, name in enumerate(common)}
    keys: dict[str, list[tuple[Array, Array]]] = {name: [] for name in candidates}
    rows: list[Array] = []
    start = 0
    for table in side.tables(side.columns):
        total = np.zeros((2, len(table)), dtype=np.uint64)
        for name, values in table.columns.items():
            cells = canonical(values, other.kinds.get(name))
            each = hashes.cells(cells)
            profiles[name].add(values, cells, start)
            if name in orders:
                orders[name] += hashes.in_order(each, start)
            else:
                total += hashes.in_column(each, index[name])
            if name in keys:
                keys[name].append((each, cells.tags == MISSING))
        rows.append(total)
        start += len(table)
    empty = (np.empty((2, 0), dtype=np.uint64), np.empty(0, dtype=bool))
    return _Scan(
        np.concatenate([empty[0], *rows], axis=1),
        profiles,
        {name: total.tolist() for name, total in orders.items()},
        {
            name: (
                np.concatenate([empty[0], *(each for each, _ in parts)], axis=1),
                np.concatenate([empty[1], *(absent for _, absent in parts)]),
            )
            for name, parts in keys.items()
        },
    )


def _found(scans: Sequence[_Scan], candidates: Iterable[str]) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Return the first column that identifies the rows of both tables; or why each does not."""
    passed_over = {}
    for name in candidates:
        if not (why := _unfit(scans, name)):
            return (name,), {}
        passed_over[name] = why
    return (), passed_over


def _unfit(scans: Iterable[_Scan], name: str) -> str:
    """Return why a column does not identify the rows of both tables; empty if it does."""
    columns = [scan.keys[name] for scan in scans]
    if lacking := sum(int(absent.sum()) for _, absent in columns):
        return f"{counted(lacking, 'row')} {'has' if lacking == 1 else 'have'} no value"
    if repeats := sum(each.shape[1] - len(np.unique(each[0])) for each, _ in columns):
        return f"{counted(repeats, 'row')} {'has' if repeats == 1 else 'have'} the value of an earlier one"
    return ""


def _keyed(scan: _Scan, key: Sequence[str], common: Sequence[str], hashes: Hashes) -> Keyed:
    if not key:
        return Keyed(scan.rows)
    if len(key) == 1:  # without a copy
        return Keyed(scan.rows, *scan.keys[key[0]])
    keys, keyless = np.zeros_like(scan.rows), np.zeros(scan.rows.shape[1], dtype=bool)
    for name in key:
        each, absent = scan.keys[name]
        keys += hashes.in_column(each, common.index(name))
        keyless |= absent
    return Keyed(scan.rows, keys, keyless)


def _schema(first: Side, second: Side, scans: tuple[_Scan, _Scan], changes: ChangedCells) -> SchemaDiff:
    before, after = scans
    renamed: dict[str, str] = {}
    for old, order in before.orders.items():
        same = (new for new, other in after.orders.items() if other == order and new not in renamed.values())
        if before.rows.shape[1] and (new := next(same, None)) is not None:
            renamed[old] = new
    kept = [renamed.get(name, name) for name in first.columns if name in second.columns or name in renamed]
    return SchemaDiff(
        tuple(name for name in after.orders if name not in renamed.values()),
        tuple(name for name in before.orders if name not in renamed),
        renamed,
        tuple(_type_changes(first, second, scans, changes)),
        kept != [name for name in second.columns if name in kept],
    )


def _type_changes(
    first: Side, second: Side, scans: tuple[_Scan, _Scan], changes: ChangedCells
) -> Iterator[TypeChange]:
    declared: list[Mapping[str, str] | None] = [getattr(one.chunks, "types", None) for one in (first, second)]
    for name in first.columns:
        if name not in second.columns:
            continue
        profiles = (scans[0].profiles[name], scans[1].profiles[name])
        if declared[0] is not None and declared[1] is not None:
            old, new = declared[0][name], declared[1][name]
        else:  # of a file with types and one without, the values are what can be compared
            old, new = map(_type, profiles)
        if old != new:
            yield TypeChange(name, old, new, not changes.counts.get(name))
