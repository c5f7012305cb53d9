"""The lock that says which process owns a run directory."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
import weakref
from pathlib import Path
from typing import BinaryIO

from trainwright.errors import CheckpointError, RunLockedError
from trainwright.process.machine import process_has_ended
from trainwright.safe_files import open_regular

# Seconds between tries: whoever asks for a status holds the lock for a moment.
_PAUSES = (0.01, 0.05, 0.2, None)
_WRONG_KIND = (errno.ELOOP, errno.EINVAL, errno.EISDIR, errno.ENXIO)


class Lock:
    """An exclusive `flock` on a file; the kernel releases it when its owner ends, however it ends.

    A child that Python forks closes its copy, so that the lock ends with its owner.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None

    def acquire(self) -> bool:
        """Take the lock for this process; return whether that succeeded.

        Raises:
            CheckpointError: The lock file is not a regular file.
        """
        file = _open(self._path, "r+b")
        if not _flock(file):
            file.close()
            return False
        file.truncate(0)
        file.write(f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
        file.flush()
        self._file = file
        _HELD.add(self)
        return True

    def release(self) -> None:
        """Give the lock up."""
        if self._file is not None:
            self._file.close()
            self._file = None
            _HELD.discard(self)

    def is_held(self) -> bool:
        """Return whether any process holds the lock, this one included."""
        if self._file is not None:
            return True
        try:
            with _open(self._path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def owner(self) -> str:
        """Return what the lock file says of its owner."""
        try:
            with _open(self._path, "rb") as file:
                owner = file.read(200).decode(errors="replace").strip()
        except OSError:
            return "unknown"
        return f"{owner}{_ended(owner)}" if owner else "unknown"


def _ended(owner: str) -> str:
    """Return a note where the process that took the lock has ended: then one that it started holds it."""
    words = owner.split()
    is_here = len(words) == 4 and words[1].isdigit() and words[3] == socket.gethostname()
    has_ended = is_here and process_has_ended(words[1])
    return ", which has ended: a process that it started still holds the lock" if has_ended else ""


def _open(path: Path, mode: str) -> BinaryIO:
    try:
        return open_regular(path, mode)
    except FileNotFoundError:
        raise
    except OSError as error:
        kind = "; it must be a regular file" if error.errno in _WRONG_KIND else ""
        raise CheckpointError(f"{path} cannot be opened: {error.strerror}{kind}") from error


def _flock(file: BinaryIO) -> bool:
    for pause in _PAUSES:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if pause is not None:
                time.sleep(pause)
        else:
            return True
    return False


def locked_error(what: str, lock: Lock) -> RunLockedError:
    """Return the error that says who owns something, such as `run ID`."""
    return RunLockedError(
        f"{what} is owned by another process ({lock.owner()}); wait for it, or end it and resume"
    )


_HELD: weakref.WeakSet[Lock] = weakref.WeakSet()


def _leave_to_parent() -> None:
    for lock in list(_HELD):
        lock.release()


os.register_at_fork(after_in_child=_leave_to_parent)
