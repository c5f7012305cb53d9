"""The folder of a Ray that a study starts, with its sockets and logs; those of killed studies go."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainyard.errors import CheckpointError
from trainyard.records.lock import Lock

_PREFIX, _LOCK = "trainyard-ray-", "driver.lock"


@contextlib.contextmanager
def own_folder() -> Iterator[str]:
    """Make a temporary folder, and remove it at the end; remove first those of processes that died."""
    _sweep(Path(tempfile.gettempdir()))
    made = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    lock = Lock(made / _LOCK)
    lock.acquire()
    folder = made.rename(made.with_name(made.name.removeprefix(".")))  # no sweep sees it without its lock
    try:
        yield str(folder)
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Remove the folders whose process has ended: the system has released their locks."""
    for path in folder.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError, CheckpointError):  # another user's
            if (path / _LOCK).exists() and not Lock(path / _LOCK).is_held():
                shutil.rmtree(path, ignore_errors=True)
