"""How far one tracker is: `RUN_DIR/trackers/<index>-<type>.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from trainyard.regular import open_regular, read_regular


class Position(NamedTuple):
    """A place in the journal: a segment's file name ("" before the first) and the bytes of it that are done with."""

    segment: str = ""
    offset: int = 0


START = Position()


@dataclass
class State:
    """What a feeder remembers from one process to the next.

    `marks`: for each metric, the last step that was sent. `sent`: values sent so far. `ended`: the status that the
    last attempt ended with, "" while it goes on. `closed`: the status that the tracker was told. `error`: why the
    last try failed, "" when it did not.
    """

    position: Position = START
    marks: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    ended: str = ""
    closed: str = ""
    error: str = ""

    @classmethod
    def load(cls, file: Path) -> State:
        """The saved state. Without a readable one, from the start: what the tracker holds is not sent again anyway."""
        try:
            saved = json.loads(read_regular(file, depth=2))
            return cls(**{**saved, "position": Position(*saved["position"])})
        except (OSError, ValueError, TypeError, KeyError):
            return cls()

    def save(self, file: Path) -> None:
        """Replaces the file. Not fsynced, as losing it loses nothing."""
        aside = file.with_suffix(".tmp")
        with open_regular(aside, "wb", depth=2) as written:
            written.write(json.dumps(asdict(self)).encode())
        aside.replace(file)

    def agree(self, held: Mapping[str, int]) -> None:
        """The tracker itself knows best what it holds; if it holds less than we sent (it is another one now, or its run
        was deleted), the journal is gone through again from its start."""
        if any(held.get(metric, -1) < step for metric, step in self.marks.items()):
            self.position = START
        self.marks = dict(held)


def state_file(run_dir: Path, index: int, tracker: str) -> Path:
    """Where the state of a run's tracker is kept; its log lies beside it, with the ending `.log`."""
    return run_dir / "trackers" / f"{index}-{tracker}.json"
