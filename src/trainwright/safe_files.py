"""Open and replace files of a run directory: safely against links and pipes, and durably."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

from trainwright.errors import InputError

TEMPORARY_SUFFIX = ".tmp"  # of files that replace another one when they are whole
_ASIDE = ".1234567.tmp"  # as temporary files end
_SHOWN = 60  # characters of a path that is too long

_FLAGS = {
    "rb": os.O_RDONLY,
    "wb": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "xb": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    "ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
    "r+b": os.O_RDWR | os.O_CREAT,
}
_STRICT = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_regular(path: Path, mode: str = "rb", *, depth: int = 1) -> BinaryIO:
    """Open a file of a run directory, which may come from someone else.

    No symbolic link is followed in the last `depth` names of the path: those that are inside the run
    directory. The run directory itself may be a link. A pipe or a device is neither waited for nor read.

    Args:
        path: The file.
        mode: `rb`, `wb`, `xb`, `ab`, or `r+b`, which creates a missing file here.
        depth: How many names of the path are inside the run directory.

    Raises:
        OSError: There is no such file, it is of another kind, or there is a link on the way to it.
    """
    fd = _open(path, mode, depth)
    # The path is given only so that the file knows its name.
    return cast(BinaryIO, open(path, mode, opener=lambda _path, _flags: fd))


def _open(path: Path, mode: str, depth: int) -> int:
    """Return the descriptor of a file; see `open_regular`."""
    fd = _open_inside(path, mode, depth) if depth > 1 else _open_at(os.fspath(path), _FLAGS[mode], None, path)
    kind = os.fstat(fd).st_mode
    if not stat.S_ISREG(kind):
        os.close(fd)
        if stat.S_ISDIR(kind):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return fd


def _open_inside(path: Path, mode: str, depth: int) -> int:
    above, names = os.fspath(path), list[str]()  # the innermost name first
    for _ in range(depth):
        above, name = os.path.split(above)
        names.append(name)
    folder = os.open(above or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while len(names) > 1:
            outer, folder = folder, _open_at(names.pop(), os.O_RDONLY | os.O_DIRECTORY, folder, path)
            os.close(outer)
        return _open_at(names[0], _FLAGS[mode], folder, path)
    finally:
        os.close(folder)


def _open_at(name: str, flags: int, folder: int | None, path: Path) -> int:
    try:
        return os.open(name, flags | _STRICT, 0o666, dir_fd=folder)
    except OSError as error:
        if stat.S_ISLNK(_mode_at(name, folder)):
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path)) from error
        raise OSError(error.errno, error.strerror, str(path)) from error


def _mode_at(name: str, folder: int | None) -> int:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
    except OSError:
        return 0


def read_regular(path: Path, *, depth: int = 1) -> bytes:
    """Return the content of a file of a run directory; see `open_regular`."""
    with open(_open(path, "rb", depth), "rb", buffering=0) as file:
        return file.read()


def usable_path(path: Path | str) -> Path:
    """Return a path that the user gave, if it is not too long for the file system.

    Raises:
        InputError: It is, or the name of the temporary file that is renamed to it would be.
    """
    path = Path(path)
    for one in (path, path.with_name(f".{path.name}{_ASIDE}") if path.name else path):
        try:
            os.lstat(one)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                longest = max(len(os.fsencode(name)) for name in path.parts)
                raise InputError(
                    f"{str(path)[:_SHOWN]}... is too long for the file system: it has "
                    f"{len(os.fsencode(path))} bytes, and its longest name has {longest} bytes; "
                    "give a shorter one"
                ) from error
    return path


def refuse_links(path: Path, *, depth: int) -> None:
    """Raise OSError if one of the last `depth` names of a path is a symbolic link; see `open_regular`."""
    for _ in range(depth):
        if path.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link, which is not followed", str(path))
        path = path.parent


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError as error:
        error.filename = str(folder)
        raise
    finally:
        os.close(fd)


def make_folders(folder: Path) -> None:
    """Create a folder and its missing parents, and make all their names durable."""
    if folder.is_dir():
        return
    missing = [path for path in (folder, *folder.parents) if not path.is_dir()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        fsync_folder(path.parent)


def write_atomically(path: Path, data: bytes, *, depth: int = 1, mode: int = 0o666) -> None:
    """Replace a file's content durably: after a crash there is the old or the new content, whole.

    A symbolic link at the path is replaced, too; what it leads to is left alone.

    Args:
        path: The file.
        data: Its new content.
        depth: How many names of the path are inside the run directory; see `open_regular`.
        mode: Its permissions, which the umask narrows further.

    Raises:
        OSError: It cannot be written; nothing is left behind.
    """
    write_together({path: data}, depth=depth, modes={path: mode})


def write_together(
    files: Mapping[Path, bytes], *, depth: int = 1, modes: Mapping[Path, int] | None = None
) -> None:
    """Replace the contents of files of one folder, as `write_atomically` does for one.

    Each is replaced by itself. All are written before the first is fsynced: most file systems write them to
    the disk at once then.
    """
    modes = modes or {}
    asides = {path: path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}") for path in files}
    path = folder = next(iter(files)).parent
    try:
        refuse_links(folder, depth=depth - 1)
        with ExitStack() as opened:
            written = []
            for path, aside in asides.items():
                if (mode := modes.get(path, 0o666)) != 0o666:
                    aside.touch(mode, exist_ok=False)
                file = opened.enter_context(open_regular(aside, "wb"))
                file.write(files[path])
                file.flush()
                written.append(file)
            for file in written:
                os.fsync(file.fileno())
        for path, aside in asides.items():
            aside.replace(path)
    except OSError as error:
        for aside in asides.values():
            aside.unlink(missing_ok=True)
        error.filename = error.filename or str(path)  # a full disk is reported without one
        raise
    fsync_folder(folder)
