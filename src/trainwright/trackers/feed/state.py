"""The state of feeding one tracker: `RUN_DIR/trackers/<index>-<type>.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from trainwright.records.document import dump, parse_json
from trainwright.safe_files import open_regular, read_regular


class Position(NamedTuple):
    """A position in the journal: a segment's file name ("" before the first) and a number of its bytes."""

    segment: str = ""
    offset: int = 0


START = Position()


@dataclass
class State:
    """The memory of a feeder from one process to the next.

    Attributes:
        position: Everything before it was sent.
        marks: For each metric, the last step that was sent.
        sent: How many values were sent so far.
        ended: The status that the last attempt ended with, "" while it trains.
        closed: The status that the tracker was closed with, "" while it is open.
        error: Why the last try failed, "" if it did not.
    """

    position: Position = START
    marks: dict[str, int] = field(default_factory=dict)
    sent: int = 0
    ended: str = ""
    closed: str = ""
    error: str = ""

    @classmethod
    def load(cls, file: Path) -> State:
        """Return the saved state; if that is missing or damaged, a new one.

        Even then, what the tracker holds is not sent again.
        """
        try:
            saved = parse_json(read_regular(file, depth=2))
            state = cls(**{**saved, "position": Position(*saved["position"])})
            return state if state._is_valid() else cls()
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return cls()

    def _is_valid(self) -> bool:
        """Return whether a file held the right types."""
        texts = (self.position.segment, self.ended, self.closed, self.error)
        counts = (self.position.offset, self.sent, *self.marks.values())
        return all(isinstance(text, str) for text in texts) and all(
            isinstance(count, int) and count >= 0 for count in counts
        )

    def save(self, file: Path) -> None:
        """Replace the file. It is not fsynced, as losing it loses nothing."""
        aside = file.with_suffix(".tmp")
        with open_regular(aside, "wb", depth=2) as written:
            written.write(dump(asdict(self)))
        aside.replace(file)

    def agree(self, held: Mapping[str, int]) -> None:
        """Adopt what the tracker says it holds: for each metric, the last step.

        If it holds less than was sent (it is another one now, or its run was deleted), the journal is sent
        again from its start.
        """
        if any(held.get(metric, -1) < step for metric, step in self.marks.items()):
            self.position = START
        self.marks = dict(held)


def state_file(run_dir: Path, index: int, tracker: str) -> Path:
    """Return the file of a tracker's state; its log is the file beside it that ends in `.log`."""
    return run_dir / "trackers" / f"{index}-{tracker}.json"
