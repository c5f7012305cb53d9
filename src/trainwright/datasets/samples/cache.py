"""Files on this machine that are kept for later runs: copies of data in a store, and what is made of data.

They are limited in size, verified by their hashes, and shared by processes.
"""

from __future__ import annotations

import fcntl
import functools
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from trainwright.datasets.samples.threads import THREADS
from trainwright.digest import sha256_bytes, sha256_file, write_file
from trainwright.errors import DataError, InputError
from trainwright.safe_files import make_folders
from trainwright.storage.urls import cache_folder
from trainwright.stores.base import DataStore, Version

LIMIT = "TRAINWRIGHT_DATA_CACHE_GIB"
_DEFAULT_GIB = 50.0
_CONTENT, _RECORD, _LOCK = "content", "record.json", ".lock"
_SLOW = 128 * 1024**2  # bytes that take long enough to say so
_FILES = "files"  # of a tree, whose content is the list of their hashes
_NEW = ".new-"  # folders of downloads that have not ended
log = logging.getLogger("trainwright")


class _Kept(NamedTuple):
    """A file to keep: what names it, what it is in words, what says how large it is, and what fills it.

    `fill` writes the content, and returns what the record says of it.
    """

    identity: str
    what: str
    size: Callable[[], int]
    fill: Callable[[Path], Mapping[str, object]]


_verified: dict[
    Path, list[tuple[int, int, int, int]]
] = {}  # the states of the files of trees that were compared
_in_use: dict[Path, BinaryIO] = {}  # the copies that this process reads, each locked until it ends


class DataCache:
    """A folder with copies of objects; the least recently used ones are deleted to make room.

    Each copy is a folder, named by a hash of what identifies it, with the content and a record of its name,
    size and SHA-256. It gets its name when it is complete, so an interrupted download leaves no copy. A
    process locks the copies that it reads (shared) until it ends, so no other process deletes them. It locks
    the cache (exclusive) to write or to delete, so processes write one at a time.

    Args:
        folder: The folder; created if necessary.
        limit: How many bytes the copies may have together.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit

    def file(self, store: DataStore, key: str, url: str) -> Path:
        """Return the path of a copy of the object as it is now, downloaded if there is none.

        Args:
            store: The store.
            key: The object's key there.
            url: The object's URL.

        Raises:
            CheckpointError: The object does not exist or cannot be read.
            DataError: There is no room for a copy, it cannot be written, or the object changed meanwhile.
        """
        version = store.version(key)

        def download(content: Path) -> Mapping[str, object]:
            log.info("downloading %s (%s)", url, _gib(version.bytes))
            _download(store, key, url, version, content)
            return {"url": url, "version": version.tag}

        return self._path(_Kept(f"{url}\n{version.tag}", url, lambda: version.bytes, download))

    def made(self, identity: str, what: str, size: int, make: Callable[[Path], None]) -> Path:
        """Return the path of a file that is made of data, made if there is none.

        Args:
            identity: What the content depends on.
            what: What it is, for messages.
            size: About how many bytes it has.
            make: Writes it.

        Raises:
            DataError: There is no room for it, or it cannot be written.
        """

        def fill(content: Path) -> Mapping[str, object]:
            log.info("writing %s, which later runs find in %s", what, self._folder)
            make(content)
            return {"what": what}

        return self._path(_Kept(identity, what, lambda: size, fill))

    def tree(self, identity: str, what: str, size: Callable[[], int], make: Callable[[Path], Path]) -> Path:
        """Return the path of a file or a folder of files, made if there is none.

        The files are read-only, and compared with their hashes when a process first uses them.

        Args:
            identity: What the content depends on.
            what: What it is, for messages.
            size: Returns about how many bytes it has; called if it is to be made.
            make: Writes it into an empty folder, and returns its path there.

        Raises:
            DataError: There is no room for it, or it cannot be written.
        """
        size = functools.cache(size)

        def fill(content: Path) -> Mapping[str, object]:
            if size() >= _SLOW:
                log.info("writing %s (%s) to %s", what, _gib(size()), self._folder)
            files = content.with_name(_FILES)
            files.mkdir()
            name = make(files).relative_to(files).as_posix()
            hashes = _tree_hashes(files)
            for path in hashes:
                (files / path).chmod(0o444)
            content.write_bytes(json.dumps(hashes).encode())
            return {"what": what, "name": name, "tree": sum((files / path).stat().st_size for path in hashes)}

        copy = self._path(_Kept(identity, what, size, fill)).parent
        if copy not in _verified:  # it was written now, of contents that were compared
            _verified[copy] = _states(copy)
        return copy / _FILES / str(_record(copy)["name"])

    def found(self, identity: str) -> Path | None:
        """Return the path of a file that was made; None if there is none, or a damaged one."""
        return self._use(self._copy(identity))

    @contextmanager
    def making(self, identity: str) -> Iterator[None]:
        """Let one process at a time find out what to make; others wait until it is made.

        Raises:
            DataError: The folder cannot be used.
        """
        lock = self._folder / f".making-{self._copy(identity).name[:2]}"  # few files, which stay
        try:
            make_folders(self._folder)
            file = lock.open("ab")
        except OSError as error:
            raise DataError(
                f"{self._folder} cannot be used: {error.strerror or error}; set TRAINWRIGHT_CACHE "
                "to another folder"
            ) from error
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _copy(self, identity: str) -> Path:
        return self._folder / sha256_bytes(identity.encode())[:32]

    def _path(self, kept: _Kept) -> Path:
        copy = self._copy(kept.identity)
        try:
            make_folders(self._folder)
            self._folder.chmod(0o700)  # data may be for the user's eyes only
            if (path := self._use(copy)) is not None:
                return path
            with self._locked():
                path = self._use(copy)  # another process may have written it meanwhile
                return path or self._write(kept, copy)
        except OSError as error:
            raise DataError(
                f"{kept.what} cannot be written to {self._folder}: {error.strerror or error}; make room "
                "there, or set TRAINWRIGHT_CACHE to another folder"
            ) from error

    def _use(self, copy: Path) -> Path | None:
        """Lock a copy and return its path, or None if there is none, or a damaged one."""
        path = copy / _CONTENT
        if not _lock_shared(path):
            return None
        if _is_damaged(copy):
            _in_use.pop(path).close()
            return None
        os.utime(copy)  # the time of its last use
        return path

    def _write(self, kept: _Kept, copy: Path) -> Path:
        if copy.exists():
            log.warning("the local copy of %s is damaged: it is replaced", kept.what)
            shutil.rmtree(copy, ignore_errors=True)
        for left in self._folder.glob(f"{_NEW}*"):  # by a process that died: the cache is locked
            shutil.rmtree(left, ignore_errors=True)
        self._make_room(kept.size(), kept.what)
        with tempfile.TemporaryDirectory(prefix=_NEW, dir=self._folder) as folder:
            new = Path(folder) / copy.name
            new.mkdir()
            content = new / _CONTENT
            says = kept.fill(content)
            with open(content, "rb") as file:
                os.fsync(file.fileno())
            size, sha256 = content.stat().st_size, sha256_file(content)
            record = {**says, "copy": copy.name, "bytes": size, "sha256": sha256}
            write_file(new / _RECORD, json.dumps(record).encode())
            new.rename(copy)
        _lock_shared(copy / _CONTENT)
        return copy / _CONTENT

    def _make_room(self, size: int, what: str) -> None:
        """Delete copies that no process uses, the least recently used first, until `size` more bytes fit.

        Raises:
            DataError: They do not fit.
        """
        allowed = f"the local copies of data may take up {_gib(self._limit)} in all; set {LIMIT} to more GiB"
        if size > self._limit:
            raise DataError(f"{what} takes up {_gib(size)}, but {allowed}")
        sizes = {path.parent: _size(path.parent) for path in self._folder.glob(f"*/{_CONTENT}")}
        used = sum(sizes.values())
        for copy in sorted(sizes, key=lambda copy: copy.stat().st_mtime):
            if used + size > self._limit and _delete_unused(copy):
                used -= sizes[copy]
        if used + size > self._limit:
            raise DataError(f"{what} takes up {_gib(size)}, and copies in use {_gib(used)}, but {allowed}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(self._folder / _LOCK, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                log.info("another process is writing data to %s: waiting for it", self._folder)
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _download(store: DataStore, key: str, url: str, version: Version, content: Path) -> None:
    store.download(key, content)
    if content.stat().st_size != version.bytes or store.version(key) != version:
        raise DataError(f"{url} was changed while it was downloaded; try again")


def data_cache() -> DataCache:
    """Return the cache of this machine's user, with the limit of the environment.

    Raises:
        InputError: The limit is not a positive number.
    """
    text = os.environ.get(LIMIT) or str(_DEFAULT_GIB)
    try:
        gib = float(text)
    except ValueError:
        gib = 0.0
    if not 0 < gib < float("inf"):
        raise InputError(f"{LIMIT}: {text!r} is not a number of GiB; for example, give 50")
    return DataCache(cache_folder() / "data", int(gib * 2**30))


def _lock_shared(path: Path) -> bool:
    """Lock a copy until this process ends; return False if there is none (any more)."""
    try:
        file = open(path, "rb")  # noqa: SIM115 - it stays open as long as the copy is used
    except FileNotFoundError:
        return False
    fcntl.flock(file, fcntl.LOCK_SH)
    with suppress(FileNotFoundError):
        if os.path.samestat(os.fstat(file.fileno()), path.stat()):
            before, _in_use[path] = _in_use.get(path), file
            if before is not None:
                before.close()
            return True
    file.close()  # another process has deleted the copy meanwhile
    return False


def _is_damaged(copy: Path) -> bool:
    """Return whether a copy is not what was written, or another one with its name."""
    try:
        record = _record(copy)
        if record["copy"] != copy.name or sha256_file(copy / _CONTENT) != record["sha256"]:
            return True
        return (copy / _FILES).exists() and _has_damaged_files(copy)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):  # the last one of nested JSON
        return True


def _has_damaged_files(copy: Path) -> bool:
    """Return whether files of a tree are not what was written; they are read again only if they changed."""
    states = _states(copy)
    if _verified.get(copy) == states:
        return False
    if _tree_hashes(copy / _FILES) != json.loads((copy / _CONTENT).read_bytes()):
        return True
    _verified[copy] = states
    return False


def _states(copy: Path) -> list[tuple[int, int, int, int]]:
    """Return what changes when a file of a tree does."""
    found = _tree_files(copy / _FILES).values()
    return [(one.st_ino, one.st_size, one.st_mtime_ns, one.st_ctime_ns) for one in found]


def _record(copy: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads((copy / _RECORD).read_bytes())
    return record


def _size(copy: Path) -> int:
    """Return the bytes of a copy: of its content, and of the files of a tree."""
    with suppress(OSError, ValueError):
        return int(_record(copy).get("tree", 0)) + (copy / _CONTENT).stat().st_size
    return 0


def _tree_files(folder: Path) -> dict[Path, os.stat_result]:
    """Return what the file system says of each file below a folder, sorted by path."""
    return {path: path.lstat() for path in sorted(folder.rglob("*")) if not path.is_dir()}


def _tree_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file below a folder, by its path there."""
    paths = list(_tree_files(folder))
    return dict(
        zip(
            (path.relative_to(folder).as_posix() for path in paths),
            THREADS.map(sha256_file, paths),
            strict=True,
        )
    )


def _delete_unused(copy: Path) -> bool:
    """Delete a copy unless a process uses it, and return whether it is gone."""
    with open(copy / _CONTENT, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        shutil.rmtree(copy, ignore_errors=True)
    return True


def _gib(size: int) -> str:
    return f"{size / 2**30:,.3g} GiB"
