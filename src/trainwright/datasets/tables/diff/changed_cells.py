"""The cells that differ in rows of two tables that belong together: each is read again and compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainwright.datasets.tables.diff.canonical import canonical
from trainwright.datasets.tables.diff.matching import Matching
from trainwright.datasets.tables.diff.result import CellChange, RowPlace
from trainwright.datasets.tables.diff.side import Side
from trainwright.datasets.tables.table import Table, kind_of, missing
from trainwright.redact import HIDDEN, is_secret, redacted_value
from trainwright.types import Array, Ids

_CELLS = 5  # of an added or removed row that are shown
_BATCH = 1 << 18  # rows of each table that are compared together
Columns = Mapping[str, Array]


@dataclass
class ChangedCells:
    """The rows with another cell, counted by column, and the first of their cells.

    `order` (pairs,) are the positions in the second table of all rows that both have, in the order of the
    first one. `of_suspects` counts the changed rows that were matched by their place.
    """

    order: Ids
    rows: int = 0
    of_suspects: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    cells: list[CellChange] = field(default_factory=list)
    removed: tuple[RowPlace, ...] = ()
    added: tuple[RowPlace, ...] = ()


class _Reader:
    """Rows of a table at given positions: those behind the last ones are read on, others from the start."""

    def __init__(self, side: Side, columns: Sequence[str]) -> None:
        self._side, self._columns = side, columns
        self._chunks: Iterator[Table] = iter(())
        self._start, self._chunk = 0, Table({})

    def at(self, positions: Ids) -> Columns:
        """Return the columns of the rows at positions, (rows,), which ascend."""
        parts: dict[str, list[Array]] = {name: [] for name in self._columns}
        if not len(self._chunk) or (len(positions) and positions[0] < self._start):
            self._chunks = self._side.tables(self._columns)
            self._start, self._chunk = 0, next(self._chunks)
        done = 0
        while done < len(positions):
            stop = int(np.searchsorted(positions, self._start + len(self._chunk)))
            for name in self._columns if stop > done else ():
                parts[name].append(self._chunk.columns[name][positions[done:stop] - self._start])
            if stop < len(positions):
                self._start, self._chunk = self._start + len(self._chunk), next(self._chunks)
            done = stop
        return {name: np.concatenate(some) for name, some in parts.items() if some}


def changed_cells(
    first: Side,
    second: Side,
    matching: Matching,
    rows: tuple[Array, Array],
    common: Sequence[str],
    key: Sequence[str],
    limit: int,
) -> ChangedCells:
    """Read the rows that may differ again, and compare their cells.

    Args:
        first: The first table.
        second: The second table.
        matching: Which of their rows belong together.
        rows: The hashes of the rows of both, (2, rows) each.
        common: The columns to compare.
        key: The columns of the key; empty: rows are matched by content.
        limit: The number of cells, and of removed and added rows, that are named.
    """
    one, two = matching.first, matching.second
    if key:
        other = np.zeros(len(one), dtype=bool)
        for lane in range(2):  # one by one, in half of the memory
            other |= rows[0][lane, one] != rows[1][lane, two]
        pairs = one[other], two[other]
    else:
        pairs = matching.suspects
    found = ChangedCells(two)
    readers = _Reader(first, common), _Reader(second, common)
    accepted: list[Ids] = []
    for start in range(0, len(pairs[0]), _BATCH):
        ours, theirs = (some[start : start + _BATCH] for some in pairs)
        order = np.argsort(theirs)
        before, after = readers[0].at(ours), readers[1].at(theirs[order])
        back = np.argsort(order)
        after = {name: values[back] for name, values in after.items()}
        differs = _differences(before, after, (first, second))
        changed = differs.any(axis=0)
        if not key:
            changed = changed & (2 * differs.sum(axis=0) <= len(differs))
            accepted.append(start + np.flatnonzero(changed))
        found.rows += int(changed.sum())
        for name, column in zip(common, differs, strict=True):
            if count := int((column & changed).sum()):
                found.counts[name] = found.counts.get(name, 0) + count
        places = np.stack([ours, theirs])
        found.cells += _cells(before, after, differs & changed, places, key, limit - len(found.cells))
    taken = np.concatenate([np.empty(0, dtype=np.int64), *accepted])
    if not key:
        _take_suspects(found, matching, taken)
    removed = matching.removed[~np.isin(matching.removed, pairs[0][taken])][:limit]
    added = matching.added[~np.isin(matching.added, pairs[1][taken])][:limit]
    found.removed, found.added = _places(first, removed, key), _places(second, added, key)
    return found


def _take_suspects(found: ChangedCells, matching: Matching, accepted: Ids) -> None:
    """Count changed rows that were matched by their place among those that both tables have."""
    found.of_suspects = len(accepted)
    one = np.concatenate([matching.first, matching.suspects[0][accepted]])
    two = np.concatenate([matching.second, matching.suspects[1][accepted]])
    found.order = two[np.argsort(one, kind="stable")]


def _differences(before: Columns, after: Columns, sides: tuple[Side, Side]) -> Array:
    """Return where cells of rows differ, (columns, rows) bool."""
    return np.stack(
        [
            ~canonical(before[name], sides[1].kinds.get(name)).equal(
                canonical(after[name], sides[0].kinds.get(name))
            )
            for name in before
        ]
    )


def _cells(
    before: Columns, after: Columns, differs: Array, places: Array, key: Sequence[str], limit: int
) -> Iterator[CellChange]:
    names = list(before)
    for row in np.flatnonzero(differs.any(axis=0))[: max(0, limit)]:
        for column in np.flatnonzero(differs[:, row]):
            if limit <= 0:
                return
            limit -= 1
            name = names[column]
            yield CellChange(
                name,
                int(places[0, row]) + 1,
                int(places[1, row]) + 1,
                {one: shown(one, before[one], row) for one in key} if key else None,
                shown(name, before[name], row),
                shown(name, after[name], row),
            )


def _places(side: Side, positions: Ids, key: Sequence[str]) -> tuple[RowPlace, ...]:
    if not len(positions):
        return ()
    others = [name for name in side.columns if name not in key][:_CELLS]
    values = _Reader(side, [*key, *others]).at(positions)
    return tuple(
        RowPlace(
            int(position) + 1,
            {name: shown(name, values[name], i) for name in key} if key else None,
            {name: shown(name, values[name], i) for name in others},
        )
        for i, position in enumerate(positions)
    )


def shown(column: str, values: Array, row: int) -> Any:
    """Return a cell as it may be shown: None where it is missing, a time as text, no secrets."""
    if missing(values[row : row + 1])[0]:
        return None
    if is_secret(column, "x"):
        return HIDDEN
    if kind_of(values) == "time":
        return str(values[row]).removesuffix(".000000").removesuffix("T00:00:00")
    value = values[row]
    return redacted_value(column, value) if isinstance(value, str) else value.item()
