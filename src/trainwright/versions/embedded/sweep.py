"""The deletion of what no version needs, while nobody adds: many may add at once, and one may delete.

Each process at work has a mark in the store, and a thread renews it. A process has died if this machine says
so, or if its mark was not renewed for a day: it may have been paused for so long. Others write down for good
that they take it for dead, and it looks for that before it changes what others rely on.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import tempfile
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from trainwright.errors import CheckpointError, DataError
from trainwright.process.machine import machine_id, process_has_ended
from trainwright.stores.base import Store
from trainwright.versions.embedded.chunks import CHUNKS, INDEX, PACKS, TREES, Chunks, chunk_key
from trainwright.versions.embedded.history import Histories

_PROBES = "probe/"  # of `check_store`, in a process that died
_ADDING, _SWEEPING = "busy/add-", "busy/gc-"
_DEAD = "dead/"  # then the key of a mark
_ABANDONED_SECONDS = 86400.0  # after which a mark that was not renewed is that of a dead process
_RENEWED_SECONDS = 600.0
_FORGOTTEN_SECONDS = 90 * 86400.0  # after which a dead process does not come back
_CHECKED_SECONDS = 1.0  # for which a check holds


class Mark:
    """The mark of this process in the store, while it adds or deletes.

    Args:
        store: The store.
        prefix: The beginning of its key.
    """

    def __init__(self, store: Store, prefix: str) -> None:
        self._store = store
        self.key = f"{prefix}{secrets.token_hex(8)}"
        self._checked = time.time()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="renew-mark", daemon=True)
        store.put_if_absent(self.key, _note())
        self._thread.start()

    def check(self) -> None:
        """Make sure that no other process takes this one for dead.

        Raises:
            DataError: One does, and may have deleted what this one stored, or begun to add.
        """
        # The time of day goes on while a machine sleeps.
        if 0 <= time.time() - self._checked < _CHECKED_SECONDS:
            return
        now = time.time()
        if [*self._store.list(f"{_DEAD}{self.key}")]:
            raise DataError(
                "this process was paused for so long that others took it for dead: start it again"
            )
        self._checked = now

    def end(self) -> None:
        """Delete the mark."""
        self._ended.set()
        self._thread.join()
        self._store.delete(self.key)

    def _renew(self) -> None:
        while not self._ended.wait(_RENEWED_SECONDS):
            with suppress(OSError), tempfile.TemporaryDirectory() as folder:
                note = Path(folder) / "note"
                note.write_bytes(_note())
                self._store.put(self.key, note)


def _note() -> bytes:
    host, pid = socket.gethostname(), os.getpid()
    return json.dumps({"host": host, "machine": machine_id("pid"), "pid": pid, "time": time.time()}).encode()


@contextmanager
def adding(store: Store) -> Iterator[Mark]:
    """Keep what is being added from being deleted.

    Raises:
        DataError: Another process deletes at the moment.
    """
    with _busy(store, _ADDING, _SWEEPING, "`data gc` deletes what no version needs") as mark:
        yield mark


@contextmanager
def sweeping(store: Store) -> Iterator[Mark]:
    """Be the only one that changes the store.

    Raises:
        DataError: Another process adds or deletes at the moment.
    """
    with _busy(store, _SWEEPING, "busy/", "data are added or deleted") as mark:
        yield mark


@contextmanager
def _busy(store: Store, prefix: str, others: str, what: str) -> Iterator[Mark]:
    """Mark this process, then look for others: of two that begin at once, at least one sees the other."""
    mark = Mark(store, prefix)
    try:
        for other in [*store.list(others)]:
            if other != mark.key and (found := _living(store, other)) is not None:
                raise DataError(
                    f"{what} on {found['host']} (process {found['pid']}): try again when it has ended"
                )
        yield mark
        mark.check()
    finally:
        mark.end()


def _living(store: Store, key: str) -> dict[str, Any] | None:
    """Return the note of a process that is at work; write down of another one that it is dead."""
    try:
        note: dict[str, Any] = json.loads(store.get(key))
        is_here = note["machine"] == machine_id("pid") != ""
        has_ended = is_here and process_has_ended(str(note["pid"]))
        if not has_ended and abs(time.time() - note["time"]) <= _ABANDONED_SECONDS:
            return {"host": str(note["host"]), "pid": str(note["pid"])}
    except CheckpointError:
        if [*store.list(key)]:
            raise
        return None  # it has ended meanwhile
    except (ValueError, TypeError, KeyError, RecursionError):  # nobody at work wrote this
        has_ended = False
    if not has_ended:
        store.put_if_absent(f"{_DEAD}{key}", _note())
    store.delete(key)
    return None


def forgotten(store: Store) -> Iterator[str]:
    """Yield the keys of what was written down of processes that died long ago."""
    for key in store.list(_DEAD):
        with suppress(CheckpointError, ValueError, TypeError, KeyError, RecursionError):
            if time.time() - json.loads(store.get(key))["time"] <= _FORGOTTEN_SECONDS:
                continue
        yield key


def unneeded(store: Store, histories: Histories, without: Collection[str] = ()) -> list[str]:
    """Return the keys of the objects that no version needs.

    Args:
        store: The store.
        histories: The logs of the data sets.
        without: Versions that do not count, as `NAME@VERSION`.

    Raises:
        DataError: The files of a version are not known, so that nothing may be deleted.
    """
    chunks, needed = Chunks(store), set[str]()
    for history in histories.histories():
        for entry in history.versions.values():
            if f"{history.name}@v{entry.number}" in without:
                continue
            needed |= {f"{TREES}{entry.content}"}
            needed |= {f"{place}{pack}" for pack in entry.packs for place in (PACKS, INDEX)}
            try:
                files = chunks.tree(entry.content)
            except DataError as error:
                raise DataError(
                    f"{history.name}@v{entry.number}: {error}; nothing is deleted, as it is not known what "
                    f"it needs: delete it first (trainwright data delete {history.name}@v{entry.number})"
                ) from error
            needed |= {chunk_key(sha256) for one in files if not one.is_small for sha256 in one.chunks}
    found = (key for prefix in (TREES, CHUNKS, PACKS, INDEX, _PROBES) for key in store.list(prefix))
    return [*(key for key in found if key not in needed), *forgotten(store)]
