"""The journal: the run's own append-only record of metrics and events.

One segment per attempt, `journal/0001.jsonl`; each line is one JSON object with `kind` and `time` (seconds since
the epoch). The first line of a segment says from which step it goes on; what earlier segments say of later steps
is superseded. A torn last line ends a segment.

    {"kind": "start", "attempt": 2, "from_step": 300}
    {"kind": "losses", "first": 301, "values": [0.41, ...]}                one value per step, exactly
    {"kind": "metrics", "step": 310, "values": {"train_loss": 0.4, ...}}
    {"kind": "evaluation", "step": 320, "values": {"val_loss": 0.5, ...}}
    {"kind": "histograms", "step": 320, "values": {NAME: {"edges": [...], "counts": [...], "sum": 0, "sum_squares": 0}}}
    {"kind": "event", "step": 320, "name": "early_stop", "detail": {...}}
    {"kind": "end", "step": 400, "status": "completed"}                     an orderly end of the attempt

Values that JSON has no number for are written as the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from trainyard.regular import open_regular

Record = dict[str, Any]


def finite(value: float) -> float | str:
    """A float as JSON can hold it."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def segments(folder: Path) -> list[Path]:
    """The journal's segments, oldest first."""
    return sorted(folder.glob("[0-9]*.jsonl"))


def read_segment(path: Path) -> Iterator[Record]:
    """The records of one segment, up to a torn line."""
    with io.TextIOWrapper(open_regular(path, depth=2), encoding="utf-8", errors="replace") as lines:
        for line in lines:
            try:
                record = json.loads(line) if line.endswith("\n") else None
            except json.JSONDecodeError:
                return
            if not isinstance(record, dict):
                return
            yield record


def last_step(record: Record) -> int:
    """The last step that a record speaks of."""
    if record["kind"] == "losses":
        return int(record["first"]) + len(record["values"]) - 1
    return int(record.get("step", 0))


def read(folder: Path) -> list[Record]:
    """The records that count, in order: what a later segment supersedes is left out."""
    kept: list[Record] = []
    for path in segments(folder):
        for record in read_segment(path):
            if record["kind"] == "start":
                kept = [cut for old in kept if (cut := _until(old, int(record["from_step"]))) is not None]
            kept.append(record)
    return kept


def _until(record: Record, step: int) -> Record | None:
    """The part of a record that speaks of steps up to `step`."""
    if record["kind"] == "start" or last_step(record) <= step:
        return record
    if record["kind"] == "losses" and record["first"] <= step:
        return {**record, "values": record["values"][: step - int(record["first"]) + 1]}
    return None


def number(value: float | str) -> float:
    """The float behind `finite`."""
    return float(value)


def evaluations(records: Sequence[Record]) -> list[tuple[int, dict[str, Any]]]:
    """The step and the metrics of each evaluation."""
    return [(int(record["step"]), record["values"]) for record in records if record["kind"] == "evaluation"]


def losses(records: Sequence[Record]) -> dict[int, float]:
    """The loss of each step."""
    found: dict[int, float] = {}
    for record in records:
        if record["kind"] == "losses":
            found.update(enumerate((number(value) for value in record["values"]), start=int(record["first"])))
    return found
