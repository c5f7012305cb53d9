"""Add the content of a file or folder to the store: hashed in parallel, each chunk stored once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from trainwright.digest import sha256_bytes
from trainwright.errors import DataError
from trainwright.process.file_stamps import FileRecord, stamp_of
from trainwright.versions.embedded.chunks import PACK_BYTES, Chunks
from trainwright.versions.embedded.threads import in_order
from trainwright.versions.embedded.tree import (
    CHUNK_BYTES,
    SMALL_BYTES,
    SourceFile,
    TreeFile,
    encode,
)

_TOGETHER = 256  # small files that a thread reads at once


class Added(NamedTuple):
    """The content that was stored: its hash, files and bytes, and the packs that it needs."""

    content: str
    files: int
    bytes: int
    packs: list[str]


class _Part(NamedTuple):
    """A part of the work of a thread: a chunk of a large file, or some small files."""

    files: Sequence[SourceFile]
    start: int = 0


def store_files(files: Sequence[SourceFile], chunks: Chunks, known: FileRecord) -> Added:
    """Store the files that are not there yet, and their list; nothing names it so far.

    Args:
        files: The files.
        chunks: Where they are stored.
        known: The hashes of files that have not changed since they were added before.

    Raises:
        DataError: A file cannot be read, or changes meanwhile.
        OSError: The store cannot be written.
    """
    hashes = {one.path: found for one in files if (found := _stored(one, chunks, known)) is not None}
    new = [one for one in files if one.path not in hashes]
    read: dict[str, list[str]] = {one.path: [] for one in new}
    waiting = _Pack(chunks)
    chunks.stored  # noqa: B018 - read once, before threads ask for them
    for part, contents in in_order(lambda part: _read(part, chunks), _parts(new)):
        for file, (sha256, data) in zip(part.files, contents, strict=True):
            if file.bytes:
                read[file.path].append(sha256)
            if data:
                waiting.add(sha256, data)
    waiting.flush()
    for one in new:
        if _stamp_now(one) != one.stamp:
            raise DataError(f"{one.place} was changed while it was added; try again")
        known.add(one.place, one.stamp, read[one.path])
    tree = [TreeFile(one.path, one.bytes, tuple(hashes.get(one.path) or read[one.path])) for one in files]
    content, stored = encode(tree)
    chunks.put_tree(content, stored)
    small = (one.chunks[0] for one in tree if one.is_small and one.chunks)
    packs = sorted({chunks.packed[sha256].pack for sha256 in small})
    return Added(content, len(tree), sum(one.bytes for one in tree), packs)


def _stored(file: SourceFile, chunks: Chunks, known: FileRecord) -> list[str] | None:
    """Return the hashes of a file that has not changed, and is in the store; else None."""
    found: list[str] | None = known.find(file.place, file.stamp)
    if found is None:
        return None
    there = chunks.packed if file.bytes < SMALL_BYTES else chunks.stored
    return found if all(sha256 in there for sha256 in found) else None


def _parts(files: Iterable[SourceFile]) -> Iterator[_Part]:
    small: list[SourceFile] = []
    size = 0
    for one in files:
        if one.bytes >= SMALL_BYTES:
            yield from (_Part([one], start) for start in range(0, one.bytes, CHUNK_BYTES))
            continue
        small.append(one)
        size += one.bytes
        if size >= CHUNK_BYTES or len(small) == _TOGETHER:
            yield _Part(small)
            small, size = [], 0
    if small:
        yield _Part(small)


def _read(part: _Part, chunks: Chunks) -> list[tuple[str, bytes]]:
    """Read a part; a chunk of a large file is stored, and the contents of small files returned to be packed.

    Returns:
        The hash of each file's chunk, with its bytes if it is to be packed.
    """
    found = []
    for file in part.files:
        data = _bytes_of(file, part.start)
        sha256 = sha256_bytes(data)
        if file.bytes >= SMALL_BYTES:
            chunks.put_chunk(sha256, data)
            data = b""
        found.append((sha256, data))
    return found


def _bytes_of(file: SourceFile, start: int) -> bytes:
    size = min(CHUNK_BYTES, file.bytes - start)
    try:
        descriptor = os.open(file.place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = os.pread(descriptor, size, start)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DataError(f"{file.place} cannot be read: {error.strerror}") from error
    if len(data) != size:
        raise DataError(f"{file.place} was changed while it was added; try again")
    return data


def _stamp_now(file: SourceFile) -> tuple[int, ...] | None:
    try:
        return stamp_of(Path(file.place).stat())
    except OSError:
        return None


class _Pack:
    """Small files that wait until there are enough of them for a pack."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._waiting: dict[str, bytes] = {}
        self._bytes = 0

    def add(self, sha256: str, data: bytes) -> None:
        """Add the content of a file, unless the store has it."""
        if sha256 in self._chunks.packed or sha256 in self._waiting:
            return
        if self._bytes + len(data) > PACK_BYTES:
            self.flush()
        self._waiting[sha256] = data
        self._bytes += len(data)

    def flush(self) -> None:
        """Store what waits."""
        if self._waiting:
            self._chunks.put_pack(self._waiting)
        self._waiting, self._bytes = {}, 0
