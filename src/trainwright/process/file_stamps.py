"""Stamps of files: what changes when a file does, and what may be remembered of a file until then.

Writing through a memory map need not change the times at once: they change when a page is first written after
the system has saved it, which takes up to half a minute; in a file system in memory they never change.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from trainwright.digest import sha256_bytes
from trainwright.safe_files import make_folders, read_regular, write_atomically

Stamp = tuple[int, int, int, int]  # inode, size, times of change of the content and of the file (ns)
_SETTLED_NS = 60_000_000_000
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")


class FileRecord:
    """A file that remembers something of other files, such as their hashes, until they change.

    A file is known as long as its stamp is the same; one that changed so lately that its times would not show
    another change is not kept. A record that was changed by others is not believed.

    Args:
        path: The file, in the user's cache; it need not be there.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._now = time.time_ns()
        self._known = _known_in(path)
        self._is_changed = False

    def find(self, file: str, stamp: Stamp) -> Any:
        """Return what is remembered of a file; None if there is nothing, or it has changed."""
        entry = self._known.get(file)
        return entry[1] if entry is not None and entry[0] == [*stamp] else None

    def add(self, file: str, stamp: Stamp, value: Any) -> None:
        """Remember something of a file that was read after this object was made."""
        before = self._known.pop(file, None)
        if shows_changes(file, stamp[2:], self._now):
            self._known[file] = [[*stamp], value]
        self._is_changed |= self._known.get(file) != before

    def save(self) -> None:
        """Write what is known; without it, the files are only read again."""
        if not self._is_changed:
            return
        text = json.dumps(self._known, separators=(",", ":")).encode()
        with suppress(OSError):
            make_folders(self._path.parent)
            write_atomically(self._path, f"{sha256_bytes(text)}\n".encode() + text)


def _known_in(path: Path) -> dict[str, Any]:
    try:
        sha256, _, text = read_regular(path).partition(b"\n")
        known = json.loads(text) if sha256_bytes(text).encode() == sha256 else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return known if isinstance(known, dict) else {}


def stamp_of(status: os.stat_result) -> Stamp:
    """Return what changes when a file does."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def shows_changes(file: str, times: Sequence[int], now: int) -> bool:
    """Return whether a change of a file would change its times.

    Args:
        file: The file.
        times: Its times of change (ns).
        now: A time before it was read (ns).
    """
    return max(times) < now - _SETTLED_NS and not _is_in_memory(Path(file).stat().st_dev)


@cache
def _is_in_memory(device: int) -> bool:
    """Return whether a file system is in memory, where a memory map need not change the times of a file."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):  # outside Linux
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            if line.split()[2] == number and (kind := re.search(r" - (\S+)", line)) is not None:
                return kind[1] in _IN_MEMORY
    return False
