"""Keep versions of data beside the runs: add, list, get and delete them."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.config.versions import NAME, REFERENCE
from trainwright.errors import DataError, InputError
from trainwright.records.listing import runs_folder
from trainwright.runs.data.pin_holders import holders
from trainwright.storage.urls import store_url
from trainwright.versions.embedded import EmbeddedVersion
from trainwright.versions.embedded.history import Entry, Histories, History
from trainwright.versions.embedded.sweep import sweeping, unneeded
from trainwright.versions.embedded.threads import in_order

Json = dict[str, Any]
_SHOWN = 5  # runs that a message names
_ASIDE = "trainwright-get"  # the ending of a folder that `data_get` writes to
log = logging.getLogger("trainwright")


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
    """Keep a file or folder as the next version of a data set, and return it as `data_log` does, with `new`.

    Content is stored once: a version that differs in one file takes the space of that file. The same content
    as that of the newest version makes no new one.

    Args:
        path: The file or folder.
        name: The name of the data set; default: that of the file, without its ending.
        tag: Another name for the version, which may be given to a later one.
        message: A note on the version.
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
    if tag is not None:
        _check_tag(tag)
    versions = _versions(runs_dir)
    entry, is_new = versions.add(path, name, message)
    if tag is not None:
        versions.histories.write(name, lambda history: _tag(history, tag, entry.number))
    return _document(versions.histories.history(name), entry) | {"new": is_new}


def data_tag(version: str, tag: str, *, runs_dir: Path | str | None = None) -> Json:
    """Give a version that is there another name, which a later one may get; return it as `data_log` does.

    Args:
        version: The version, as `NAME@VERSION`.
        tag: The name.
        runs_dir: The folder of the runs.

    Raises:
        InputError: There is no such version, or the tag cannot be used.
    """
    _check_tag(tag)
    versions = _versions(runs_dir)
    history, entry = _there(versions, version)
    versions.histories.write(history.name, lambda history: _tag(history, tag, entry.number))
    return _document(versions.histories.history(history.name), entry)


def data_log(name: str | None = None, *, runs_dir: Path | str | None = None) -> list[Json]:
    """Return the versions of a data set, or of all, newest first: `version`, `content`, `files`, `bytes` ...

    Those that were deleted have `deleted`: who deleted them, and when. Of all data sets, those whose log is
    damaged are left out with a warning.

    Raises:
        InputError: There is no such data set.
    """
    histories = _versions(runs_dir).histories
    chosen = _readable(histories) if name is None else [histories.known(name)]
    return [
        _document(history, entry)
        for history in chosen
        for entry in reversed(history.entries)
        if entry.kind == "version"
    ]


def data_show(version: str, *, runs_dir: Path | str | None = None) -> Json:
    """Return a version (`churn@v3`) as `data_log` does, with its `pin`, `names` of files, and `runs` with it.

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
        "runs": _holding(history, entry, holders(runs_folder(runs_dir))),
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
    with _aside(output) as folder:
        versions.materialise(pin, folder).rename(output)
    return output


@contextmanager
def _aside(output: Path) -> Iterator[Path]:
    """Make a folder beside an output; delete it at the end, and those that killed processes have left."""
    output.parent.mkdir(parents=True, exist_ok=True)
    ours = re.compile(rf"\.{re.escape(output.name)}\.[0-9a-f]{{8}}\.{_ASIDE}")
    for left in [path for path in output.parent.iterdir() if ours.fullmatch(path.name)]:
        with suppress(OSError), _locked(left):
            shutil.rmtree(left)
    folder = output.with_name(f".{output.name}.{secrets.token_hex(4)}.{_ASIDE}")
    folder.mkdir()
    try:
        with _locked(folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder against other processes that delete what is left.

    Raises:
        OSError: Another process has locked it, or it is no folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def data_delete(version: str, *, force: bool = False, runs_dir: Path | str | None = None) -> Json:
    """Delete a version; return it exactly, and the ids of the `runs` that hold it.

    `same` is another version of the same content: without one, these runs cannot be reproduced any more.
    `data_gc` frees its space.

    Args:
        version: The version, as `NAME@VERSION`.
        force: Delete it although runs hold it.
        runs_dir: The folder of the runs.

    Raises:
        InputError: There is no such version, or runs hold it.
    """
    versions = _versions(runs_dir)
    versions.resolve({"path": version})
    with sweeping(versions.store):
        history, entry = _there(versions, version)
        revision = f"{history.name}@v{entry.number}"
        runs = _holding(history, entry, holders(runs_folder(runs_dir)))
        if runs and not force:
            raise InputError(
                f"{revision} is the data of {_some(runs)}, which could not be reproduced without it: delete "
                "these runs first, or add --force"
            )
        _delete(versions, revision, "data delete")
    same = next((f"{history.name}@v{one.number}" for one in reversed(history.same_as(entry))), None)
    return {"version": revision, "runs": runs, "same": same}


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
    if dry_run:
        gone, kept = _surplus(versions, keep, runs_folder(runs_dir), force=force)
        return Swept(gone, len(unneeded(versions.store, versions.histories, gone)), kept)
    with sweeping(versions.store) as mark:
        gone, kept = _surplus(versions, keep, runs_folder(runs_dir), force=force)
        for revision in gone:
            _delete(versions, revision, "data gc")
        keys = unneeded(versions.store, versions.histories)

        def delete(key: str) -> None:
            mark.check()
            versions.store.delete(key)

        for _ in in_order(delete, keys):
            pass
    return Swept(gone, len(keys), kept)


def _surplus(
    versions: EmbeddedVersion, keep: int | None, runs: Path, *, force: bool
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the versions to delete, and the runs that hold others which would be deleted, by the version.

    Those are the ones that are not among the newest of their data set, and have no tag.
    """
    if keep is None:
        return [], {}
    gone, kept, held = list[str](), dict[str, list[str]](), holders(runs)
    for history in versions.histories.histories():
        for number in sorted(history.versions)[:-keep]:
            if history.tags_of(number):
                continue
            revision = f"{history.name}@v{number}"
            if not force and (found := _holding(history, history.versions[number], held)):
                kept[revision] = found
            else:
                gone.append(revision)
    return gone, kept


def _holding(history: History, entry: Entry, held: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the runs that hold a version, those of deleted ones with the same content among them."""
    same = (
        one.number
        for one in history.entries
        if one.kind == "version" and (one.content, one.file) == (entry.content, entry.file)
    )
    numbers = dict.fromkeys(one for one in same if one == entry.number or one in history.deleted)
    return [run for number in numbers for run in held.get(f"{history.name}@v{number}", ())]


def _there(versions: EmbeddedVersion, version: str) -> tuple[History, Entry]:
    """Return the log of a data set, and a version that was not deleted.

    Raises:
        DataError: There is none.
    """
    name, _, revision = versions.resolve({"path": version}).revision.partition("@")
    history = versions.histories.known(name)
    entry = history.version(revision)
    if (deletion := history.deleted.get(entry.number)) is not None:
        raise DataError(f"{name}@{revision} {deletion.deletion}")
    return history, entry


def _readable(histories: Histories) -> Iterator[History]:
    """Yield the logs of all data sets but damaged ones, of which a warning says so."""
    for name in histories.names():
        try:
            yield histories.history(name)
        except DataError as error:
            log.warning("%s is left out: %s", name, error)


def _check_tag(tag: str) -> None:
    """Refuse a tag that could not be written in a reference.

    Raises:
        InputError: It could not.
    """
    if not REFERENCE.fullmatch(f"x@{tag}") or re.fullmatch(r"v?\d+|latest", tag):
        raise InputError(
            f"{tag!r} is no tag: take letters, digits, '.', _ and -, but not v1, v2 ... or latest"
        )


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
