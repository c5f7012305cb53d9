"""Oddities of rows as they were written: categories in several spellings, and a row of sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trainwright.datasets.tables.table import Table, kind_of, missing
from trainwright.datasets.tables.typed import ColumnKind
from trainwright.numerals import listed
from trainwright.types import Array

_SHOWN = 3  # categories that a message names
_SUMS = {"total", "totals", "grand total", "subtotal", "sum", "sums", "overall"}
_SUMS |= {"summe", "gesamt", "gesamtsumme", "insgesamt"}
_EXACT = 1e-6  # the largest relative difference of a last cell from the sum of the others
_LEAST = 3  # rows, of which a last one may be the sum


def spellings(values: Array) -> list[list[str]]:
    """Return the texts of a column that differ only in case or spaces, together, in their order."""
    groups: dict[str, list[str]] = {}
    for text in dict.fromkeys(values.tolist()):
        if text is not None:
            groups.setdefault(" ".join(text.split()).casefold(), []).append(text)
    return [texts for texts in groups.values() if len(texts) > 1]


def odd_spellings(table: Table, kinds: Mapping[str, ColumnKind]) -> list[str]:
    """Return a warning for each column with categories that differ only in case or spaces."""
    return [
        f"{table.source}: column {name!r} holds categories that differ only in case or spaces, and count as "
        f"different ones: {_shown(groups)}; if they mean the same, write them alike, in pandas: "
        f"rows[{name!r}].str.strip().str.lower()"
        for name, kind in kinds.items()
        if kind.kind == "category" and kind_of(table.columns[name]) == "text"
        if (groups := spellings(table.columns[name]))
    ]


def _shown(groups: Sequence[Sequence[str]]) -> str:
    shown = "; ".join(listed(map(repr, texts), _SHOWN) for texts in groups[:_SHOWN])
    return f"{shown}; and {len(groups) - _SHOWN} more" if len(groups) > _SHOWN else shown


def row_of_sums(table: Table) -> list[str]:
    """Return a warning if the last row is the sum of the others, and says so."""
    count = len(table)
    if count <= _LEAST or table.numbers is not None:
        return []
    named = next((name for name, values in table.columns.items() if _is_sum(values)), None)
    if named is None or not (summed := _summed(table)):
        return []
    return [
        f"{table.source}: the last row is called {table.columns[named][-1]!r} (column {named!r}) and holds "
        f"the sum of the rows above ({listed(map(repr, summed), _SHOWN)}), but is taken for a sample like "
        "the others: delete it"
    ]


def _is_sum(values: Array) -> bool:
    """Return whether the last cell, and no other, is called a sum."""
    last = values[-1]
    if kind_of(values) != "text" or not isinstance(last, str):
        return False
    return last.strip().rstrip(":").casefold() in _SUMS and bool((values[:-1] != last).all())


def _summed(table: Table) -> Sequence[str]:
    """Return the columns whose last cell is the sum of the others."""
    found = []
    for name, values in table.columns.items():
        if kind_of(values) != "number" or missing(values[-1:]).any():
            continue
        others = values[:-1].astype(np.float64)
        total = float(others[~missing(others)].sum())
        if total != 0 and abs(float(values[-1]) - total) <= _EXACT * abs(total):
            found.append(name)
    return found
