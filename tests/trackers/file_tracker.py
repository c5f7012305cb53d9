"""A tracker that is a folder, to be fed by real processes.

It can be dead, and it can kill the process that feeds it.
"""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from trainwright.trackers.base import Histogram, Point, RunCard


class FileParams(BaseModel):
    """`die_at`: the file gets that many points, and the process dies before it can remember them; once."""

    model_config = ConfigDict(extra="forbid")
    folder: str
    token: str = ""
    die_at: int = 0


class FileTracker:
    Params: ClassVar[type[FileParams]] = FileParams
    wants_histograms: ClassVar[bool] = True

    def __init__(self, params: FileParams) -> None:
        self._params = params
        self._folder = Path(params.folder)
        self.batches: list[int] = []

    def open(self, run: RunCard) -> Mapping[str, int]:
        self._alive()
        self._folder.mkdir(exist_ok=True)
        return {name: rows[-1][0] for name, rows in stored(self._folder).items()}

    def log(self, points: Sequence[Point]) -> None:
        self._alive()
        self.batches.append(len(points))
        held = sum(map(len, stored(self._folder).values()))
        self._append([(point.metric, point.step, repr(point.value)) for point in points])
        if held < self._params.die_at <= held + len(points):
            os.kill(os.getpid(), signal.SIGKILL)

    def log_histograms(self, histograms: Sequence[Histogram]) -> None:
        self._append([(each.name, each.step, repr(float(sum(each.counts)))) for each in histograms])

    def log_artifact(self, path: Path, name: str) -> None:
        self._alive()
        (self._folder / f"artifact-{name}").write_text("folder" if path.is_dir() else path.read_text())

    def close(self, status: str) -> None:
        self._alive()
        with open(self._folder / "statuses", "a") as file:
            file.write(f"{status}\n")

    def _append(self, rows: list[tuple[str, int, str]]) -> None:
        with open(self._folder / "points.jsonl", "a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    def _alive(self) -> None:
        if (self._folder.parent / "dead").exists():
            raise ConnectionRefusedError(
                f"Connection refused by user:{self._params.token}@{self._folder.name}"
            )


def stored(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What was sent, in the order of its arrival: for each name its (step, value)."""
    found: dict[str, list[tuple[int, float]]] = {}
    if (folder / "points.jsonl").exists():
        for line in (folder / "points.jsonl").read_text().splitlines():
            name, step, value = json.loads(line)
            found.setdefault(name, []).append((step, float(value)))
    return found


def statuses(folder: Path) -> list[str]:
    """The statuses that the tracker was closed with, oldest first."""
    return (folder / "statuses").read_text().split() if (folder / "statuses").exists() else []
