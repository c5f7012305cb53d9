"""The journal for people: its curves, events and attempts, read in one pass and kept small."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainwright.records import journal
from trainwright.records.decision import ENDS, NEUTRAL
from trainwright.records.journal import Limit, Line, SegmentReader
from trainwright.reports import step_times
from trainwright.reports.curves import Curve, CurveBuilder, joined, up_to
from trainwright.reports.segment_cache import Attempt, Event, Part, checksum, load, save
from trainwright.reports.step_times import StepTimesTotal

MOST_EVENTS = 1000  # of one name; further ones are only counted
CACHED_FROM = 4 << 20  # bytes of a segment: shorter ones are parsed in no time
_UNMARKED = ("best",)  # comes again and again; the last one has a marker of its own
# Decisions that are shown as events; they count in superseded parts, too.
_DECISIONS = (*ENDS, *NEUTRAL, "resume", "checkpoint_interval")
_MOST_ROWS = 4096  # that wait to be added to their curves
_BATCH_BYTES = 1 << 16  # that wait to be summed up: many lines at once cost half as much as one by one


@dataclass
class History:
    """The contents of a journal, without what was superseded; losses of single steps are the curve `loss`."""

    curves: dict[str, Curve] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    more_events: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    step_times: StepTimesTotal | None = None  # of the newest attempt in several processes


def read_history(folder: Path) -> History:
    """Read a journal; what cannot be read is left out and named in `problems`."""
    history = History()
    curves: dict[str, list[Curve]] = {}
    try:
        paths = journal.segments(folder)
        for path, limit in zip(paths, journal.limits(paths), strict=True):
            parts = _parts(path, history.problems)
            history.attempts += [part.attempt for part in parts[-1:]]
            for part in parts:
                _take(part, limit, history, curves)
            history.step_times = _times(parts) or history.step_times
    except OSError as error:
        history.problems.append(f"journal: cannot be read ({error.strerror})")
    history.curves = {name: joined(parts) for name, parts in curves.items()}
    return history


def _take(part: Part, limit: Limit, history: History, curves: dict[str, list[Curve]]) -> None:
    """Add what counts of a part to the history."""
    for event in part.events:
        is_repeated = ("event", event.step, event.name) in limit.subjects
        if event.name in _DECISIONS or (event.step <= limit.step and not is_repeated):
            history.events.append(event)
    history.more_events += part.more_events
    for name, curve in part.curves.items():
        kept = up_to(curve, limit.step)
        if len(kept.envelope.x):
            curves.setdefault(name, []).append(kept)


def _times(parts: Sequence[Part]) -> StepTimesTotal | None:
    """Return the step times in the parts of one segment."""
    times = None
    for part in parts:
        times = step_times.joined(times, part.step_times)
    return times


def _parts(path: Path, problems: list[str]) -> list[Part]:
    """Return what a segment holds: one part, or the cached one and what was written since."""
    cached = load(path)
    if cached is not None and path.stat().st_size - cached.size < CACHED_FROM:
        rest = _scan(path, problems, cached)
        return [cached] if rest is None else [cached, rest]
    part = _scan(path, problems)
    if part is not None and part.size >= CACHED_FROM:
        save(path, part, checksum(path, part.size))
    return [] if part is None else [part]


class SegmentSummary:
    """Sum up a segment while it is written, so that nobody has to parse it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._scan = _Scan()
        self._waiting: list[tuple[Line, bytes]] = []  # records that are not summed up yet, and their lines
        self._size = self._summed = self._saved = 0  # bytes
        self._lines = self._crc = 0  # of what is summed up

    def add(self, record: Line, line: bytes) -> None:
        """Take note of a line; `record` is what it holds."""
        self._waiting.append((record, line))
        self._size += len(line)

    def flushed(self) -> None:
        """Write the cache, if the file has grown by much; all lines are in it."""
        is_due = self._size - self._saved >= CACHED_FROM
        if is_due or self._size - self._summed >= _BATCH_BYTES:
            self._sum_up()
        if is_due:
            self._saved = self._size
            part = self._scan.part(self._size, self._lines)
            if part is not None:
                save(self._path, part, self._crc)

    def _sum_up(self) -> None:
        for record, _ in self._waiting:
            self._scan.add(record)
        self._lines += len(self._waiting)
        self._crc = zlib.crc32(b"".join(line for _, line in self._waiting), self._crc)
        self._waiting, self._summed = [], self._size


def _scan(path: Path, problems: list[str], before: Part | None = None) -> Part | None:
    """Read a segment, or what follows a part of it; None if there is no valid record."""
    segment = SegmentReader(path, before.size, before.lines) if before else SegmentReader(path)
    scan = _Scan()
    for record in segment:
        scan.add(record)
    if segment.damage:
        problems.append(journal.damage_message(segment))
    return scan.part(segment.offset, segment.lines, before.attempt if before else None)


class _Scan:
    """Sum up records one by one."""

    def __init__(self) -> None:
        self._losses = CurveBuilder()
        self._curves: defaultdict[str, CurveBuilder] = defaultdict(CurveBuilder)
        self._rows: defaultdict[tuple[str, ...], list[tuple[Any, ...]]] = defaultdict(list)
        self._row_count = 0
        self._events: list[Event] = []
        self._counts = Counter[str]()
        self._times: StepTimesTotal | None = None
        self._first: Line | None = None
        self._last: Line = {}
        self._last_step = 0

    def add(self, record: Line) -> None:
        """Add a record."""
        kind = record["kind"]
        if kind == "losses":
            first, values = record["first"], record["values"]
            self._losses.extend(range(first, first + len(values)), values)
        elif kind in ("metrics", "evaluation"):
            values = record["values"]
            self._rows[tuple(values)].append((record["step"], *values.values()))
            self._row_count += 1
            if self._row_count >= _MOST_ROWS:
                self._add_rows()
        elif kind == "event" and record["name"] == step_times.EVENT:
            self._times = step_times.joined(self._times, step_times.of_window(record["detail"]))
        elif _is_event(record):
            self._add_event(record)
        self._first = self._first or record
        self._last = record
        if kind != "decision" and (step := journal.last_step(record)) > self._last_step:
            self._last_step = step

    def _add_rows(self) -> None:
        """Add the rows that wait to their curves; many at once cost a tenth of one by one."""
        for names, rows in self._rows.items():
            steps, *columns = zip(*rows, strict=True)
            for name, values in zip(names, columns, strict=True):
                if not name.startswith("test_"):  # a single point is not a curve
                    self._curves[name].extend(steps, values)
        self._rows.clear()
        self._row_count = 0

    def _add_event(self, record: Line) -> None:
        name = record["name"]
        self._counts[name] += 1
        if self._counts[name] <= MOST_EVENTS:
            self._events.append(Event(record["step"], name, in_words(name, record["detail"])))

    def part(self, size: int, lines: int, earlier: Attempt | None = None) -> Part | None:
        """Return the sum of the records, which end at byte `size`; `earlier` is the attempt before them."""
        if self._first is None:
            return None
        self._add_rows()
        curves = {name: builder.built() for name, builder in self._curves.items()}
        losses = self._losses.built()
        if losses.last_step >= 0:
            curves["loss"] = losses
        return Part(
            self._attempt(earlier),
            curves,
            self._events,
            self._counts.total() - len(self._events),
            size,
            lines,
            self._times,
        )

    def _attempt(self, earlier: Attempt | None) -> Attempt:
        first = self._first or {}
        before = earlier or Attempt(
            number=first["attempt"],
            from_step=first["from_step"],
            last_step=first["from_step"],
            started=first["time"],
            ended=first["time"],
            status="",
        )
        return replace(
            before,
            last_step=max(before.last_step, self._last_step),
            ended=self._last["time"],
            status=self._last["status"] if self._last["kind"] == "end" else "",
        )


def _is_event(record: Line) -> bool:
    if record["kind"] == "decision":
        return record["name"] in _DECISIONS
    return record["kind"] == "event" and record["name"] not in _UNMARKED


def in_words(name: str, detail: Mapping[str, Any]) -> str:
    """Return an event's name and its details as text."""
    pairs = ", ".join(f"{key} {_brief(value)}" for key, value in detail.items())
    return f"{name.replace('_', ' ')}{f' ({pairs})' if pairs else ''}"


def _brief(value: Any) -> str:
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return shown if len(shown) <= 80 else f"{shown[:79]}…"
