"""`data diff`: the differences of two data sets, in words and tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

import trainwright
from trainwright.cli import options
from trainwright.cli.output import show, table

if TYPE_CHECKING:
    from trainwright.datasets.tables.diff.result import CellChange, DataDiff, RowDiff, RowPlace, TableDiff
    from trainwright.datasets.tables.diff.shift import ColumnShift

_DIFFERENT = 3  # the exit code of --exit-code
_WIDTH = 40  # characters of a cell
_ROUNDING = 1e-13  # of sums in another order
_CATEGORIES = 3  # new or vanished ones that are named


@click.command()
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--key",
    metavar="COLUMN",
    multiple=True,
    help="The column that identifies a row; repeat it for several.  [default: found by its name and values]",
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Name at most this many changed cells, and added and removed rows.",
)
@click.option("--exit-code", is_flag=True, help="Exit with code 3 if anything differs.")
@options.runs_dir
@options.trust
@options.as_json
def diff(first: str, second: str, exit_code: bool, as_json: bool, **how: Any) -> None:
    """Show how the data B differ from A: columns, rows, cells and distributions.

    A and B are files of rows (CSV, Parquet, JSON Lines, Excel, npz), folders or patterns of such files,
    versions of them (churn@v3), or runs. Rows are matched by a key, or else by content. Runs whose rows are
    gone are compared by what they recorded.
    """
    found = trainwright.data_diff(first, second, **how)
    show(found.to_json(), _lines(found), as_json)
    click.get_current_context().exit(_DIFFERENT if exit_code and not found.equal else 0)


def _lines(found: DataDiff) -> Iterator[str]:
    for note in found.notes:
        yield f"note: {note}"
    if found.compared != "rows" and found.recorded:
        yield "compared by what is recorded of the data:"
        rows = [(one.what, _short(one.before), _short(one.after)) for one in found.recorded]
        yield from (f"  {line}" for line in table(rows, ("", found.first, found.second)))
    for one in found.tables:
        yield from _of_table(one)
    if found.equal:
        yield "no differences" if found.compared == "rows" else "no differences in what the runs recorded"
    elif found.compared == "columns" and not found.recorded:
        yield "the columns and the number of rows are those of the run; more cannot be compared"


def _of_table(found: TableDiff) -> Iterator[str]:
    rows = found.rows
    split = f"{found.split}: " if found.split else ""
    how = f"by key {', '.join(rows.key)}" if rows.key else "by content"
    chosen = " (found: named like an identifier, no value twice; give another one with --key)"
    how += chosen if rows.key_found else ""
    yield f"{split}{rows.counts[0]:,} and {rows.counts[1]:,} rows, matched {how}"
    for name, why in rows.passed_over.items():
        yield f"not by {name}, as {why}: --key {name} matches the other rows by it"
    yield from _odd_keys(rows)
    if found.equal and not found.schema.types:
        return
    yield from ("", *found.sentences(), "")
    yield from _section(
        "cells", _cells(found.cells, rows.key), (*rows.key, "column", "row", "before", "after")
    )
    for what, places in (("removed", rows.removed_rows), ("added", rows.added_rows)):
        shown = list(places[0].cells) if places else []
        yield from _section(f"{what} rows", _places(places, rows.key), (*rows.key, "row", *shown))
    head = ("column", "missing", "mean", "std", "KS", "categories")
    yield from _section("shift", [row for one in found.shift if any((row := _shift(one))[1:])], head)


def _odd_keys(rows: RowDiff) -> Iterator[str]:
    if any(rows.repeated_keys):
        counts = " and ".join(f"{count:,}" for count in rows.repeated_keys)
        yield f"keys of several rows: {counts}; these rows are compared by content"
    if any(rows.keyless):
        counts = " and ".join(f"{count:,}" for count in rows.keyless)
        yield f"rows without a key: {counts}; they are compared by content"


def _section(name: str, rows: Sequence[Sequence[Any]], head: Sequence[str]) -> Iterator[str]:
    if rows:
        yield f"{name}:"
        yield from (f"  {line}" for line in table(rows, head))
        yield ""


def _cells(cells: Sequence[CellChange], key: Sequence[str]) -> list[list[Any]]:
    rows: list[list[Any]] = []
    for one in cells:
        place = (
            str(one.before_row) if one.before_row == one.after_row else f"{one.before_row} -> {one.after_row}"
        )
        keys = [_short((one.key or {}).get(name)) for name in key]
        rows.append([*keys, one.column, place, _short(one.before), _short(one.after)])
    return rows


def _places(places: Sequence[RowPlace], key: Sequence[str]) -> list[list[Any]]:
    return [
        [*(_short((one.key or {}).get(name)) for name in key), str(one.row), *map(_short, one.cells.values())]
        for one in places
    ]


def _short(value: Any) -> str:
    """Return a value in full, as cells may differ in the last digit; long texts are cut."""
    text = "missing" if value is None else str(value)
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def _shift(one: ColumnShift) -> tuple[str, ...]:
    """Return the row of a column: what of its distribution differs."""
    share = "" if one.missing[0] == one.missing[1] else f"{one.missing[0]:.2%} -> {one.missing[1]:.2%}"
    ks = "" if not one.ks else f"{one.ks:.3g}{' (sample)' if one.sampled else ''}"
    return one.column, share, _pair(one.mean), _pair(one.std), ks, "; ".join(_categories(one))


def _pair(values: tuple[float | None, float | None] | None) -> str:
    if values is None or values[0] == values[1]:
        return ""
    if None not in values and math.isclose(values[0] or 0.0, values[1] or 0.0, rel_tol=_ROUNDING):
        return ""
    texts = ["none" if value is None else f"{value:.6g}" for value in values]
    if texts[0] == texts[1]:  # they differ behind the digits that are shown
        texts = [str(value) for value in values]
    return " -> ".join(texts)


def _categories(one: ColumnShift) -> Iterator[str]:
    for what, names, count in (
        ("new", one.new, one.new_count),
        ("vanished", one.vanished, one.vanished_count),
    ):
        if count:
            more = f" and {count - _CATEGORIES} more" if count > _CATEGORIES else ""
            yield f"{what}: {', '.join(map(_short, names[:_CATEGORIES]))}{more}"
    if one.largest is not None:
        yield f"{_short(one.largest.category)} {one.largest.before:.2%} -> {one.largest.after:.2%}"
