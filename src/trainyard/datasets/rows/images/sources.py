"""Where images come from: files, bytes in a table, or arrays."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trainyard.datasets.rows.files import available_memory, is_url, read_bytes
from trainyard.datasets.rows.images.pixels import Image, Mode, decode
from trainyard.digest import make_folders, sha256_bytes, write_atomically
from trainyard.errors import DataError
from trainyard.records.urls import cache_folder

log = logging.getLogger("trainyard")
T = TypeVar("T")
S = TypeVar("S")
_SETTLED_NS = 2_000_000_000  # a file that changed so shortly before it was read may change again unseen
_SHARES = 2  # of the work for each thread, so that they end at about the same time
_CACHE_SHARE = 0.5  # of the available memory, for decoded images


class Images(Protocol):
    """Images by position; any thread may read them."""

    names: Sequence[str]  # of the images, for messages and tables

    def image(self, position: int) -> Image:
        """Return an image, (height, width, channels) uint8 or float32 from 0 to 1.

        Raises:
            CorruptImageError: It cannot be decoded.
        """

    def hashes(self, positions: Sequence[int]) -> list[str]:
        """Return the SHA-256 (hex) of the contents of images."""


class Threads:
    """Threads that are started when they are needed, in each process by itself."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._owner = 0
        self._starting = threading.Lock()

    def map(self, function: Callable[[S], T], values: Iterable[S]) -> list[T]:
        """Return the results of a function that may be called by several threads, in order."""
        listed = list(values)
        if len(listed) < 2 or multiprocessing.parent_process() is not None:  # a worker beside others
            return [function(value) for value in listed]
        size = -(-len(listed) // (_SHARES * processors()))
        shares = [listed[start : start + size] for start in range(0, len(listed), size)]
        done = self.pool().map(lambda share: [function(value) for value in share], shares)
        return [result for results in done for result in results]

    def pool(self) -> ThreadPoolExecutor:
        """Return the threads of this process."""
        with self._starting:
            if self._pool is None or self._owner != os.getpid():  # a fork has no threads
                self._pool, self._owner = ThreadPoolExecutor(processors(), "images"), os.getpid()
            return self._pool

    def __getstate__(self) -> dict[str, Any]:
        """Leave the threads behind."""
        return {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin without threads."""
        self.__init__()  # type: ignore[misc]


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


THREADS = Threads()


class FileImages:
    """Image files.

    Args:
        paths: The files: paths or URLs.
        mode: The colours to decode to; None for masks.
    """

    def __init__(self, paths: Sequence[str], mode: Mode | None) -> None:
        self.names = paths
        self._mode = mode

    def image(self, position: int) -> Image:
        """Decode a file; see `Images`."""
        path = self.names[position]
        return decode(_content(path), self._mode, path)

    def hashes(self, positions: Sequence[int]) -> list[str]:
        """Return the hashes of files; those that have not changed since they were hashed are not read."""
        return content_hashes([self.names[position] for position in positions])


class ByteImages:
    """Encoded images in memory, as columns of Parquet files hold them.

    Args:
        contents: The contents of image files.
        names: Their names, for messages.
        mode: The colours to decode to; None for masks.
    """

    def __init__(self, contents: Sequence[bytes], names: Sequence[str], mode: Mode | None) -> None:
        self.names = names
        self._contents = contents
        self._mode = mode

    def image(self, position: int) -> Image:
        """Decode an image; see `Images`."""
        return decode(self._contents[position], self._mode, self.names[position])

    def hashes(self, positions: Sequence[int]) -> list[str]:
        """Return the hashes of the encoded images."""
        return [sha256_bytes(self._contents[position]) for position in positions]


class CachedImages:
    """Images that stay decoded in memory once they were read, up to half of the memory that is available."""

    def __init__(self, images: Images) -> None:
        self.names = images.names
        self._images = images
        self._kept: dict[int, Image] = {}
        self._left = int((available_memory() or 1 << 33) * _CACHE_SHARE)
        self._is_full = False

    def image(self, position: int) -> Image:
        """Return an image; see `Images`."""
        kept = self._kept.get(position)
        if kept is not None:
            return kept
        image = self._images.image(position)
        if image.nbytes <= self._left:
            self._left -= image.nbytes
            self._kept[position] = image
        elif not self._is_full:
            self._is_full = True
            log.info(
                "data.cache: %s images are in memory, and the others are decoded each time: half of the "
                "memory is used",
                f"{len(self._kept):,}",
            )
        return image

    def hashes(self, positions: Sequence[int]) -> list[str]:
        """Return the hashes of the images as they were."""
        return self._images.hashes(positions)


def _content(path: str) -> bytes:
    if is_url(path):
        return read_bytes(path)
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def content_hashes(paths: Sequence[str]) -> list[str]:
    """Return the SHA-256 (hex) of the contents of files.

    They are kept in the user's cache folder, with what the file system says of each file (its number, size
    and times), and computed again where that has changed.
    """
    paths = [path if is_url(path) else str(Path(path).absolute()) for path in paths]
    local = [str(Path(path).parent) for path in paths if not is_url(path)]
    if not local:
        return THREADS.map(lambda path: sha256_bytes(_content(path)), paths)
    root = os.path.commonpath(local)
    record = cache_folder() / "hashes" / f"{sha256_bytes(root.encode())[:32]}.json"
    known = _read_known(record)
    now = time.time_ns()
    hashes = dict(zip(paths, THREADS.map(lambda path: _hashed(path, known), paths), strict=True))
    fresh = {
        path: [*stamp, sha256]
        for path, (stamp, sha256) in hashes.items()
        if stamp is not None and max(stamp[2:]) < now - _SETTLED_NS
    }
    if any(known.get(path) != entry for path, entry in fresh.items()):
        with suppress(OSError):  # without it, the files are only read again
            make_folders(record.parent)
            write_atomically(record, json.dumps({**known, **fresh}).encode())
    return [hashes[path][1] for path in paths]


def _read_known(record: Path) -> dict[str, Any]:
    try:
        known = json.loads(record.read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _hashed(path: str, known: dict[str, Any]) -> tuple[list[int] | None, str]:
    """Return what the file system says of a file (None for a URL), and its hash."""
    if is_url(path):
        return None, sha256_bytes(_content(path))
    stamp = _stamp(path)
    entry = known.get(path)
    if isinstance(entry, list) and entry[:-1] == stamp:
        return stamp, str(entry[-1])
    return stamp, sha256_bytes(_content(path))


def _stamp(path: str) -> list[int]:
    """Return number, size, and times of change of a file; the last one cannot be set by a user."""
    try:
        status = Path(path).stat()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
