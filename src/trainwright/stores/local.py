"""A store that keeps objects as files in a local folder."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from trainwright.digest import write_file
from trainwright.errors import CheckpointError, InputError, RunGoneError
from trainwright.process.machine import machine_id, process_has_ended
from trainwright.safe_files import fsync_folder, make_folders, open_regular, read_regular, refuse_links

_STAGING = ".staging-"  # then the machine and the process that uses the folder
_ABANDONED_SECONDS = (
    86400.0  # seconds after which an unchanged staging folder of another machine is left over
)
_TRIES = 10  # to put an object into a folder that other processes delete when it is empty


class LocalStore:
    """A `FileStore` on a file system with atomic renames and hard links, as POSIX demands.

    Args:
        root: The folder, as a path or as a URL (`file:///mnt/runs`). The folder of a URL is created when the
            first object is put there.

    Raises:
        InputError: The URL does not name a folder of this machine.
    """

    def __init__(self, root: Path | str) -> None:
        self._may_create_root = isinstance(root, str)
        self._root = _path_of(root) if isinstance(root, str) else root
        self._has_swept = False

    def put(self, key: str, source: Path) -> None:
        """Copy and fsync the file, and rename the copy to the object's path."""
        self._target(key)
        with tempfile.TemporaryDirectory(prefix=self._prefix(), dir=self._root) as folder:
            copy = Path(folder) / source.name
            shutil.copyfile(source, copy)
            with open(copy, "rb") as file:
                os.fsync(file.fileno())
            fsync_folder(self._place(key, copy.replace).parent)

    def publish(self, folder: Path, prefix: str, last: str) -> bool:
        """Rename the folder, so that all appear at once; if there is one already, rename file by file."""
        fsync_folder(folder)
        try:
            target = self._place(prefix, folder.rename)
        except OSError:  # as a rule, what is there was left by an attempt that failed
            return self._has_moved_files(folder, prefix, last)
        _make_durable(target, target / last)
        return True

    def _has_moved_files(self, folder: Path, prefix: str, last: str) -> bool:
        """Rename the files, and link `last` unless there is such an object; return whether there was none."""
        if (self._root / prefix / last).exists():
            return False
        others = [path for path in folder.iterdir() if path.name != last]
        for path in others:
            self._place(f"{prefix}/{path.name}", path.replace)
        if others:
            fsync_folder(self._root / prefix)
        return self._has_linked(folder / last, f"{prefix}/{last}")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write and fsync a temporary file and link it to the object's path, unless that exists."""
        source = self._root / f"{self._prefix()}{secrets.token_hex(8)}"
        try:
            self._target(key)
            write_file(source, data)
            return self._has_linked(source, key)
        except OSError as error:
            error.filename = error.filename or str(self._root / key)  # a full disk is reported without one
            raise
        finally:
            source.unlink(missing_ok=True)

    def _has_linked(self, source: Path, key: str) -> bool:
        """Link a file that was fsynced to the object's path, durably; return False if there is one."""
        try:  # unlike a rename, a link fails if the target exists
            target = self._place(key, lambda target: os.link(source, target))
        except FileExistsError:
            return False
        _make_durable(target, target)
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

    def download(self, key: str, target: Path) -> None:
        """Copy the file.

        Raises:
            CheckpointError: The file cannot be read.
        """
        try:
            source = open_regular(self._root / key, depth=_depth(key))
        except OSError as error:
            raise CheckpointError(f"{self._root / key}: {error.strerror}") from error
        with source, open(target, "xb") as file:
            shutil.copyfileobj(source, file)

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with `prefix`, sorted by path components."""
        # Only the folder of the prefix is walked: the run directory may contain many other files.
        folder = prefix.rpartition("/")[0]
        _refuse_links(self._root / folder, _depth(prefix) - 1)
        keys = _keys(str(self._root / folder), f"{folder}/" if folder else "")
        yield from sorted(
            (key for key in keys if key.startswith(prefix) and not key.startswith(_STAGING)),
            key=lambda key: key.split("/"),
        )

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
        """Create and return a folder on the same file system, so that `publish` is a rename."""
        if not self._root.is_dir():
            raise RunGoneError(self._root)
        folder = self._root / f"{self._prefix()}{secrets.token_hex(8)}"
        folder.mkdir()
        return folder

    def sweep(self) -> None:
        """Delete all staging folders, and the temporary files of `put_if_absent`."""
        for path in self._root.glob(f"{_STAGING}*"):
            _remove(path)

    def _prefix(self) -> str:
        """Return the beginning of the names of staging folders of this process.

        In a folder that was given as a URL, others write too: before the first one, what dead processes have
        left there is deleted.
        """
        if self._may_create_root and not self._has_swept:
            self._has_swept = True
            _sweep_dead(self._root)
        return f"{_STAGING}{machine_id('pid')}-{os.getpid()}-"

    def _place(self, key: str, act: Callable[[Path], object]) -> Path:
        """Call a function that puts a file at the object's path, and return the path.

        Its folder may be deleted before, by another process that has deleted the last object there.
        """
        for _ in range(_TRIES - 1):
            with contextlib.suppress(FileNotFoundError):
                target = self._target(key)
                act(target)
                return target
        target = self._target(key)
        act(target)
        return target

    def _target(self, key: str) -> Path:
        """Return the object's path, with its folders created.

        The root is created only if it was given as a URL: a run directory that is gone is not made again.
        """
        target = self._root / key
        if self._may_create_root and not self._root.is_dir():
            make_folders(self._root)
        refuse_links(target.parent, depth=_depth(key) - 1)
        if not target.parent.is_dir():
            for folder in [path for path in target.parents[: _depth(key) - 1] if not path.is_dir()][::-1]:
                folder.mkdir(exist_ok=True)
                fsync_folder(folder.parent)
        return target


def _path_of(url: str) -> Path:
    parts = urlsplit(url)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise InputError(f"{url} names no folder of this machine; write file:///path/of/the/folder")
    return Path(unquote(parts.path))


def _keys(folder: str, prefix: str) -> Iterator[str]:
    """Yield `prefix` + path of each file and link below a folder; each commit lists, so no `Path` is made."""
    try:
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    with entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _keys(entry.path, f"{prefix}{entry.name}/")
            elif entry.is_symlink() or entry.is_file():
                yield prefix + entry.name


def _sweep_dead(root: Path) -> None:
    """Delete what dead processes have left in staging: dead on this machine, or, elsewhere, most likely."""
    found = [(path, _changed(path)) for path in root.glob(f"{_STAGING}*")]
    if not found:
        return
    here = machine_id("pid")
    with tempfile.TemporaryDirectory(prefix=f"{_STAGING}{here}-{os.getpid()}-", dir=root) as probe:
        now = _changed(Path(probe))  # by the clock of the file system, as the others
    for path, changed in found:
        of, _, process = path.name.removeprefix(_STAGING).rpartition("-")[0].partition("-")
        is_here = of != "" and of == here and process.isdecimal()
        if process_has_ended(process) if is_here else now - changed > _ABANDONED_SECONDS:
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a file or folder, as far as that is possible."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink()  # of a file


def _changed(path: Path) -> float:
    """Return when a file, or a folder or a file in it, has changed last; infinity if it is gone."""
    try:
        inside = path.iterdir() if path.is_dir() else iter(())
        return max(one.lstat().st_mtime for one in (path, *inside))
    except OSError:
        return math.inf


def _make_durable(path: Path, last: Path) -> None:
    """Make a new name durable, or else delete the object `last`: the caller has to try again."""
    try:
        fsync_folder(path.parent)
    except OSError:
        last.unlink()
        raise


def _depth(key: str) -> int:
    return key.count("/") + 1


def _refuse_links(path: Path, depth: int) -> None:
    """Raise CheckpointError if a folder of the store is a symbolic link: its content is not the store's."""
    try:
        refuse_links(path, depth=depth)
    except OSError as error:
        raise CheckpointError(f"{error.filename}: {error.strerror}") from error
