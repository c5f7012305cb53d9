"""Shards: files of many samples, in which an index finds each of them.

A shard is read through once: for its SHA-256, and for an index of where its samples are. Both are kept in the
user's cache, the index by the content of the shard, so that it is found again wherever the shard lies. With
the indexes, a set of shards is a map-style data set: its order, its processes and its resume are those of
all others, and nothing has to be read again to go on in the middle.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from trainwright.datasets.samples.file_hashes import hashes_of
from trainwright.datasets.samples.files import existing_file, files_matching
from trainwright.errors import DataError
from trainwright.process.alarms import announced
from trainwright.safe_files import make_folders, write_atomically
from trainwright.storage.urls import cache_folder
from trainwright.types import Array, Ids

log = logging.getLogger("trainwright")
Tables = Mapping[str, Array]
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_CHECKSUM_BYTES = 32  # before the content of a file of the cache
_OPEN_FILES = 256  # further ones are opened for each sample
_SAID_AFTER = 2.0  # seconds


class Indexer(NamedTuple):
    """A maker of indexes: the name of their kind, with a version, and a function of the file."""

    kind: str
    make: Callable[[Path], Tables]


class Shard(NamedTuple):
    """A shard: its name in messages, the file, its SHA-256, and its index."""

    name: str
    path: Path
    sha256: str
    table: Tables


def shard_paths(pattern: str) -> list[str]:
    """Return the paths or URLs that a pattern names: `data-{000..012}.tar`, `*.tar`, or several with `::`.

    Raises:
        DataError: None matches.
    """
    paths: list[str] = []
    for part in (one for several in pattern.split("::") for one in expanded(several)):
        found = files_matching(part) if any(letter in part for letter in "*?[") else [part]
        if not found:
            raise DataError(f"{part}: no file matches this pattern")
        paths += found
    return paths


def expanded(pattern: str) -> Iterator[str]:
    """Yield what a pattern with braces stands for: `{00..12}` is a range, `{a,b}` are alternatives."""
    braces = _BRACES.search(pattern)
    if braces is None:
        yield pattern
        return
    numbers = _RANGE.fullmatch(braces[1])
    values = braces[1].split(",")
    if numbers is not None:
        width = len(numbers[1])
        values = [f"{value:0{width}}" for value in range(int(numbers[1]), int(numbers[2]) + 1)]
    for value in values:
        yield from expanded(pattern[: braces.start()] + value + pattern[braces.end() :])


def open_shards(pattern: str, indexer: Indexer) -> list[Shard]:
    """Return the shards that a pattern names, with their indexes; URLs through the local cache of data.

    Raises:
        DataError: One of them cannot be read, or is damaged.
    """
    paths, shards, began = shard_paths(pattern), list[Shard](), time.monotonic()
    with announced(f"hashing {len(paths):,} shards"):
        files = [existing_file(path, mapped=True) for path in paths]  # which verifies copies of objects, once
        sha256s = hashes_of([str(file) for file in files])
    for number, (path, file, sha256) in enumerate(zip(paths, files, sha256s, strict=True)):
        shards.append(Shard(path, file, sha256, _index(file, sha256, indexer)))
        if time.monotonic() - began > _SAID_AFTER:
            began = time.monotonic()
            log.info("data: %d of %d shards of %s are indexed", number + 1, len(paths), pattern)
    return shards


def _index(file: Path, sha256: str, indexer: Indexer) -> Tables:
    """Return the index of a shard, from the cache if it was made before."""
    kept = cache_folder() / "shards" / f"{indexer.kind}-{sha256}.npz"
    if (data := kept_in_cache(kept)) is not None:
        with suppress(Exception), np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            return dict(arrays)
    index, buffer = indexer.make(file), io.BytesIO()
    np.savez(buffer, allow_pickle=False, **index)
    keep_in_cache(kept, buffer.getvalue())
    return index


def kept_in_cache(path: Path) -> bytes | None:
    """Return what `keep_in_cache` wrote under this name; None if there is nothing, or something else."""
    with suppress(OSError):
        content = path.read_bytes()
        checksum, data = content[:_CHECKSUM_BYTES], content[_CHECKSUM_BYTES:]
        if checksum == _checksum(path, data):
            return data
    return None


def keep_in_cache(path: Path, data: bytes) -> None:
    """Write a file about a shard; without it the shard is read again the next time."""
    try:
        make_folders(path.parent)
        write_atomically(path, _checksum(path, data) + data)
    except OSError as error:
        log.warning(
            "what is known of a shard cannot be kept: %s; set TRAINWRIGHT_CACHE to another folder", error
        )


def _checksum(path: Path, data: bytes) -> bytes:
    """Return the checksum of a file of the cache, which its name is part of: files may change names, too."""
    return hashlib.sha256(path.name.encode() + b"\0" + data).digest()


class ShardFiles:
    """The bytes of samples in shards.

    Args:
        shards: The shards.
        counts: The number of samples in each.
    """

    def __init__(self, shards: Sequence[Shard], counts: Sequence[int]) -> None:
        self.shards = shards
        self._firsts: Ids = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._files: dict[int, int] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._firsts[-1])

    @property
    def files(self) -> dict[str, str]:
        """The SHA-256 of each shard, by its name."""
        return {shard.name: shard.sha256 for shard in self.shards}

    @property
    def sha256s(self) -> list[str]:
        """The SHA-256 of each shard."""
        return [shard.sha256 for shard in self.shards]

    def locate(self, position: int) -> tuple[int, int]:
        """Return in which shard a sample is, and which one it is there.

        Raises:
            IndexError: There is no such sample.
        """
        if not 0 <= position < len(self):
            raise IndexError(f"sample {position} of {len(self)}")
        shard = int(np.searchsorted(self._firsts, position, side="right")) - 1
        return shard, position - int(self._firsts[shard])

    def read(self, shard: int, offset: int, size: int) -> bytes:
        """Return some bytes of a shard; safe from several threads, and in forks.

        Raises:
            DataError: They are not there any more.
        """
        file = self._files.get(shard)
        if file is None:
            file = self._open(shard)
        try:
            data = os.pread(file, size, offset)
        finally:
            if shard not in self._files:
                os.close(file)
        if len(data) != size:
            raise DataError(
                f"{self.shards[shard].name} has become shorter since it was indexed; start the run again"
            )
        return data

    def _open(self, shard: int) -> int:
        file = os.open(self.shards[shard].path, os.O_RDONLY)
        with self._lock:
            if len(self._files) < _OPEN_FILES and shard not in self._files:
                self._files[shard] = file
                return file
        return file
