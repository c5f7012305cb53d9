"""Hash files, and remember the hashes in the user's cache as long as the files do not change.

A file has changed if its inode, size or times have. The hash of a file is not remembered if its times would
not show a change, as `process.file_stamps` says.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from trainwright.datasets.samples.files import existing_file, is_url
from trainwright.datasets.samples.threads import THREADS
from trainwright.digest import sha256_bytes, sha256_file
from trainwright.errors import DataError
from trainwright.process.file_stamps import FileRecord, Stamp, shows_changes, stamp_of
from trainwright.storage.urls import cache_folder

_reads_again = ContextVar("reads_again", default=False)  # of this thread: ignore what is remembered
_LARGE = 64 * 1024**2  # bytes


def hashes_of(paths: Sequence[str]) -> list[str]:
    """Return the SHA-256 (hex) of the contents of files; those at URLs through the local cache of data.

    Raises:
        DataError: A file does not exist or cannot be read.
    """
    if not paths:
        return []
    files = [str(existing_file(path, mapped=True).absolute()) for path in paths]
    root = os.path.commonpath([str(Path(file).parent) for file in files])
    name = sha256_bytes(root.encode(errors="surrogateescape"))[:32]
    record = FileRecord(cache_folder() / "hashes" / f"{name}.json")
    reads = _reads_again.get()
    each = map if len(files) == 1 else THREADS.map
    found = dict(zip(files, each(lambda file: _hashed(file, None if reads else record), files), strict=True))
    for file, (stamp, sha256) in found.items():
        record.add(file, stamp, sha256)
    record.save()
    return [found[file][1] for file in files]


def hash_of(path: str) -> str:
    """Return the SHA-256 (hex) of a file's content; that of a large file is remembered.

    Raises:
        OSError: It cannot be read.
    """
    if os.stat(path).st_size < _LARGE:  # noqa: PTH116 - it may be a folder
        return sha256_file(Path(path))
    try:
        return hashes_of([path])[0]
    except DataError as error:
        raise OSError(str(error)) from error


@contextmanager
def reading_again() -> Iterator[None]:
    """Let `hashes_of` read every file in this thread, whatever is remembered of it."""
    token = _reads_again.set(True)
    try:
        yield
    finally:
        _reads_again.reset(token)


class _State(NamedTuple):
    """The state of a file at one time; `sha256` where its times would not show a change."""

    stamp: Stamp
    sha256: str | None


class FilesRead:
    """The files that samples are read from during a training, and how they were at its beginning.

    A file that is changed and put back has other times; so has a folder above it that is renamed, and a link
    on the way that leads elsewhere for a while. Where the times cannot show a change, contents are compared,
    which does not show one that was undone.

    Args:
        paths: The files. Copies of objects in a store are left out: nobody else writes to them.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        files = dict.fromkeys(os.path.abspath(path) for path in paths if not is_url(path))  # noqa: PTH100
        now = time.time_ns()
        self._files = dict(zip(files, THREADS.map(lambda file: _state(file, now), files), strict=True))
        found = dict.fromkeys(str(Path(file).parent) for file in files)
        linked = [file for file in files if os.path.islink(file)]  # noqa: PTH114
        self._links = {link: _link_times(link) for link in _links([*found, *linked])}
        above = [Path(one) for folder in found for one in (folder, os.path.realpath(folder))]
        folders = dict.fromkeys(parent for one in above for parent in (one, *one.parents))
        self._folders = {folder: _times(folder) for folder in folders}

    def changed(self) -> list[str]:
        """Return the files and folders that have changed since, sorted."""
        files = THREADS.map(lambda file: file if _has_changed(file, self._files[file]) else "", self._files)
        folders = [str(one) for one, times in self._folders.items() if _is_renamed(times, _times(one))]
        links = [link for link, times in self._links.items() if times != _link_times(link)]
        return sorted({*filter(None, files), *folders, *links})


def _hashed(file: str, record: FileRecord | None) -> tuple[Stamp, str]:
    """Return what the file system says of a file, and its hash, which a record may know."""
    try:
        stamp = stamp_of(Path(file).stat())
        known = None if record is None else record.find(file, stamp)
        return stamp, sha256_file(Path(file)) if known is None else str(known)
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from error


def _state(file: str, now: int) -> _State | None:
    """Return the state of a file; None if it cannot be read."""
    with suppress(OSError):
        stamp = stamp_of(Path(file).stat())
        return _State(stamp, None if shows_changes(file, stamp[2:], now) else sha256_file(Path(file)))
    return None


def _has_changed(file: str, before: _State | None) -> bool:
    try:
        if before is None or stamp_of(Path(file).stat()) != before.stamp:
            return True
        return before.sha256 is not None and sha256_file(Path(file)) != before.sha256
    except OSError:
        return True


def _times(folder: Path) -> list[int]:
    """Return the stamp of a folder, and who may use it; empty if it cannot be read."""
    with suppress(OSError):
        status = folder.stat()
        return [*stamp_of(status), status.st_mode, status.st_uid, status.st_gid]
    return []


def _links(paths: Sequence[str]) -> Iterator[str]:
    """Yield the symbolic links on the way to files, those in the targets of links among them."""
    waiting, seen = [*paths], set[str]()
    while waiting:
        one = Path(waiting.pop())
        for part in (one, *one.parents):
            name = str(part)
            if name not in seen and part.is_symlink():
                yield name
                waiting.append(os.path.join(part.parent, part.readlink()))  # noqa: PTH118
            seen.add(name)


def _link_times(link: str) -> list[int]:
    with suppress(OSError):
        status = os.lstat(link)
        return [status.st_ino, status.st_mtime_ns, status.st_ctime_ns]
    return []


def _is_renamed(before: Sequence[int], now: Sequence[int]) -> bool:
    """Return whether a folder was replaced or renamed: its ctime has changed, but its mtime has not.

    So has that of a folder which others may use now.
    """
    if before[:1] != now[:1]:
        return True
    return before[2:3] == now[2:3] and before[3:4] != now[3:4] and before[4:] == now[4:]
