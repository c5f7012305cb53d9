"""The deletion of what no version needs, while nobody adds: many may add at once, and one may delete."""

from __future__ import annotations

import json
import os
import secrets
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from trainwright.errors import CheckpointError, DataError
from trainwright.process.machine import machine_id, process_has_ended
from trainwright.stores.base import Store
from trainwright.versions.embedded.history import Histories
from trainwright.versions.embedded.pieces import CHUNKS, INDEX, PACKS, TREES, Pieces, chunk_key

_PROBES = "probe/"  # of `check_store`, in a process that died
_ADDING, _SWEEPING = "busy/add-", "busy/gc-"
_ABANDONED_SECONDS = 86400.0  # after which a process of another machine counts as dead


@contextmanager
def adding(store: Store) -> Iterator[None]:
    """Keep what is being added from being deleted.

    Raises:
        DataError: Another process deletes at the moment.
    """
    with _busy(store, _ADDING, _SWEEPING, "`data gc` deletes what no version needs"):
        yield


@contextmanager
def sweeping(store: Store) -> Iterator[None]:
    """Be the only one that changes the store.

    Raises:
        DataError: Another process adds or deletes at the moment.
    """
    with _busy(store, _SWEEPING, "busy/", "data are added or deleted"):
        yield


@contextmanager
def _busy(store: Store, prefix: str, others: str, what: str) -> Iterator[None]:
    """Note that this process is at work, then look for others: of two that begin at once, one sees it."""
    key = f"{prefix}{secrets.token_hex(8)}"
    note = {
        "host": socket.gethostname(),
        "machine": machine_id("pid"),
        "pid": os.getpid(),
        "time": time.time(),
    }
    store.put_if_absent(key, json.dumps(note).encode())
    try:
        for other in [*store.list(others)]:
            if other != key and (found := _living(store, other)) is not None:
                raise DataError(
                    f"{what} on {found['host']} (process {found['pid']}): try again when it has ended"
                )
        yield
    finally:
        store.delete(key)


def _living(store: Store, key: str) -> dict[str, Any] | None:
    """Return the note of a process that is at work; delete that of one that died."""
    with suppress(CheckpointError, ValueError):  # it has ended meanwhile
        note: dict[str, Any] = json.loads(store.get(key))
        is_here = note["machine"] == machine_id("pid") != ""
        is_dead = (
            process_has_ended(str(note["pid"]))
            if is_here
            else time.time() - note["time"] > _ABANDONED_SECONDS
        )
        if not is_dead:
            return note
        store.delete(key)
    return None


def unneeded(store: Store, histories: Histories, without: Collection[str] = ()) -> list[str]:
    """Return the keys of the objects that no version needs.

    Args:
        store: The store.
        histories: The logs of the data sets.
        without: Versions that do not count, as `NAME@VERSION`.

    Raises:
        DataError: The files of a version are not known, so that nothing may be deleted.
    """
    pieces, needed = Pieces(store), set[str]()
    for history in histories.histories():
        for entry in history.versions.values():
            if f"{history.name}@v{entry.number}" in without:
                continue
            needed |= {f"{TREES}{entry.content}"}
            needed |= {f"{place}{pack}" for pack in entry.packs for place in (PACKS, INDEX)}
            try:
                files = pieces.tree(entry.content)
            except DataError as error:
                raise DataError(
                    f"{history.name}@v{entry.number}: {error}; nothing is deleted, as it is not known what "
                    f"it needs: delete it first (trainwright data delete {history.name}@v{entry.number})"
                ) from error
            needed |= {chunk_key(sha256) for one in files if not one.is_small for sha256 in one.pieces}
    found = (key for prefix in (TREES, CHUNKS, PACKS, INDEX, _PROBES) for key in store.list(prefix))
    return [key for key in found if key not in needed]
