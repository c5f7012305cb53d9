"""Add the content of a file or folder to the store: hashed in parallel, each piece stored once."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar

from trainwright.digest import sha256_bytes
from trainwright.errors import DataError
from trainwright.versions.embedded.known_files import KnownFiles
from trainwright.versions.embedded.pieces import PACK_BYTES, Pieces
from trainwright.versions.embedded.tree import (
    PIECE_BYTES,
    SMALL_BYTES,
    SourceFile,
    TreeFile,
    encode,
    stamp_of,
)

T = TypeVar("T")
S = TypeVar("S")
_THREADS = max(2, min(8, os.cpu_count() or 1))
_AHEAD = 2 * _THREADS  # parts that are read before they are needed, each of a piece's size at most
_TOGETHER = 256  # small files that a thread reads at once


class Added(NamedTuple):
    """The content that was stored: its hash, files and bytes, and the packs that it needs."""

    content: str
    files: int
    bytes: int
    packs: list[str]


class _Part(NamedTuple):
    """A part of the work of a thread: a piece of a large file, or some small files."""

    files: Sequence[SourceFile]
    start: int = 0


def store_files(files: Sequence[SourceFile], pieces: Pieces, known: KnownFiles) -> Added:
    """Store the files that are not there yet, and their list; nothing names it so far.

    Args:
        files: The files.
        pieces: Where they are stored.
        known: The hashes of files that have not changed since they were added before.

    Raises:
        DataError: A file cannot be read, or changes meanwhile.
        OSError: The store cannot be written.
    """
    hashes = {one.path: found for one in files if (found := _stored(one, pieces, known)) is not None}
    new = [one for one in files if one.path not in hashes]
    read: dict[str, list[str]] = {one.path: [] for one in new}
    waiting = _Pack(pieces)
    pieces.chunks  # noqa: B018 - read once, before threads ask for them
    for part, contents in in_order(lambda part: _read(part, pieces), _parts(new)):
        for file, (sha256, data) in zip(part.files, contents, strict=True):
            if file.bytes:
                read[file.path].append(sha256)
            if data:
                waiting.add(sha256, data)
    waiting.flush()
    for one in new:
        if _stamp_now(one) != one.stamp:
            raise DataError(f"{one.place} was changed while it was added; try again")
        known.add(one, read[one.path])
    tree = [TreeFile(one.path, one.bytes, tuple(hashes.get(one.path) or read[one.path])) for one in files]
    content, stored = encode(tree)
    pieces.put_tree(content, stored)
    small = (one.pieces[0] for one in tree if one.is_small and one.pieces)
    packs = sorted({pieces.packed[sha256].pack for sha256 in small})
    return Added(content, len(tree), sum(one.bytes for one in tree), packs)


def _stored(file: SourceFile, pieces: Pieces, known: KnownFiles) -> list[str] | None:
    """Return the hashes of a file that has not changed, and is in the store; else None."""
    if (found := known.find(file)) is None:
        return None
    there = pieces.packed if file.bytes < SMALL_BYTES else pieces.chunks
    return found if all(sha256 in there for sha256 in found) else None


def _parts(files: Iterable[SourceFile]) -> Iterator[_Part]:
    small: list[SourceFile] = []
    size = 0
    for one in files:
        if one.bytes >= SMALL_BYTES:
            yield from (_Part([one], start) for start in range(0, one.bytes, PIECE_BYTES))
            continue
        small.append(one)
        size += one.bytes
        if size >= PIECE_BYTES or len(small) == _TOGETHER:
            yield _Part(small)
            small, size = [], 0
    if small:
        yield _Part(small)


def _read(part: _Part, pieces: Pieces) -> list[tuple[str, bytes]]:
    """Read a part; a piece of a large file is stored, and the contents of small files returned to be packed.

    Returns:
        The hash of each file's piece, with its bytes if it is to be packed.
    """
    found = []
    for file in part.files:
        data = _bytes_of(file, part.start)
        sha256 = sha256_bytes(data)
        if file.bytes >= SMALL_BYTES:
            pieces.put_chunk(sha256, data)
            data = b""
        found.append((sha256, data))
    return found


def _bytes_of(file: SourceFile, start: int) -> bytes:
    size = min(PIECE_BYTES, file.bytes - start)
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

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._waiting: dict[str, bytes] = {}
        self._bytes = 0

    def add(self, sha256: str, data: bytes) -> None:
        """Add the content of a file, unless the store has it."""
        if sha256 in self._pieces.packed or sha256 in self._waiting:
            return
        if self._bytes + len(data) > PACK_BYTES:
            self.flush()
        self._waiting[sha256] = data
        self._bytes += len(data)

    def flush(self) -> None:
        """Store what waits."""
        if self._waiting:
            self._pieces.put_pack(self._waiting)
        self._waiting, self._bytes = {}, 0


def in_order(function: Callable[[S], T], values: Iterable[S]) -> Iterator[tuple[S, T]]:
    """Yield each value with the result of a function, which threads compute a little ahead."""
    with ThreadPoolExecutor(_THREADS) as pool:
        ahead: deque[tuple[S, Future[T]]] = deque()
        try:
            for value in values:
                ahead.append((value, pool.submit(function, value)))
                if len(ahead) > _AHEAD:
                    first, future = ahead.popleft()
                    yield first, future.result()
            while ahead:
                first, future = ahead.popleft()
                yield first, future.result()
        finally:
            pool.shutdown(cancel_futures=True)
