"""A file beside a long segment of the journal that sums it up, so that nobody parses it twice.

It is written while the run trains, and by readers of a segment that has none. The file is only a cache: it
holds the checksum of the bytes that it sums up, is used only while they are unchanged, and may be deleted at
any time. It consists of a line with a checksum of the rest, a line of JSON, and the numbers of all curves.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainwright.records.journal import finite, number
from trainwright.reports.curves import Curve, Envelope, Floats
from trainwright.reports.step_times import StepTimesTotal
from trainwright.safe_files import open_regular

_FORMAT = 3
_BLOCK = 1 << 20
_LONGEST_FILE = 1 << 28


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


class Part(NamedTuple):
    """The contents of a segment up to byte `size`, from its start or from the end of an earlier part."""

    attempt: Attempt
    curves: Mapping[str, Curve]
    events: list[Event]
    more_events: int
    size: int
    lines: int
    step_times: StepTimesTotal | None = None  # where there are several processes


def _file_of(path: Path) -> Path:
    return path.with_suffix(".summary")


def save(path: Path, part: Part, crc: int) -> None:
    """Write a segment's cache; a failure is ignored."""
    data = b"".join(np.concatenate(curve.envelope).astype("<f8").tobytes() for curve in part.curves.values())
    head = {
        "format": _FORMAT,
        "size": part.size,
        "crc": crc,
        "lines": part.lines,
        "attempt": asdict(part.attempt),
        "events": part.events,
        "more_events": part.more_events,
        "step_times": part.step_times,
        "curves": [
            [name, len(curve.envelope.x), finite(curve.last), curve.last_step]
            for name, curve in part.curves.items()
        ],
    }
    body = json.dumps(head).encode() + b"\n" + data
    file = _file_of(path)
    aside = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with open_regular(aside, "wb", depth=2) as written:
            written.write(b"%d\n" % zlib.crc32(body) + body)
        aside.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()


def load(path: Path) -> Part | None:
    """Read a segment's cache; None without one that fits the segment's bytes."""
    try:
        with open_regular(_file_of(path), depth=2) as file:
            crc, body = int(file.readline(_BLOCK)), file.read(_LONGEST_FILE)
        if crc != zlib.crc32(body):
            return None
        line, _, data = body.partition(b"\n")
        head = json.loads(line)
        if head["format"] != _FORMAT or head["crc"] != checksum(path, head["size"]):
            return None
        return Part(
            Attempt(**head["attempt"]),
            dict(_curves(head["curves"], np.frombuffer(data, "<f8"))),
            [Event(*event) for event in head["events"]],
            head["more_events"],
            head["size"],
            head["lines"],
            StepTimesTotal(*head["step_times"]) if head["step_times"] else None,
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _curves(entries: list[Any], numbers: Floats) -> Iterator[tuple[str, Curve]]:
    start = 0
    for name, count, last, last_step in entries:
        columns = numbers[start : start + 6 * count].reshape(6, count)
        start += 6 * count
        yield name, Curve(Envelope(*columns), number(last), last_step)


def checksum(path: Path, size: int) -> int:
    """Return the checksum of a file's first bytes."""
    crc = 0
    with open_regular(path, depth=2) as file:
        while size > 0 and (block := file.read(min(size, _BLOCK))):
            crc = zlib.crc32(block, crc)
            size -= len(block)
    return crc
