"""The log of a run: numbered entries that say what is committed, and which attempt may write.

    log/000000001   attempt 1 takes the lease
    log/000000002   attempt 1 commits a checkpoint
    log/000000003   attempt 2 takes the lease: attempt 1, which needs this number next, has lost the run

In a store, the log of a run that waits for its first attempt begins with an entry that says that it exists.

The newest entry is the whole state: it names all checkpoints and best models that exist, and the hash of each
file that is sealed; in a store, it names all files. So older entries may be deleted ("folded") at any time; a
crash meanwhile leaves only entries that nobody reads. A writer may be suspended for so long that its next
number is taken *and* folded. After its write it sees that there are later entries, so that its own does not
count.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Collection
from typing import Literal

from pydantic import Field

from trainwright.errors import CheckpointError
from trainwright.process.machine import machine_id, process_has_ended
from trainwright.records.document import Document, OtherFormat, Record
from trainwright.stores.base import Store

Kind = Literal["create", "lease", "commit", "end"]
FOLDER = "log/"
_TRIES = 5  # to read the newest entry: it may be folded after it was listed
_KEPT = 2  # newest entries that are not folded: a reader may just have listed the one before the last

WRITERS: set[str] = set()  # the writers of this process that hold a lease

log = logging.getLogger("trainwright")


def new_writer() -> str:
    """Return a name that no other writer has: the process, its machine, and where its process id is known."""
    token = f"{secrets.token_hex(8)}-{machine_id('pid')}"
    return f"process {os.getpid()} on {socket.gethostname()}, {token}"


def has_ended(writer: str) -> bool:
    """Return whether the writer of an entry was a process or attempt of this machine that has ended."""
    if not is_of_this_machine(writer):
        return False
    process = _words(writer)[1]
    if process == str(os.getpid()):
        return writer not in WRITERS
    return process_has_ended(process)


def is_of_this_machine(writer: str) -> bool:
    """Return whether the writer of an entry is a process of this machine, since its last start."""
    words = _words(writer)
    if len(words) != 5 or words[3] != socket.gethostname():
        return False
    return words[4].partition("-")[2] == machine_id("pid")


def _words(writer: str) -> list[str]:
    return writer.replace(",", "").split()


class DamagedEntryError(CheckpointError):
    """An entry of the log is there, but not as it was written."""

    def __init__(self, number: int, problem: object) -> None:
        how = "" if isinstance(problem, OtherFormat) else "is damaged: "
        super().__init__(f"entry {number} of the run's log {how}{problem}")
        self.number = number


class StoredFile(Record):
    """The length and the SHA-256 of a file of a run or a study.

    In a store, also its content: in the entry itself (`text`), or in the objects `parts`.

    `bytes` and `sha256` are those of the file, also where its objects are compressed by `codec`.
    """

    bytes: int
    sha256: str
    text: str | None = None
    parts: tuple[str, ...] = ()
    codec: str | None = None


class Entry(Document):
    """One entry of the log.

    `writer` names the process that wrote it, `serial` counts its entries. `checkpoints` and `best` are the
    names of all that exist; `files` are all files of a run in a store, and of another run those that are
    sealed (see `storage/seals.py`); `status` is how the attempt has ended.
    """

    number: int
    writer: str
    serial: int
    attempt: int
    kind: Kind
    time: float
    checkpoints: tuple[str, ...] = ()
    best: tuple[str, ...] = ()
    files: dict[str, StoredFile] = Field(default_factory=dict)
    status: str | None = None

    @property
    def has_owner(self) -> bool:
        """True where its writer owns the run after it."""
        return self.kind in ("lease", "commit")

    def names(self, kind: str) -> frozenset[str]:
        """Return the names of the checkpoints of a kind (`checkpoints` or `best`) that exist."""
        return frozenset(self.best if kind == "best" else self.checkpoints)


class Log:
    """The entries of one run, in a store.

    Args:
        store: The store.
        prefix: The beginning of the keys of this run's entries.
    """

    def __init__(self, store: Store, prefix: str = FOLDER) -> None:
        self._store = store
        self._prefix = prefix

    def numbers(self) -> list[int]:
        """Return the numbers of the entries, in order.

        Raises:
            CheckpointError: The store cannot be read.
        """
        names = (key.removeprefix(self._prefix) for key in self._store.list(self._prefix))
        return sorted(int(name) for name in names if name.isdecimal())

    def head(self) -> Entry | None:
        """Return the newest entry, or None if there is none.

        Raises:
            DamagedEntryError: It is damaged.
            CheckpointError: The store cannot be read.
        """
        for _ in range(_TRIES):
            numbers = self.numbers()
            if not numbers:
                return None
            with contextlib.suppress(CheckpointError):
                return self.read(numbers[-1])
        return self.read(numbers[-1])

    def read(self, number: int) -> Entry:
        """Return one entry.

        Raises:
            DamagedEntryError: It is damaged.
            CheckpointError: It is not there, or cannot be read.
        """
        content = self._store.get(self._key(number))
        try:
            entry = Entry.parse(content)
        except (ValueError, RecursionError) as error:
            raise DamagedEntryError(number, error) from error
        if entry.number != number:
            raise DamagedEntryError(number, f"it is number {entry.number}")
        return entry

    def write(self, entry: Entry) -> Entry:
        """Write an entry, and return the one that has its number: this one, or the one that was first.

        Raises:
            OSError: It is unknown whether the entry was written: write it, or another of its writer, again.
        """
        try:
            if self._store.put_if_absent(self._key(entry.number), entry.encoded()):
                return entry
        except OSError:
            with contextlib.suppress(CheckpointError):
                return self.read(entry.number)
            raise
        try:
            return self.read(entry.number)
        except CheckpointError as error:  # it was folded, or the store has just gone away
            raise OSError(str(error)) from error

    def is_newest(self, number: int) -> bool:
        """Return whether no entry is newer than this one.

        Raises:
            CheckpointError: The store cannot be read.
        """
        return max(self.numbers(), default=0) <= number

    def fold(self, number: int, numbers: Collection[int]) -> None:
        """Delete those of some entries that an entry has made superfluous.

        What cannot be deleted now is left.
        """
        for old in numbers:
            if old <= number - _KEPT:
                self.delete(old)

    def delete(self, number: int) -> None:
        """Delete an entry that does not count any more; one that cannot be deleted now is left."""
        try:
            self._store.delete(self._key(number))
        except OSError as error:
            log.debug("entry %d of a log is left: %s", number, error)

    def remove(self) -> None:
        """Delete all entries, the newest last.

        Raises:
            OSError: One cannot be deleted.
        """
        for number in self.numbers():
            self._store.delete(self._key(number))

    def _key(self, number: int) -> str:
        return f"{self._prefix}{number:09d}"


def committed(store: Store, kind: str) -> Collection[str] | None:
    """Return the names of the checkpoints of a kind that the log in a run directory says exist.

    None if there is no log, as in an exported run, or it cannot be read: every valid manifest counts.
    """
    head = readable_head(store)
    return None if head is None else head.names(kind)


def readable_head(store: Store) -> Entry | None:
    """Return the newest entry of the log in a run directory; None where `committed` returns that."""
    try:
        return Log(store).head()
    except CheckpointError as error:
        log.warning("%s; every checkpoint with a valid manifest counts", error)
        return None
