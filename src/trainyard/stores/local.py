"""A store that keeps objects as files in a local folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainyard.digest import fsync_folder, write_file
from trainyard.errors import CheckpointError, RunGoneError
from trainyard.safe_open import read_regular, refuse_links

_STAGING = ".staging-"


class LocalStore:
    """A `Store` on a file system with atomic renames and hard links, as POSIX demands."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, source: Path) -> None:
        """Rename the fsynced file `source` to the object's path, on the same file system."""
        target = self._target(key)
        source.replace(target)
        fsync_folder(target.parent)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write and fsync a temporary file and link it to the object's path, unless that exists."""
        target = self._target(key)
        with tempfile.TemporaryDirectory(prefix=_STAGING, dir=self._root) as folder:
            source = Path(folder) / target.name
            write_file(source, data)
            try:
                os.link(source, target)  # unlike a rename, a link fails if the target exists
            except FileExistsError:
                return False
        try:
            fsync_folder(target.parent)
        except OSError:
            target.unlink()  # its name may not be durable, and the caller may try again
            raise
        return True

    def get(self, key: str) -> bytes:
        """Return the file's content.

        Raises:
            CheckpointError: The file cannot be read.
        """
        try:
            return read_regular(self._root / key, depth=_depth(key))
        except OSError as error:
            raise CheckpointError(f"{self._root / key}: {error.strerror}") from error

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with `prefix`, sorted by path components."""
        # Only the folder of the prefix is walked: the run directory may contain many other files.
        start = self._root / prefix.rpartition("/")[0]
        _refuse_links(start, _depth(prefix) - 1)
        for path in sorted(start.rglob("*")):
            key = path.relative_to(self._root).as_posix()
            if (
                key.startswith(prefix)
                and not key.startswith(_STAGING)
                and (path.is_symlink() or path.is_file())
            ):
                yield key

    def delete(self, key: str) -> None:
        """Delete the file, and its folder if that is now empty."""
        path = self._root / key
        _refuse_links(path.parent, _depth(key) - 1)
        try:
            path.unlink()
        except FileNotFoundError:
            return
        changed = path.parent
        if changed != self._root:
            with contextlib.suppress(OSError):
                changed.rmdir()  # succeeds for the folder's last object
                changed = changed.parent
        with contextlib.suppress(FileNotFoundError):  # another thread has just deleted the folder
            fsync_folder(changed)

    def folder(self, prefix: str) -> Path:
        """Return the folder itself."""
        _refuse_links(self._root / prefix, _depth(prefix))
        return self._root / prefix

    def staging(self) -> Path:
        """Create and return a folder on the same file system, so that `put` is a rename."""
        if not self._root.is_dir():
            raise RunGoneError(self._root)
        return Path(tempfile.mkdtemp(prefix=_STAGING, dir=self._root))

    def sweep(self) -> None:
        """Delete all staging folders."""
        for folder in self._root.glob(f"{_STAGING}*"):
            shutil.rmtree(folder, ignore_errors=True)

    def _target(self, key: str) -> Path:
        """Return the object's path, with its folders created.

        The root is never created: if it is gone, it stays away.
        """
        target = self._root / key
        refuse_links(target.parent, depth=_depth(key) - 1)
        for folder in [path for path in target.parents[: _depth(key) - 1] if not path.is_dir()][::-1]:
            folder.mkdir(exist_ok=True)
            fsync_folder(folder.parent)
        return target


def _depth(key: str) -> int:
    return len(key.split("/"))


def _refuse_links(path: Path, depth: int) -> None:
    """Raise CheckpointError if a folder of the store is a symbolic link: its content is not the store's."""
    try:
        refuse_links(path, depth=depth)
    except OSError as error:
        raise CheckpointError(f"{error.filename}: {error.strerror}") from error
