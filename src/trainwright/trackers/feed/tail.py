"""Read the journal from a position on, while it is being written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from trainwright.records.journal import Line, SegmentReader, limits, number, segments, up_to
from trainwright.safe_files import open_regular
from trainwright.trackers.base import Histogram, Point
from trainwright.trackers.feed.state import Position, State

Value = TypeVar("Value", Point, Histogram)


def tail(folder: Path, start: Position) -> Iterator[tuple[Line, Position]]:
    """Yield the records behind `start`, each with the position behind it, up to the journal's present end.

    What a later segment supersedes is left out, and so is a line that is not complete (yet). A `start` that
    is not at the beginning of a line means the beginning of its segment.
    """
    paths = segments(folder)
    first = next((index for index, path in enumerate(paths) if path.name == start.segment), 0)
    paths = paths[first:]
    for path, limit in zip(paths, limits(paths), strict=True):
        segment = SegmentReader(path, _line_start(path, start.offset) if path.name == start.segment else 0)
        for record in segment:
            if (kept := up_to(record, limit)) is not None:
                yield kept, Position(path.name, segment.offset)


def _line_start(path: Path, offset: int) -> int:
    if offset:
        with open_regular(path, depth=2) as file:
            file.seek(offset - 1)
            offset = offset if file.read(1) == b"\n" else 0
    return offset


def points(record: Line) -> Iterator[Point]:
    """Yield the values of metrics in a record."""
    if record["kind"] in ("metrics", "evaluation"):
        for metric, value in record["values"].items():
            yield Point(metric, record["step"], number(value), record["time"])


def histograms(record: Line) -> Iterator[Histogram]:
    """Yield the histograms in a record."""
    if record["kind"] == "histograms":
        for name, value in record["values"].items():
            yield Histogram(name, record["step"], record["time"], **value)


def fresh(values: Iterable[Value], marks: dict[str, int]) -> list[Value]:
    """Return the values that lie behind the marks, and move the marks on."""
    new = []
    for value in values:
        name, step = value[0], value[1]
        if step > marks.get(name, -1):
            marks[name] = step
            new.append(value)
    return new


def pending(folder: Path, state: State) -> int:
    """Return how many values the journal holds that were not sent."""
    marks = dict(state.marks)
    return sum(len(fresh(points(record), marks)) for record, _ in tail(folder, state.position))
