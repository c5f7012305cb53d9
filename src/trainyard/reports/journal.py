"""The journal for people: its curves, events and attempts, read in one pass and kept small.

The summary of a long segment is kept beside it, in `journal/0001.summary`, so that it is parsed once. The
file is only a cache: it holds the checksum of the bytes that it sums up, is used only while they are
unchanged, and may be deleted at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainyard.records import journal
from trainyard.records.journal import Line, SegmentReader, finite, number
from trainyard.regular import open_regular
from trainyard.reports.curves import Curve, CurveBuilder, Envelope, Floats, joined, up_to

MOST_EVENTS = 1000  # of one name; further ones are only counted
CACHED_FROM = 4 << 20  # bytes of a segment: shorter ones are parsed in no time
_FORMAT = 1
_UNMARKED = ("best",)  # comes again and again; the last one has a marker of its own
_BLOCK = 1 << 20
_LONGEST_CACHE = 1 << 28


@dataclass(frozen=True)
class Attempt:
    """One process life of a run; times are seconds since the epoch, and `status` is "" if it was killed."""

    number: int
    from_step: int
    last_step: int
    started: float
    ended: float
    status: str


class Event(NamedTuple):
    """Something that happened after a step; `text` says what in words."""

    step: int
    name: str
    text: str


@dataclass
class History:
    """What a journal holds, without what was superseded; the losses of single steps are the curve `loss`."""

    curves: dict[str, Curve] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    more_events: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Part(NamedTuple):
    """What a segment holds up to byte `size`, from its start or from the end of an earlier part."""

    attempt: Attempt
    curves: Mapping[str, Curve]
    events: list[Event]
    more_events: int
    size: int
    lines: int


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
    except OSError as error:
        history.problems.append(f"journal: cannot be read ({error.strerror})")
    history.curves = {name: joined(parts) for name, parts in curves.items()}
    return history


def _take(part: _Part, limit: float, history: History, curves: dict[str, list[Curve]]) -> None:
    """Add what counts of a part to the history."""
    history.events += [event for event in part.events if event.step <= limit]
    history.more_events += part.more_events
    for name, curve in part.curves.items():
        kept = up_to(curve, limit)
        if len(kept.envelope.x):
            curves.setdefault(name, []).append(kept)


def _parts(path: Path, problems: list[str]) -> list[_Part]:
    """Return what a segment holds: one part, or the cached one and what was written since."""
    cached = _load(path)
    if cached is not None and path.stat().st_size - cached.size < CACHED_FROM:
        rest = _scan(path, problems, cached)
        return [cached] if rest is None else [cached, rest]
    part = _scan(path, problems)
    if part is not None and part.size >= CACHED_FROM:
        _save(path, part)
    return [] if part is None else [part]


def _scan(path: Path, problems: list[str], before: _Part | None = None) -> _Part | None:
    """Read a segment, or what follows a part of it; None if there is no valid record."""
    segment = SegmentReader(path, before.size, before.lines) if before else SegmentReader(path)
    scan = _Scan()
    for record in segment:
        scan.add(record)
    if segment.damage:
        problems.append(journal.damage_message(segment))
    return scan.part(segment, before.attempt if before else None)


class _Scan:
    """Sum up records one by one."""

    def __init__(self) -> None:
        self._losses = CurveBuilder()
        self._metrics: defaultdict[str, CurveBuilder] = defaultdict(CurveBuilder)
        self._events: list[Event] = []
        self._counts = Counter[str]()
        self._first: Line | None = None
        self._last: Line = {}
        self._last_step = 0

    def add(self, record: Line) -> None:
        """Add a record."""
        kind = record["kind"]
        if kind == "losses":
            self._losses.extend(record["first"], record["values"])
        elif kind in ("metrics", "evaluation"):
            step = record["step"]
            for name, value in record["values"].items():
                if not name.startswith("test_"):  # a single point is not a curve
                    self._metrics[name].add(step, value)
        elif kind == "event" and record["name"] not in _UNMARKED:
            self._add_event(record)
        self._first = self._first or record
        self._last = record
        if (step := journal.last_step(record)) > self._last_step:
            self._last_step = step

    def _add_event(self, record: Line) -> None:
        name = record["name"]
        self._counts[name] += 1
        if self._counts[name] <= MOST_EVENTS:
            self._events.append(Event(record["step"], name, in_words(name, record["detail"])))

    def part(self, segment: SegmentReader, earlier: Attempt | None) -> _Part | None:
        """Return the sum of the records; `earlier` is the attempt up to the first of them."""
        if self._first is None:
            return None
        curves = {name: builder.built() for name, builder in self._metrics.items()}
        losses = self._losses.built()
        if losses.last_step >= 0:
            curves["loss"] = losses
        return _Part(
            self._attempt(earlier),
            curves,
            self._events,
            self._counts.total() - len(self._events),
            segment.offset,
            segment.lines,
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


def in_words(name: str, detail: Mapping[str, Any]) -> str:
    """Return an event's name and its details as text."""
    pairs = ", ".join(f"{key} {_brief(value)}" for key, value in detail.items())
    return f"{name.replace('_', ' ')}{f' ({pairs})' if pairs else ''}"


def _brief(value: Any) -> str:
    shown = f"{value:.6g}" if isinstance(value, float) else str(value)
    return shown if len(shown) <= 80 else f"{shown[:79]}…"


# -- the cache: a line with a checksum of the rest, a line of JSON, and the numbers of all curves


def _cache_file(path: Path) -> Path:
    return path.with_suffix(".summary")


def _save(path: Path, part: _Part) -> None:
    """Write a segment's cache; a failure is ignored."""
    data = b"".join(np.concatenate(curve.envelope).astype("<f8").tobytes() for curve in part.curves.values())
    head = {
        "format": _FORMAT,
        "size": part.size,
        "crc": _crc(path, part.size),
        "lines": part.lines,
        "attempt": asdict(part.attempt),
        "events": part.events,
        "more_events": part.more_events,
        "curves": [
            [name, len(curve.envelope.x), finite(curve.last), curve.last_step]
            for name, curve in part.curves.items()
        ],
    }
    body = json.dumps(head).encode() + b"\n" + data
    file = _cache_file(path)
    aside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with open_regular(aside, "wb", depth=2) as written:
            written.write(b"%d\n" % zlib.crc32(body) + body)
        aside.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()


def _load(path: Path) -> _Part | None:
    """Read a segment's cache; None without one that fits the segment's bytes."""
    try:
        with open_regular(_cache_file(path), depth=2) as file:
            crc, body = int(file.readline(_BLOCK)), file.read(_LONGEST_CACHE)
        if crc != zlib.crc32(body):
            return None
        line, _, data = body.partition(b"\n")
        head = json.loads(line)
        if head["format"] != _FORMAT or head["crc"] != _crc(path, head["size"]):
            return None
        return _Part(
            Attempt(**head["attempt"]),
            dict(_curves(head["curves"], np.frombuffer(data, "<f8"))),
            [Event(*event) for event in head["events"]],
            head["more_events"],
            head["size"],
            head["lines"],
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _curves(entries: list[Any], numbers: Floats) -> Iterator[tuple[str, Curve]]:
    start = 0
    for name, count, last, last_step in entries:
        columns = numbers[start : start + 6 * count].reshape(6, count)
        start += 6 * count
        yield name, Curve(Envelope(*columns), number(last), last_step)


def _crc(path: Path, size: int) -> int:
    """Return the checksum of a file's first bytes."""
    crc = 0
    with open_regular(path, depth=2) as file:
        while size > 0 and (block := file.read(min(size, _BLOCK))):
            crc = zlib.crc32(block, crc)
            size -= len(block)
    return crc
