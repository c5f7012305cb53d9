"""A run directory, read for people: whatever is missing or damaged is left out and named, and nothing raises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainyard.records import journal
from trainyard.records.journal import Record
from trainyard.regular import read_regular

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Attempt:
    """One process life of a run. `started` and `ended` are seconds since the epoch; `status` is "" where it was killed."""

    number: int
    from_step: int
    last_step: int
    started: float
    ended: float
    status: str


@dataclass(frozen=True)
class RunFiles:
    """What a run directory holds; a part that is not there is empty. `problems` names what could not be read."""

    folder: Path
    config: str = ""
    manifest: Json = field(default_factory=dict)
    result: Json = field(default_factory=dict)
    evaluations: Mapping[str, Json] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def run_id(self) -> str:
        return str(self.manifest.get("run_id") or self.folder.name)

    @property
    def experiment(self) -> str:
        return str(self.manifest.get("experiment") or self.folder.parent.name)

    @property
    def status(self) -> str:
        """That of the result, else of the last attempt; `unfinished` while a run is at work, or was killed."""
        ended = self.attempts[-1].status if self.attempts else ""
        return str(self.result.get("status") or ended or "unfinished")

    @property
    def steps(self) -> int:
        """How far the run came."""
        steps = self.result.get("steps")
        return (
            steps
            if isinstance(steps, int)
            else max((attempt.last_step for attempt in self.attempts), default=0)
        )


def part(data: Json, *keys: str) -> Json:
    """A nested object, empty where there is none."""
    for key in keys:
        inner = data.get(key)
        data = inner if isinstance(inner, Mapping) else {}
    return data


def numbers(data: Json) -> dict[str, float]:
    """The entries that are numbers, also those that JSON has no number for."""
    found = {}
    for name, value in data.items():
        if value in ("NaN", "Infinity", "-Infinity") or (
            isinstance(value, int | float) and not isinstance(value, bool)
        ):
            found[name] = float(value)
    return found


def read_run(folder: Path) -> RunFiles:
    """Reads a run directory, as far as it is there and whole."""
    problems: list[str] = []
    files = {name: _read_json(folder / name, problems) for name in ("manifest.json", "result.json")}
    evaluations = {
        split: _read_json(folder / "evaluation" / f"{split}.json", problems, depth=2)
        for split in ("train", "val", "test")
    }
    if not files["manifest.json"]:
        problems.insert(0, "manifest.json: missing or empty, so the inputs of this run are not known")
    records, attempts = _read_journal(folder / "journal", problems)
    result = files["result.json"]
    if attempts and isinstance(result.get("attempts"), int) and result["attempts"] < attempts[-1].number:
        result = {}  # it is how an earlier attempt ended
    elif (
        attempts and not attempts[-1].status
    ):  # a report is made just before the journal's last line is written
        attempts[-1] = replace(attempts[-1], status=str(result.get("status", "")))
    return RunFiles(
        folder,
        _read_text(folder / "config.yaml", problems),
        files["manifest.json"],
        result,
        {split: data for split, data in evaluations.items() if data},
        records,
        attempts,
        problems,
    )


def _read_text(path: Path, problems: list[str], depth: int = 1) -> str:
    try:
        return read_regular(path, depth=depth).decode(errors="replace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        problems.append(f"{path.name}: cannot be read ({error.strerror})")
        return ""


def _read_json(path: Path, problems: list[str], depth: int = 1) -> Json:
    source = _read_text(path, problems, depth)
    if not source:
        return {}
    try:
        data = json.loads(source)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict):
        return data
    problems.append(f"{path.name}: damaged, and left out of this report")
    return {}


def _read_journal(folder: Path, problems: list[str]) -> tuple[list[Record], list[Attempt]]:
    try:
        attempts = [found for path in journal.segments(folder) if (found := _attempt(path)) is not None]
        return journal.read(folder), attempts
    except (OSError, ValueError, KeyError, TypeError) as error:
        problems.append(f"journal: damaged, and left out of this report ({type(error).__name__}: {error})")
        return [], []


def _attempt(path: Path) -> Attempt | None:
    records = list(journal.read_segment(path))
    if not records:
        return None
    first, last = records[0], records[-1]
    from_step = int(first.get("from_step", 0))
    return Attempt(
        number=int(first.get("attempt", 0)),
        from_step=from_step,
        last_step=max(from_step, *(journal.last_step(record) for record in records)),
        started=float(first.get("time", 0)),
        ended=float(last.get("time", 0)),
        status=str(last["status"]) if last["kind"] == "end" else "",
    )
