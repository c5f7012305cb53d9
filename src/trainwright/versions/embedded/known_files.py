"""The hashes of files that were added before: a file that has not changed since is not read again."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainwright.digest import sha256_bytes
from trainwright.process.file_stamps import shows_changes
from trainwright.safe_files import make_folders, read_regular, write_atomically
from trainwright.storage.urls import cache_folder
from trainwright.versions.embedded.tree import SourceFile


class KnownFiles:
    """A file of the user's cache with the hashes of the files of one folder.

    A file is known as long as its inode, size and times are the same; one that changed so lately that they
    would not show another change is not kept.

    Args:
        root: The folder or file that is added.
    """

    def __init__(self, root: Path) -> None:
        name = sha256_bytes(str(root.resolve()).encode(errors="surrogateescape"))[:32]
        self._file = cache_folder() / "hashes" / f"chunks-{name}.json"
        self._known = self._load()
        self._now = time.time_ns()
        self._is_changed = False

    def find(self, file: SourceFile) -> list[str] | None:
        """Return the hashes of the chunks of a file that has not changed; None for one that may have."""
        entry = self._known.get(file.path)
        return entry[1] if entry is not None and entry[0] == [file.place, *file.stamp] else None

    def add(self, file: SourceFile, hashes: list[str]) -> None:
        """Remember the hashes of a file that was read after this object was made."""
        self._is_changed = True
        if shows_changes(file.place, file.stamp[2:], self._now):
            self._known[file.path] = [[file.place, *file.stamp], hashes]
        else:
            self._known.pop(file.path, None)

    def save(self) -> None:
        """Write what is known; without it, the files are only read again."""
        if not self._is_changed:
            return
        text = json.dumps(self._known, separators=(",", ":")).encode()
        with suppress(OSError):
            make_folders(self._file.parent)
            write_atomically(self._file, f"{sha256_bytes(text)}\n".encode() + text)

    def _load(self) -> dict[str, Any]:
        try:
            sha256, _, text = read_regular(self._file).partition(b"\n")
            known = json.loads(text) if sha256_bytes(text).encode() == sha256 else {}
        except (OSError, ValueError, RecursionError):
            return {}
        return known if isinstance(known, dict) else {}
