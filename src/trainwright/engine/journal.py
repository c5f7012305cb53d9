"""Write the journal; `records/journal.py` describes its format."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from trainwright.records.decision import Decision
from trainwright.records.journal import Line, finite
from trainwright.records.status import Ended
from trainwright.redact import redacted
from trainwright.safe_files import fsync_folder, make_folders, open_regular


class Summary(Protocol):
    """The running summary of a segment that is being written."""

    def add(self, record: Line, line: bytes) -> None:
        """Take note of a line; `record` is what it holds."""

    def flushed(self) -> None:
        """Take note that the file holds all lines."""


class Journal:
    """Write one segment: lines reach the operating system at `flush` and the disk at `sync`.

    Args:
        folder: The folder of the segments.
        attempt: The number of the attempt.
        from_step: The step from which the attempt continues.
        summary: Makes the summary of a segment, given its path.
    """

    def __init__(
        self,
        folder: Path,
        attempt: int,
        from_step: int,
        summary: Callable[[Path], Summary] | None = None,
    ) -> None:
        make_folders(folder)
        self._path = folder / f"{attempt:04d}.jsonl"
        self._owner = os.getpid()
        self._file = open_regular(self._path, "xb", depth=2)
        self._summary = summary(self._path) if summary else None
        self._write({"kind": "start", "time": time.time(), "attempt": attempt, "from_step": from_step})
        self.flush()
        try:
            fsync_folder(folder)  # makes the file's name durable; `sync` does that for its content
        except OSError as error:
            raise self._named(error) from error

    def require_owner(self) -> None:
        """Make sure that this is the process that has opened the journal: only that one writes to the run.

        Raises:
            RuntimeError: The user's code forked, and the child trains, too.
        """
        if os.getpid() != self._owner:
            raise RuntimeError("a forked child must not continue the training of its parent")

    def _write(self, record: Line) -> None:
        self.require_owner()
        line = _encode(record).encode() + b"\n"
        try:
            self._file.write(line)
        except OSError as error:
            raise self._named(error) from error
        if self._summary:
            self._summary.add(record, line)

    def _named(self, error: OSError) -> OSError:
        """Add the file's name to an error of the disk, which otherwise says only that there is no space."""
        return OSError(error.errno, error.strerror, str(self._path))

    def losses(self, first: int, values: Sequence[float]) -> None:
        """Write the losses of the steps `first`, `first` + 1, ..."""
        clean = [*values] if all(map(isfinite, values)) else [finite(value) for value in values]
        self._write({"kind": "losses", "time": time.time(), "first": first, "values": clean})

    def values(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Write a record of kind `metrics`, `evaluation` or `histograms`."""
        clean = {key: finite(value) if isinstance(value, float) else value for key, value in values.items()}
        self._write({"kind": kind, "time": time.time(), "step": step, "values": clean})

    def event(self, step: int, name: str, **detail: Any) -> None:
        """Write an event, such as `best` or `checkpoint_failed`: something worth seeing with the curves."""
        clean = {key: _clean(value) for key, value in detail.items()}
        self._write({"kind": "event", "time": time.time(), "step": step, "name": name, "detail": clean})

    def decision(self, decision: Decision) -> None:
        """Write a decision and bring it to the disk: it must be durable before it has a consequence."""
        record = {"step": decision.step, "name": decision.kind, "detail": dict(decision.detail)}
        self._write({"kind": "decision", "time": time.time(), **record})
        self.flush()
        self.sync()

    def end(self, step: int, status: Ended) -> None:
        """Write the orderly end of this attempt, and bring everything to the disk."""
        self._write({"kind": "end", "time": time.time(), "step": step, "status": status})
        self.flush()
        self.sync()

    def flush(self) -> None:
        """Hand the lines to the operating system: they survive this process."""
        try:
            self._file.flush()
        except OSError as error:
            raise self._named(error) from error
        if self._summary:
            self._summary.flushed()

    def sync(self) -> None:
        """Bring what was flushed to the disk: it survives the machine. May be called from any thread."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._named(error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def is_closed(self) -> bool:
        """True if the file is closed: the attempt has ended, as far as the journal says."""
        return self._file.closed


class FollowerJournal(Journal):
    """Drop all records: a process that is not the main one (a follower) keeps no journal."""

    def __init__(self) -> None:
        self._summary, self._owner = None, os.getpid()

    def _write(self, record: Line) -> None:
        """Drop a record."""

    def flush(self) -> None:
        """Do nothing."""

    def sync(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _clean(value: Any) -> Any:
    """Return a value that JSON can hold, without secrets."""
    if isinstance(value, float):
        return finite(value)
    if isinstance(value, tuple):
        return list(value)
    return redacted(value) if isinstance(value, str) else value
