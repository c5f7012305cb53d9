"""The journal: the run's own append-only record of metrics and events.

One segment per attempt, `journal/0001.jsonl`; each line is one JSON object with `kind` and `time` (seconds
since the epoch). The first line of a segment is its `start`, which says from which step the attempt
continues: what earlier segments say about later steps is superseded, except decisions, which are replayed.
An attempt may also repeat what was due at that very step, such as an evaluation that a signal had cut short
or the last one: there, too, the newest record counts.

    {"kind": "start", "attempt": 2, "from_step": 300}
    {"kind": "losses", "first": 301, "values": [0.41, ...]}                one value per step, exactly
    {"kind": "metrics", "step": 310, "values": {"train_loss": 0.4, ...}}
    {"kind": "evaluation", "step": 320, "values": {"val_loss": 0.5, ...}}
    {"kind": "histograms", "step": 320, "values": {NAME: HISTOGRAM, ...}}   edges, counts, sum, sum_squares
    {"kind": "event", "step": 320, "name": "early_stop", "detail": {...}}
    {"kind": "decision", "step": 390, "name": "stop", "detail": {...}}      see `records/decision.py`
    {"kind": "end", "step": 400, "status": "completed"}                     an orderly end of the attempt

Values that JSON has no number for are written as the strings "NaN", "Infinity" and "-Infinity".

All readers share one rule: a segment counts up to its first line that is torn or damaged (decisions, on which
the result depends, also behind it). Every record that
they yield has the keys and types shown above, so that nobody has to check them again.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

from pydantic_core import from_json

from trainwright.safe_files import open_regular

Line = dict[str, Any]
Subject = tuple[str, int, str]

LONGEST_LINE = 64 << 20  # bytes; what follows the start of a longer line is not a record that we wrote
_LAST_STEP = 2**53  # beyond it, floats no longer tell steps apart
_LAST_TIME = 2.5e11  # the year 9892: the calendars of our readers end soon after
_NOT_FINITE = ("NaN", "Infinity", "-Infinity")
_FLOAT = frozenset([float])
_REPEATED = frozenset(["metrics", "evaluation", "histograms", "event"])


def finite(value: float) -> float | str:
    """Return a float as JSON can hold it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def number(value: float | str) -> float:
    """Return the float that `finite` converted."""
    return float(value)


def segments(folder: Path) -> list[Path]:
    """Return the journal's segments, oldest first."""
    paths = [path for path in folder.glob("[0-9]*.jsonl") if path.stem.isdecimal()]
    return sorted(paths, key=lambda path: int(path.stem))


class SegmentReader:
    """Iterates over the records of one segment, up to a line that is torn or damaged.

    `offset` and `lines` count the bytes and lines that were read as records; iteration starts behind them.
    `damage` is the number of the line that ended the iteration before the end of the file, or 0. A last line
    without its line break is not damage: it is still being written, or its writer was killed.
    """

    def __init__(self, path: Path, offset: int = 0, lines: int = 0) -> None:
        self.path = path
        self.offset = offset
        self.lines = lines
        self.damage = 0

    def __iter__(self) -> Iterator[Line]:
        with open_regular(self.path, depth=2) as file:
            file.seek(self.offset)
            for line in iter(partial(file.readline, LONGEST_LINE), b""):
                if line[-1:] != b"\n" and len(line) < LONGEST_LINE:
                    return
                try:
                    record = _parse(line, is_first=self.offset == 0)
                except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
                    self.damage = self.lines + 1
                    return
                self.offset += len(line)
                self.lines += 1
                yield record


def decision_lines(path: Path) -> Iterator[Line]:
    """Yield the decisions of a segment, without parsing its other lines; one that is damaged is left out."""
    start = b'{"kind":"decision",'
    with open_regular(path, depth=2) as file:
        for line in iter(partial(file.readline, LONGEST_LINE), b""):
            if line.startswith(start) and line[-1:] == b"\n":
                with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                    yield _parse(line, is_first=False)


def read(folder: Path, problems: list[str] | None = None) -> Iterator[Line]:
    """Yield the records that count, in order; what a later segment supersedes is left out.

    Args:
        folder: The journal's folder.
        problems: Gets a sentence for each segment that a damaged line cut short.
    """
    paths = segments(folder)
    for path, limit in zip(paths, limits(paths), strict=True):
        segment = SegmentReader(path)
        for record in segment:
            if (kept := up_to(record, limit)) is not None:
                yield kept
        if problems is not None and segment.damage:
            problems.append(damage_message(segment))


def damage_message(segment: SegmentReader) -> str:
    """Describe where a segment is damaged; its `damage` is not 0."""
    return (
        f"{segment.path.parent.name}/{segment.path.name}: line {segment.damage} is damaged; "
        "this line and what follows it in the file are left out"
    )


class Limit(NamedTuple):
    """The part of a segment that counts: up to `step`, without the `subjects` that a later one repeats."""

    step: float = math.inf
    subjects: frozenset[Subject] = frozenset()


def limits(paths: Sequence[Path]) -> list[Limit]:
    """Return, for each segment, what later segments leave of it."""
    result, limit = [], Limit()
    for path in reversed(paths):
        result.append(limit)
        records = (record for record in SegmentReader(path) if record["kind"] != "decision")
        if (start := next(records, None)) is not None:
            at_start = takewhile(partial(_is_up_to, start["from_step"]), records)
            limit = Limit(min(limit.step, start["from_step"]), limit.subjects.union(map(subject, at_start)))
    return result[::-1]


def _is_up_to(step: int, record: Line) -> bool:
    return last_step(record) <= step


def subject(record: Line) -> Subject:
    """Return what a record speaks of: its kind, its step, and the name of the event or the first metric."""
    name = record["name"] if "name" in record else next(iter(record.get("values", ())), "")
    return str(record["kind"]), last_step(record), str(name)


def up_to(record: Line, limit: Limit) -> Line | None:
    """Return the part of a record that counts; None if nothing is left of it."""
    kind = record["kind"]
    if kind in ("start", "decision"):
        return record
    if last_step(record) <= limit.step:
        return None if kind in _REPEATED and subject(record) in limit.subjects else record
    if kind == "losses" and record["first"] <= limit.step:
        return {**record, "values": record["values"][: int(limit.step) - record["first"] + 1]}
    return None


def last_step(record: Line) -> int:
    """Return the last step that a record speaks of; 0 for the start of a segment."""
    if record["kind"] == "losses":
        return int(record["first"]) + len(record["values"]) - 1
    return int(record.get("step", 0))


def evaluations(records: Iterable[Line]) -> list[tuple[int, dict[str, Any]]]:
    """Return the step and the metrics of each evaluation."""
    return [(int(record["step"]), record["values"]) for record in records if record["kind"] == "evaluation"]


def each_loss(records: Iterable[Line]) -> Iterator[tuple[int, float]]:
    """Yield each step with its loss."""
    for record in records:
        if record["kind"] == "losses":
            yield from enumerate(map(number, record["values"]), start=record["first"])


def losses(records: Iterable[Line]) -> dict[int, float]:
    """Return the loss of each step; of a step that is there twice, the later one."""
    return dict(each_loss(records))


# -- what a valid line is


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _parse(line: bytes, *, is_first: bool) -> Line:
    """Return the record of a complete line.

    Raises:
        ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError: The line is damaged.
    """
    try:
        record = from_json(line, allow_inf_nan=False)
    except ValueError:
        # Slower, but it reads surrogates without a partner, which file names may hold.
        record = json.loads(line.decode(), parse_constant=_refuse)
    _CHECKS[record["kind"]](record)
    if not 0 <= record["time"] <= _LAST_TIME:
        raise ValueError("the time is not one of this era")
    if (record["kind"] == "start") != is_first:
        raise ValueError("a segment has its start in the first line, and only there")
    return cast(Line, record)


def _check_step(step: object) -> None:
    if type(step) is not int or not 0 <= step <= _LAST_STEP:
        raise ValueError("not a step")


def _check_number(value: object) -> None:
    if isinstance(value, str):
        if value not in _NOT_FINITE:
            raise ValueError("not a number")
    else:
        float(value)  # type: ignore[arg-type] # raises TypeError or OverflowError


def _check_numbers(values: Collection[object]) -> None:
    if not _FLOAT.issuperset(map(type, values)):  # rare; and this is faster than checking each value
        for value in values:
            _check_number(value)


def _check_start(record: Line) -> None:
    _check_step(record["attempt"])
    _check_step(record["from_step"])


def _check_losses(record: Line) -> None:
    _check_step(record["first"])
    if type(record["values"]) is not list:
        raise TypeError("the values are not a list")
    _check_numbers(record["values"])


def _check_metrics(record: Line) -> None:
    _check_step(record["step"])
    _check_numbers(record["values"].values())


def _check_histograms(record: Line) -> None:
    _check_step(record["step"])
    for histogram in record["values"].values():
        if histogram.keys() != {"edges", "counts", "sum", "sum_squares"}:
            raise ValueError("not a histogram")
        edges, counts = histogram["edges"], histogram["counts"]
        if not len(edges) == len(counts) + 1 >= 2:
            raise ValueError("a histogram has one edge more than it has bins")
        for value in (*edges, *counts, histogram["sum"], histogram["sum_squares"]):
            if isinstance(value, str):
                raise TypeError("not a number")
            float(value)


def _check_event(record: Line) -> None:
    _check_step(record["step"])
    if type(record["name"]) is not str or type(record["detail"]) is not dict:
        raise TypeError("not an event or a decision")


def _check_end(record: Line) -> None:
    _check_step(record["step"])
    if type(record["status"]) is not str:
        raise TypeError("not a status")


_CHECKS: dict[str, Callable[[Line], None]] = {
    "start": _check_start,
    "losses": _check_losses,
    "metrics": _check_metrics,
    "evaluation": _check_metrics,
    "histograms": _check_histograms,
    "event": _check_event,
    "decision": _check_event,
    "end": _check_end,
}
