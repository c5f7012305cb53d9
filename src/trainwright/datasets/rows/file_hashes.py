"""The SHA-256 of files, remembered in the user's cache as long as the files do not change.

What the file system says of a file (its number, size and times) tells whether it has. A file that changed
within the last seconds may change again without another time, so its hash is not remembered.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainwright.datasets.rows.files import existing_file
from trainwright.datasets.rows.threads import THREADS
from trainwright.digest import make_folders, sha256_bytes, sha256_file, write_atomically
from trainwright.errors import DataError
from trainwright.records.urls import cache_folder

_SETTLED_NS = 2_000_000_000
Stamp = list[int]


def hashes_of(paths: Sequence[str]) -> list[str]:
    """Return the SHA-256 (hex) of the contents of files; those at URLs through the local cache of data.

    Raises:
        DataError: A file does not exist or cannot be read.
    """
    if not paths:
        return []
    files = [str(existing_file(path, mapped=True).absolute()) for path in paths]
    root = os.path.commonpath([str(Path(file).parent) for file in files])
    record = cache_folder() / "hashes" / f"{sha256_bytes(root.encode(errors='surrogateescape'))[:32]}.json"
    known, now = _read(record), time.time_ns()
    found = dict(zip(files, THREADS.map(lambda file: _hashed(file, known), files), strict=True))
    fresh = {
        file: [*stamp, sha256]
        for file, (stamp, sha256) in found.items()
        if max(stamp[2:]) < now - _SETTLED_NS
    }
    if any(known.get(file) != entry for file, entry in fresh.items()):
        with suppress(OSError):  # without it, the files are only read again
            make_folders(record.parent)
            write_atomically(record, json.dumps({**known, **fresh}).encode())
    return [found[file][1] for file in files]


def _read(record: Path) -> dict[str, Any]:
    try:
        known = json.loads(record.read_bytes())
    except (OSError, ValueError, RecursionError):  # the last one of nested JSON
        return {}
    return known if isinstance(known, dict) else {}


def _hashed(file: str, known: dict[str, Any]) -> tuple[Stamp, str]:
    """Return what the file system says of a file, and its hash."""
    try:
        status = Path(file).stat()
        stamp = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        entry = known.get(file)
        if isinstance(entry, list) and entry[:-1] == stamp:
            return stamp, str(entry[-1])
        return stamp, sha256_file(Path(file))
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror or error}") from error
