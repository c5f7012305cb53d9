"""The files of a version: a list of paths, sizes and hashes, whose own hash names the content."""

from __future__ import annotations

import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.digest import sha256_bytes
from trainwright.errors import DataError
from trainwright.process.file_stamps import Stamp, stamp_of

CHUNK_BYTES = 4 << 20  # part of what the hash of a content means
SMALL_BYTES = 1 << 20  # a file below this is one chunk, and lies in a pack
FILE_STEM = "data"  # of the one file of a version, whose own name does not count; its ending does
_SHA256 = re.compile(r"[0-9a-f]{64}")


class TreeFile(NamedTuple):
    """A file of a version: its path in the folder, its size, and the SHA-256 of each 4 MiB of it."""

    path: str
    bytes: int
    chunks: tuple[str, ...]

    @property
    def is_small(self) -> bool:
        """True if it lies in a pack."""
        return self.bytes < SMALL_BYTES


class SourceFile(NamedTuple):
    """A file to add: its path in the version, where it is, and what the file system says of it."""

    path: str
    place: str
    stamp: Stamp

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.stamp[1]


def encode(files: Sequence[TreeFile]) -> tuple[str, bytes]:
    """Return the hash of a content, and its list of files as it is stored."""
    text = json.dumps(sorted(files), separators=(",", ":"), ensure_ascii=False).encode()
    stored = zlib.compress(text, 1)
    return sha256_bytes(text), stored if len(text) <= _largest(stored) else zlib.compress(text, 0)


def _largest(stored: bytes) -> int:
    """Return the bytes that a list may have: a short crafted one must not fill the memory."""
    return 32 * len(stored) + 2**20


def decode(content: str, stored: bytes) -> list[TreeFile]:
    """Return the files of a content.

    Raises:
        DataError: It is damaged, or names files outside of its folder.
    """
    damaged = f"the list of files {content[:12]} is damaged"
    try:
        unpacking = zlib.decompressobj()
        text = unpacking.decompress(stored, _largest(stored))
        if not unpacking.eof:
            raise DataError(f"{damaged}: it is cut off, or too large")
        if sha256_bytes(text) != content:
            raise DataError(f"{damaged}: its hash is another one")
        files = [_file(*one) for one in json.loads(text)]
    except (zlib.error, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{damaged}: {error}") from error
    for one in files:
        _check(one)
    paths = {one.path for one in files}
    if len(paths) != len(files):
        raise DataError("the list of files names a file twice")
    folders = set[str]()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    if folders & paths:
        raise DataError("the list of files names a file as a folder, too")
    return files


def _file(path: Any, size: Any, chunks: Any) -> TreeFile:
    """Return a file of a list, whose values may be of any type.

    Raises:
        TypeError, ValueError: They are not those of a file.
    """
    if type(path) is not str or type(size) is not int or type(chunks) is not list or size < 0:
        raise TypeError("a file needs a path, a size and a list of hashes")
    if not all(type(one) is str for one in chunks):
        raise TypeError("a hash is text")
    path.encode()  # a lone surrogate is no name of a file
    return TreeFile(path, size, tuple(chunks))


def _check(file: TreeFile) -> None:
    """Refuse a file that would be written outside of its folder: anyone may have made the list.

    Raises:
        DataError: It would be, or its chunks do not fit its size.
    """
    parts = file.path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in file.path or os.path.isabs(file.path):  # noqa: PTH117
        raise DataError(
            f"the list of files names {file.path!r}, which leads out of its folder: it is refused"
        )
    if len(file.chunks) != -(-file.bytes // CHUNK_BYTES) or not all(map(_SHA256.fullmatch, file.chunks)):
        raise DataError(f"the list of files is damaged: the chunks of {file.path} do not fit its size")


def sources(path: Path, ending: str) -> list[SourceFile]:
    """Return the files of a folder, or the one file, sorted by their paths.

    Args:
        path: The file or folder.
        ending: The ending of the file.

    Raises:
        DataError: There is none, or one is a link out of the folder, or no regular file.
    """
    try:
        root = path.resolve(strict=True)
        if not root.is_dir():
            return [_source(f"{FILE_STEM}{ending}", root, root.stat())]
        found = sorted(_below(root, root, ""))
    except OSError as error:
        raise DataError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error
    if not found:
        raise DataError(f"{path} has no files: there is nothing to add")
    return found


def _below(root: Path, folder: Path, prefix: str) -> Iterator[SourceFile]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = f"{prefix}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                yield from _below(root, Path(entry.path), f"{path}/")
            elif entry.is_symlink():
                yield _linked(root, Path(entry.path), path)
            else:
                yield _source(path, Path(entry.path), entry.stat(follow_symlinks=False))


def _linked(root: Path, place: Path, path: str) -> SourceFile:
    """Return the file that a link in the folder leads to, inside the folder."""
    target = place.resolve()
    if not target.is_file() or not target.is_relative_to(root):
        raise DataError(f"{place} is a link to {target}, which is no file in the folder; put the file there")
    return _source(path, target, target.stat())


def _source(path: str, place: Path, status: os.stat_result) -> SourceFile:
    if not stat.S_ISREG(status.st_mode):
        raise DataError(f"{place} is no regular file, and cannot be added")
    try:
        path.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{os.fsencode(place)!r}: the name is not in UTF-8; rename the file") from error
    return SourceFile(path, str(place), stamp_of(status))
