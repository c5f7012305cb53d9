"""Writes the journal; `records/journal.py` describes its format."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainyard.digest import fsync_folder, make_folders
from trainyard.records.journal import finite
from trainyard.records.status import Ended
from trainyard.redact import redacted
from trainyard.safe_open import open_regular


class Journal:
    """Writes one segment: lines reach the operating system at `flush` and the disk at `sync`."""

    def __init__(self, folder: Path, attempt: int, from_step: int) -> None:
        make_folders(folder)
        self._path = folder / f"{attempt:04d}.jsonl"
        self._file = io.TextIOWrapper(open_regular(self._path, "xb", depth=2), encoding="utf-8")
        self._write({"kind": "start", "time": time.time(), "attempt": attempt, "from_step": from_step})
        self.flush()
        with self._file_named():
            fsync_folder(folder)  # makes the file's name durable; `sync` does that for its content

    def _write(self, record: Mapping[str, Any]) -> None:
        with self._file_named():
            self._file.write(json.dumps(record, separators=(",", ":"), allow_nan=False) + "\n")

    @contextmanager
    def _file_named(self) -> Iterator[None]:
        """Add the file's name to errors of the disk, which otherwise say only that there is no space."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from error

    def losses(self, first: int, values: Sequence[float]) -> None:
        """Write the losses of the steps `first`, `first` + 1, ..."""
        self._write(
            {
                "kind": "losses",
                "time": time.time(),
                "first": first,
                "values": [finite(value) for value in values],
            }
        )

    def values(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Write a record of kind `metrics`, `evaluation` or `histograms`."""
        clean = {key: finite(value) if isinstance(value, float) else value for key, value in values.items()}
        self._write({"kind": kind, "time": time.time(), "step": step, "values": clean})

    def event(self, step: int, name: str, **detail: Any) -> None:
        """Write an event, such as `best` or `checkpoint_failed`: something worth seeing beside the curves."""
        clean = {key: _clean(value) for key, value in detail.items()}
        self._write({"kind": "event", "time": time.time(), "step": step, "name": name, "detail": clean})

    def end(self, step: int, status: Ended) -> None:
        """Write the orderly end of this attempt, and bring everything to the disk."""
        self._write({"kind": "end", "time": time.time(), "step": step, "status": status})
        self.flush()
        self.sync()

    def flush(self) -> None:
        """Hand the lines to the operating system: they survive this process."""
        with self._file_named():
            self._file.flush()

    def sync(self) -> None:
        """Bring what was flushed to the disk: it survives the machine. May be called from any thread."""
        with self._file_named():
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _clean(value: Any) -> Any:
    """Return a value that JSON can hold, without secrets."""
    if isinstance(value, float):
        return finite(value)
    return redacted(value) if isinstance(value, str) else value
