"""Reads the journal from a position on, while it is being written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from trainyard.records.journal import Record, last_step, number, segments
from trainyard.regular import open_regular
from trainyard.trackers.base import Histogram, Point
from trainyard.trackers.feed.state import Position, State

Value = TypeVar("Value", Point, Histogram)


def tail(folder: Path, start: Position) -> Iterator[tuple[Record, Position]]:
    """The records behind `start`, each with the position behind it; ends where the journal ends for now.

    What a later segment supersedes is left out, and so is a line that is not complete (yet).
    """
    paths = [path for path in segments(folder) if path.name >= start.segment]
    for index, path in enumerate(paths):
        limit = min((_first_step(later) for later in paths[index + 1 :]), default=float("inf"))
        for record, offset in _records(path, start.offset if path.name == start.segment else 0):
            if record["kind"] == "start" or last_step(record) <= limit:
                yield record, Position(path.name, offset)


def _records(path: Path, offset: int) -> Iterator[tuple[Record, int]]:
    with open_regular(path, depth=2) as lines:
        lines.seek(offset)
        for line in lines:
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                return
            if not isinstance(record, dict):
                return
            offset += len(line)
            yield record, offset


def _first_step(path: Path) -> float:
    """The step from which a segment goes on."""
    for record, _ in _records(path, 0):
        return float(record.get("from_step", "inf"))
    return float("inf")


def points(record: Record) -> Iterator[Point]:
    """The values of metrics in a record."""
    if record["kind"] in ("metrics", "evaluation"):
        for metric, value in record["values"].items():
            yield Point(metric, record["step"], number(value), record["time"])


def histograms(record: Record) -> Iterator[Histogram]:
    """The histograms in a record."""
    if record["kind"] == "histograms":
        for name, value in record["values"].items():
            yield Histogram(name, record["step"], record["time"], **value)


def fresh(values: Iterable[Value], marks: dict[str, int]) -> list[Value]:
    """Those values that lie behind the marks, which are moved on."""
    new = []
    for value in values:
        name, step = value[0], value[1]
        if step > marks.get(name, -1):
            marks[name] = step
            new.append(value)
    return new


def pending(folder: Path, state: State) -> int:
    """How many values the journal holds that were not sent."""
    marks = dict(state.marks)
    return sum(len(fresh(points(record), marks)) for record, _ in tail(folder, state.position))
