"""The folder of a Ray that a study starts, with its sockets and logs."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainwright.errors import CheckpointError
from trainwright.storage.lock import Lock

_PREFIX, _LOCK = "trainwright-ray-", "driver.lock"
_LONGEST = 107  # bytes of the path of a Unix socket
_SOCKET = "/session_2026-01-31_23-59-59_999999_1234567/sockets/plasma_store"  # Ray's, in our folder
_SHORT = Path("/tmp")


@contextlib.contextmanager
def own_folder() -> Iterator[str]:
    """Make a temporary folder, and remove it at the end; remove the folders of killed studies first."""
    parent = _parent()
    _sweep(parent)
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))
    lock = Lock(made / _LOCK)
    lock.acquire()
    folder = made.rename(made.with_name(made.name.removeprefix(".")))  # no sweep sees it without its lock
    try:
        yield str(folder)
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


def _parent() -> Path:
    """Return the folder of temporary files; `/tmp` where the paths of sockets would be too long there."""
    usual = Path(tempfile.gettempdir())
    longest = os.fsencode(f"{usual}/{_PREFIX}12345678{_SOCKET}")
    return usual if len(longest) <= _LONGEST else _SHORT


def _sweep(folder: Path) -> None:
    """Remove the folders whose process has ended: the system has released their locks."""
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, CheckpointError):  # another user's
            if (path / _LOCK).exists() and not Lock(path / _LOCK).is_held():
                shutil.rmtree(path, ignore_errors=True)
