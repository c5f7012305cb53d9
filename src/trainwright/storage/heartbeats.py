"""Heartbeats of the process that trains a run in a store, and requests to stop.

    alive/<experiment>/<run-id>/0002        the heartbeat of attempt 2, stored anew every few seconds
    alive/<experiment>/<run-id>/0002.stop   a request to attempt 2 to stop

They only say early that a run is owned; the log decides. The clocks of two machines may differ by minutes and
are never compared: the owner of a run is dead once it has given no sign of life for `SILENCE` seconds by the
clock of the machine that watches. What was seen, and since when, is noted in the working copy (`.owner`), so
that a later command has less to wait for.
"""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from trainwright.errors import CheckpointError, RunLockedError
from trainwright.process.machine import machine_id
from trainwright.safe_files import read_regular, write_atomically
from trainwright.storage.log import Entry, Log, has_ended, is_of_this_machine
from trainwright.stores.base import Store

log = logging.getLogger("trainwright")

SILENCE = 60.0  # seconds without a sign of life after which the owner of a run counts as dead
_POLL_SECONDS = 3.0  # between two looks for a sign of life
_CLOCKS = 600.0  # seconds that clocks may differ by, where the status of a run is read for the first time
_FILE = ".owner"  # in a working copy


@dataclass(frozen=True)
class _Observation:
    """The last observation of the owner of a run.

    Args:
        sign: The number of the newest entry, and the heartbeats.
        since: When the sign was seen first, by the monotonic clock of `machine`.
        machine: The machine that saw it, since its last start.
        time: When the sign was given: by the owner's clock, or by ours if it was seen to change.
    """

    sign: str
    since: float
    machine: str
    time: float

    @property
    def silence(self) -> float:
        """Return for how many seconds nothing has changed; 0 if another machine, or none, has looked."""
        return max(0.0, time.monotonic() - self.since) if self.machine == machine_id("pid") else 0.0


class Heartbeats:
    """The heartbeats of a run, and what its working copy knows of them.

    Args:
        path: The working copy.
        store: The store.
        log: The log of the run.
        prefix: The beginning of the keys of the heartbeats.
    """

    def __init__(self, path: Path, store: Store, log: Log, prefix: str) -> None:
        self._path = path
        self._store = store
        self._log = log
        self._prefix = prefix

    # -- of the owner

    def beat(self, attempt: int) -> None:
        """Store a heartbeat of an attempt.

        If the store cannot be reached, this heartbeat is lost: training needs the store only for its commits.
        """
        with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(prefix=".up-", dir=self._path) as file:
            file.write(f"{time.time()}".encode())
            file.flush()
            self._store.put(self._key(attempt), Path(file.name))

    def is_asked_to_stop(self, attempt: int) -> bool:
        """Return whether an attempt is asked to stop; False if the store cannot be reached."""
        with contextlib.suppress(OSError, CheckpointError):
            return self._stop_request(attempt) in self._store.list(self._prefix)
        return False

    def stop_beating(self, attempt: int) -> None:
        """Delete the heartbeat of an attempt that has ended, and a request to stop it."""
        for key in (self._key(attempt), self._stop_request(attempt)):
            with contextlib.suppress(OSError):
                self._store.delete(key)

    # -- of others

    def ask_to_stop(self, attempt: int) -> None:
        """Ask an attempt, on whatever machine, to stop; it reads the request at its next heartbeat.

        Raises:
            OSError: The request cannot be stored.
        """
        self._store.put_if_absent(self._stop_request(attempt), b"")

    def refuse_owned(self, entry: Entry) -> None:
        """Refuse a run that another process trains, by the newest entry of its log.

        Unless it is known how the owner fares, wait for a sign of life, for at most `SILENCE` seconds.

        Raises:
            RunLockedError: The owner lives.
            CheckpointError: The store cannot be read.
        """
        if not entry.has_owner or has_ended(entry.writer):
            return
        owner = entry.writer.partition(",")[0] or "unknown, its entry is damaged"
        locked = RunLockedError(
            f"run {self._path.name} is owned by another process ({owner}); wait for it, or end it and "
            f"resume: it may take up to {SILENCE:.0f} s until the run counts as free"
        )
        first = self._observe(entry.number, entry)
        if is_of_this_machine(entry.writer) and abs(time.time() - first.time) < SILENCE:
            raise locked  # one clock has told both times
        if first.silence < SILENCE:
            log.info(
                "the last process of run %s (%s) has not ended it: waiting up to %.0f s for a sign of life",
                *(self._path.name, owner, SILENCE - first.silence),
            )
        now = first
        while (left := SILENCE - now.silence) > 0:
            time.sleep(min(_POLL_SECONDS, left))
            now = self._observe(max(self._log.numbers(), default=0), entry)
            if now.sign != first.sign:
                raise locked

    def note(self, entry: Entry) -> None:
        """Note in the working copy whether a process trains the run elsewhere, for its status.

        Raises:
            CheckpointError: The store cannot be read.
        """
        if not entry.has_owner:
            self.note_end()
        elif has_ended(entry.writer):
            self.note_unowned()
        else:
            self._observe(entry.number, entry)

    def note_end(self) -> None:
        """Note that the newest attempt has ended."""
        (self._path / _FILE).unlink(missing_ok=True)

    def note_unowned(self) -> None:
        """Note that no process elsewhere owns the run, and that its attempt has not ended."""
        self._write(_Observation("", 0.0, "", 0.0))

    def _observe(self, number: int, entry: Entry) -> _Observation:
        """Return the owner's last sign of life, and note it.

        Args:
            number: The number of the newest entry now.
            entry: The newest entry when the watch began.
        """
        beats = self._beats(entry)
        sign = " ".join([str(number), *beats])
        before, here = _read(self._path), machine_id("pid")
        if before is not None and before.sign == sign and before.machine == here:
            return before
        given = max([entry.time, *map(_seconds, beats)])
        if before is not None and before.sign not in ("", sign):
            given = time.time()
        seen = _Observation(sign, time.monotonic(), here, given)
        self._write(seen)
        return seen

    def _beats(self, entry: Entry) -> list[str]:
        """Return the heartbeats of the attempt that owns the run, or of those that may do so."""
        first = entry.attempt if entry.writer else entry.attempt - 1
        beats = []
        for key in self._store.list(self._prefix):
            name = key.removeprefix(self._prefix)
            if name.isdecimal() and int(name) >= first:
                with contextlib.suppress(CheckpointError):  # it was deleted meanwhile
                    beats.append(self._store.get(key).decode(errors="replace"))
        return beats

    def _write(self, seen: _Observation) -> None:
        write_atomically(self._path / _FILE, json.dumps(asdict(seen)).encode())

    def _key(self, attempt: int) -> str:
        return f"{self._prefix}{attempt:04d}"

    def _stop_request(self, attempt: int) -> str:
        return f"{self._key(attempt)}.stop"


def has_owner(path: Path) -> bool:
    """Return whether a working copy says that a process trains the run elsewhere, as far as it is known.

    This never waits: at the first seen of a run it compares clocks, which is only roughly right;
    `refuse_owned` makes sure.
    """
    seen = _read(path)
    return seen is not None and seen.silence < SILENCE and time.time() - seen.time < _CLOCKS


def may_have_owner(path: Path) -> bool:
    """Return whether the attempt recorded in a working copy may still be alive."""
    return (path / _FILE).exists()


def _read(path: Path) -> _Observation | None:
    try:
        seen = _Observation(**json.loads(read_regular(path / _FILE)))
        return seen if all(isinstance(one, int | float) for one in (seen.since, seen.time)) else None
    except (OSError, ValueError, TypeError):
        return None


def _seconds(beat: str) -> float:
    try:
        return float(beat)
    except ValueError:
        return 0.0
