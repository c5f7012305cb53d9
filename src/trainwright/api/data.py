"""Keep versions of data beside the runs: add, list, get and delete them."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.config.versions import NAME, REFERENCE
from trainwright.errors import InputError
from trainwright.records.listing import runs_folder
from trainwright.runs.data.leases import holders
from trainwright.storage.urls import store_url
from trainwright.versions.embedded import EmbeddedVersion
from trainwright.versions.embedded.add import in_order
from trainwright.versions.embedded.history import Entry, History
from trainwright.versions.embedded.sweep import sweeping, unneeded

Json = dict[str, Any]
_SHOWN = 5  # runs that a message names


class Swept(NamedTuple):
    """The result of `data_gc`: what it has deleted, or would delete.

    Attributes:
        versions: The versions, as `NAME@VERSION`.
        objects: The number of objects of the store.
        kept: The runs that hold a version which is kept for them, by the version.
    """

    versions: Sequence[str]
    objects: int
    kept: Mapping[str, Sequence[str]]


def data_add(
    path: Path | str,
    name: str | None = None,
    *,
    tag: str | None = None,
    message: str = "",
    runs_dir: Path | str | None = None,
) -> Json:
    """Keep a file or folder as the next version of a data set, and return what `data_show` does, and `new`.

    Content is stored once: a version that differs in one file takes the space of that file. The same content
    as that of the newest version makes no new one.

    Args:
        path: The file or folder.
        name: The name of the data set; default: that of the file, without its ending.
        tag: Another name for the version, which may be given to a later one.
        message: What is said of the version.
        runs_dir: The folder of the runs, which keeps the versions; default `TRAINWRIGHT_RUNS`, or `runs`.

    Raises:
        InputError: The name or tag cannot be used, or the files cannot be read.
        OSError: The store cannot be written.
    """
    if "://" in str(path):
        raise InputError(f"{path}: only files of this machine can be added; a config may name the URL itself")
    path, runs = Path(path).expanduser(), runs_folder(runs_dir)
    if path.is_dir() and runs.resolve().is_relative_to(path.resolve()):
        raise InputError(f"{path} holds the folder of runs, {runs}: put the data into a folder of their own")
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", path.absolute().name.partition(".")[0]) if name is None else name
    if not re.fullmatch(NAME, name):
        raise InputError(f"{name!r} is no name for data: take letters, digits, _ and -; give one with --name")
    if tag is not None and (not REFERENCE.fullmatch(f"{name}@{tag}") or re.fullmatch(r"v?\d+|latest", tag)):
        raise InputError(
            f"{tag!r} is no tag: take letters, digits, '.', _ and -, but not v1, v2 ... or latest"
        )
    versions = _versions(runs_dir)
    entry, is_new = versions.add(path, name, message)
    if tag is not None:
        versions.histories.write(name, lambda history: _tag(history, tag, entry.number))
    return _document(versions.histories.history(name), entry) | {"new": is_new}


def data_log(name: str | None = None, *, runs_dir: Path | str | None = None) -> list[Json]:
    """Return the versions of a data set, or of all, newest first: see `data_show`.

    Those that were deleted have `deleted`: who deleted them, and when.

    Raises:
        InputError: There is no such data set.
    """
    histories = _versions(runs_dir).histories
    chosen = histories.histories() if name is None else [histories.known(name)]
    return [
        _document(history, entry)
        for history in chosen
        for entry in reversed(history.entries)
        if entry.kind == "version"
    ]


def data_show(version: str, *, runs_dir: Path | str | None = None) -> Json:
    """Return size, time, user, message and tags of a version (`churn@v3`), and the runs that hold it.

    Raises:
        InputError: There is no such version.
    """
    versions = _versions(runs_dir)
    pin = versions.resolve({"path": version})
    history = versions.histories.history(pin.revision.partition("@")[0])
    entry = history.version(pin.revision.partition("@")[2])
    return _document(history, entry) | {
        "pin": pin.to_json(),
        "names": list(versions.describe(pin).names),
        "runs": holders(runs_folder(runs_dir)).get(pin.revision, []),
    }


def data_get(version: str, output: Path | str | None = None, *, runs_dir: Path | str | None = None) -> Path:
    """Write the files of a version, compared with their hashes, all or none; return the path.

    Args:
        version: The version, as `NAME@VERSION`.
        output: The file or folder to write, which must not be there; default: the name of the data set.
        runs_dir: The folder of the runs.

    Raises:
        InputError: There is no such version, it is damaged, or the output is there.
        OSError: The output cannot be written.
    """
    versions = _versions(runs_dir)
    pin = versions.resolve({"path": version})
    output = Path(output or pin.file or pin.revision.partition("@")[0]).absolute()
    if os.path.lexists(output):
        raise InputError(f"{output} is there already; give another path, or remove it")
    aside = output.with_name(f".{output.name}.{secrets.token_hex(4)}.tmp")
    aside.mkdir(parents=True)
    try:
        versions.materialise(pin, aside).rename(output)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return output


def data_delete(version: str, *, force: bool = False, runs_dir: Path | str | None = None) -> Json:
    """Delete a version; return it exactly, and the ids of the `runs` that cannot be repeated without it.

    `data_gc` frees its space.

    Args:
        version: The version, as `NAME@VERSION`.
        force: Delete it although runs hold it.
        runs_dir: The folder of the runs.

    Raises:
        InputError: There is no such version, or runs hold it.
    """
    versions = _versions(runs_dir)
    revision = versions.resolve({"path": version}).revision
    runs = holders(runs_folder(runs_dir)).get(revision, [])
    if runs and not force:
        raise InputError(
            f"{revision} is the data of {_some(runs)}, which could not be reproduced without it: delete "
            "these runs first, or add --force"
        )
    _delete(versions, revision, "data delete")
    return {"version": revision, "runs": runs}


def data_gc(
    *, keep: int | None = None, dry_run: bool = False, force: bool = False, runs_dir: Path | str | None = None
) -> Swept:
    """Delete what no version needs: what deleted versions and processes that died have left.

    Args:
        keep: Also delete all but this many of the newest versions of each data set. Versions with tags stay,
            and so do those that runs hold.
        dry_run: Delete nothing.
        force: Delete versions although runs hold them.
        runs_dir: The folder of the runs.

    Raises:
        InputError: Data are added at the moment, or the files of a version are not known.
    """
    versions = _versions(runs_dir)
    surplus = [] if keep is None else list(_surplus(versions, keep))
    held = holders(runs_folder(runs_dir)) if surplus else {}
    kept = {} if force else {one: held[one] for one in surplus if one in held}
    gone = [one for one in surplus if one not in kept]
    if dry_run:
        return Swept(gone, len(unneeded(versions.store, versions.histories, gone)), kept)
    with sweeping(versions.store):
        for revision in gone:
            _delete(versions, revision, "data gc")
        keys = unneeded(versions.store, versions.histories)
        for _ in in_order(versions.store.delete, keys):
            pass
    return Swept(gone, len(keys), kept)


def _surplus(versions: EmbeddedVersion, keep: int) -> Iterator[str]:
    """Yield the versions that are not among the newest of their data set, and have no tag."""
    for history in versions.histories.histories():
        for number in sorted(history.versions)[: -keep or None]:
            if not history.tags_of(number):
                yield f"{history.name}@v{number}"


def _versions(runs_dir: Path | str | None) -> EmbeddedVersion:
    return EmbeddedVersion(store_url(runs_folder(runs_dir)))


def _delete(versions: EmbeddedVersion, revision: str, by: str) -> None:
    name, _, number = revision.partition("@v")

    def deletion(history: History) -> Entry | None:
        is_there = int(number) in history.versions
        return Entry(kind="delete", number=int(number), by=by) if is_there else None

    versions.histories.write(name, deletion)


def _tag(history: History, tag: str, number: int) -> Entry | None:
    is_set = history.tags.get(tag) == number
    return None if is_set else Entry(kind="tag", number=number, tag=tag)


def _document(history: History, entry: Entry) -> Json:
    """Return a version as JSON."""
    deletion = history.deleted.get(entry.number)
    return {
        "version": f"{history.name}@v{entry.number}",
        "name": history.name,
        "number": entry.number,
        "content": entry.content,
        "files": entry.files,
        "bytes": entry.bytes,
        "time": entry.time,
        "user": entry.user,
        "host": entry.host,
        "message": entry.message,
        "tags": history.tags_of(entry.number),
        "deleted": None if deletion is None else deletion.deletion,
    }


def _some(runs: Sequence[str]) -> str:
    more = f" and {len(runs) - _SHOWN} more" if len(runs) > _SHOWN else ""
    return f"run{'s' if len(runs) > 1 else ''} {', '.join(runs[:_SHOWN])}{more}"
