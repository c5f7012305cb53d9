"""Bring the working copies of runs up to date with their store, for commands that read runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from trainwright.errors import CheckpointError, RunLockedError
from trainwright.records.run_dir import RunDir
from trainwright.safe_files import make_folders
from trainwright.storage.deletion import remove_folder
from trainwright.storage.heartbeats import may_have_owner
from trainwright.storage.log import FOLDER
from trainwright.storage.remote import RemoteRun
from trainwright.storage.run_files import is_any, is_record, is_small
from trainwright.storage.urls import open_store, url_of

_THREADS = 16  # requests at a time, for a long list of runs
_PATIENCE = 30.0  # seconds to wait for another process that downloads the same files
_TRIES = 3  # a process elsewhere may commit, and delete files, while they are downloaded

log = logging.getLogger("trainwright")


def refresh(runs_dir: Path) -> None:
    """Download the records of the runs under a URL, given the folder of their working copies.

    Any other folder is left as it is. A run that cannot be read is named in a warning.

    Raises:
        CheckpointError: The store cannot be read.
    """
    if (url := url_of(runs_dir)) is None:
        return
    store = open_store(url)
    newest: dict[str, int] = {}
    for key in store.list("log/"):
        name, _, number = key.removeprefix("log/").rpartition("/")
        if name.count("/") == 1 and number.isdecimal():
            newest[name] = max(newest.get(name, 0), int(number))
    stale = [
        name
        for name, number in newest.items()
        if _number(runs_dir / name) != number or may_have_owner(runs_dir / name)
    ]
    with ThreadPoolExecutor(_THREADS) as pool:
        list(pool.map(lambda name: _download_listed(RemoteRun(runs_dir / name, store)), stale))
    for folder in runs_dir.glob(f"*/*/{FOLDER}"):
        name, run = folder.parent.relative_to(runs_dir).as_posix(), RunDir(folder.parent)
        if name not in newest and not run.is_locked() and not RemoteRun(run.path, store).log.numbers():
            # It was deleted from the store. Its log is listed once more: it may have been created since then.
            with suppress(OSError):
                remove_folder(run.path, "config.yaml")


def download_records(run: RunDir) -> None:
    """Download the files of a run, without its checkpoints; do nothing for a run on the local disk.

    Raises:
        CheckpointError: The store cannot be read, or a file there is damaged.
    """
    _download_if_remote(run, is_small)


def download_all(run: RunDir) -> None:
    """Download all files of a run, as `download_records` does for those that are no checkpoints."""
    _download_if_remote(run, is_any)


def _download_if_remote(run: RunDir, wanted: Callable[[str], bool]) -> None:
    if (remote := RemoteRun.of(run.path)) is not None:
        _download(remote, wanted)


def _download_listed(remote: RemoteRun) -> None:
    try:
        _download(remote, is_record)
    except (CheckpointError, OSError) as error:
        log.warning("run %s is not read from its store: %s", remote.path.name, error)


def _download(remote: RemoteRun, wanted: Callable[[str], bool]) -> None:
    """Download files, unless a process here trains in the working copy, which is then the newer one."""
    make_folders(remote.path)
    run = RunDir(remote.path)
    if not _acquire(run, remote):
        return
    last: CheckpointError | None = None
    try:
        for _ in range(_TRIES):
            entry = remote.head()
            if entry is None:
                return
            try:
                remote.download(entry, wanted)
                remote.heartbeats.note(entry)
                return
            except CheckpointError as error:  # files of an entry go when newer ones come
                last = error
                if remote.log.is_newest(entry.number):
                    raise
        raise CheckpointError(
            f"run {run.id} has changed in its store during each of {_TRIES} downloads; try again"
        ) from last
    finally:
        run.release()


def _acquire(run: RunDir, remote: RemoteRun) -> bool:
    """Become the owner of a working copy; return False if a process trains in it.

    Such a process has the newest entry. One that only downloads files has the lock for a moment.
    """
    end = time.monotonic() + _PATIENCE
    while True:
        try:
            run.acquire()
            return True
        except RunLockedError:
            if time.monotonic() > end or _is_newest(remote):
                return False


def _is_newest(remote: RemoteRun) -> bool:
    """Return whether a working copy has the newest entry, as far as can be known now."""
    try:
        return _number(remote.path) >= max(remote.log.numbers(), default=0)
    except CheckpointError:
        return True


def _number(path: Path) -> int:
    """Return the number of the entry that a working copy was made from; 0 if there is none."""
    try:
        names = [entry.name for entry in (path / FOLDER).iterdir()]
    except OSError:
        return 0
    return max((int(name) for name in names if name.isdecimal()), default=0)
