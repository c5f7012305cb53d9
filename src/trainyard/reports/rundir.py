"""A run directory, read for people: what is missing or damaged is left out and named, and nothing raises."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from trainyard.records import journal
from trainyard.regular import read_regular
from trainyard.reports.journal import Attempt, History, read_history

Json = Mapping[str, Any]


@dataclass(frozen=True)
class RunFiles:
    """What a run directory holds; a part that is missing is empty.

    `problems` names the files that could not be read. The journal is read once, when `history` is first used.
    """

    folder: Path
    config: str = ""
    manifest: Json = field(default_factory=dict)
    result: Json = field(default_factory=dict)
    evaluations: Mapping[str, Json] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @cached_property
    def history(self) -> History:
        """What the journal holds."""
        history = read_history(self.folder / "journal")
        if history.attempts and not history.attempts[-1].status:
            # A report is made just before the last line of the journal is written.
            status = str(self.result.get("status", ""))
            history.attempts[-1] = replace(history.attempts[-1], status=status)
        return history

    @property
    def attempts(self) -> list[Attempt]:
        """The process lives of the run."""
        return self.history.attempts

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self.manifest.get("run_id") or self.folder.name)

    @property
    def experiment(self) -> str:
        """The name of the run's experiment."""
        return str(self.manifest.get("experiment") or self.folder.parent.name)

    @property
    def status(self) -> str:
        """The status of the result or last attempt; `unfinished` if the run still trains or was killed."""
        if self.result.get("status"):
            return str(self.result["status"])
        return (self.attempts[-1].status if self.attempts else "") or "unfinished"

    @property
    def steps(self) -> int:
        """The last step that was trained."""
        steps = self.result.get("steps")
        if isinstance(steps, int):
            return steps
        return max((attempt.last_step for attempt in self.attempts), default=0)


def part(data: Json, *keys: str) -> Json:
    """Return a nested object, empty if there is none."""
    for key in keys:
        inner = data.get(key)
        data = inner if isinstance(inner, Mapping) else {}
    return data


def numbers(data: Json) -> dict[str, float]:
    """Return the entries that are numbers, those that JSON has no number for included."""
    return {name: float(value) for name, value in data.items() if _is_number(value)}


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        return value in ("NaN", "Infinity", "-Infinity")
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < 10**300  # a float can hold it
    return isinstance(value, float)


def read_run(folder: Path) -> RunFiles:
    """Read a run directory, as far as it is there and undamaged."""
    problems: list[str] = []
    manifest, result = (_read_json(folder / name, problems) for name in ("manifest.json", "result.json"))
    evaluations = {
        split: _read_json(folder / "evaluation" / f"{split}.json", problems, depth=2)
        for split in ("train", "val", "test")
    }
    if not manifest:
        problems.insert(0, "manifest.json: missing or empty, so the inputs of this run are not known")
    attempts = result.get("attempts")
    if isinstance(attempts, int) and attempts < _newest_attempt(folder / "journal"):
        result = {}  # it says how an earlier attempt ended
    return RunFiles(
        folder,
        _read_text(folder / "config.yaml", problems),
        manifest,
        result,
        {split: data for split, data in evaluations.items() if data},
        problems,
    )


def _newest_attempt(folder: Path) -> int:
    """Return the number of the newest attempt that has a journal, or 0."""
    try:
        for path in reversed(journal.segments(folder)):
            if next(iter(journal.SegmentReader(path)), None) is not None:
                return int(path.stem)
    except OSError:
        pass  # `History.problems` says so
    return 0


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
