"""Decide which runs may be deleted, and delete them."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from trainwright.errors import CheckpointError, RunLockedError, RunLostError
from trainwright.records.run_dir import RunDir
from trainwright.storage.lease import Lease
from trainwright.storage.remote import RemoteRun, copied_entry
from trainwright.storage.urls import url_of

log = logging.getLogger("trainwright")
CLEANED = ("crashed", "failed")  # not `created`: a run may wait for a worker


def is_unwanted(run: RunDir, statuses: Sequence[str] | None) -> bool:
    """Return whether a run may be deleted by its status; without `statuses`: if nothing resumes from it.

    Raises:
        CheckpointError: A record of the run is damaged, so its status is not certain.
    """
    status = run.status()
    run.check_attempts()
    if statuses is not None:
        return status in statuses and status != "running"
    return status in CLEANED and not _has_checkpoint(run)


def _has_checkpoint(run: RunDir) -> bool:
    """Return whether anything can be resumed; a working copy may lack the checkpoints of its run."""
    entry = copied_entry(run.path) if url_of(run.path.parent.parent) else None
    is_named = entry is not None and bool(entry.checkpoints)
    return is_named or any(run.path.glob("checkpoints/*/manifest.json"))


def delete_run(run: RunDir, attempt: int) -> bool:
    """Delete a run as its owner; return False if another process owns it or has started a new attempt.

    Args:
        run: The run directory.
        attempt: The number of its next attempt when it was chosen.
    """
    try:
        run.acquire()
    except RunLockedError as error:
        log.info("%s", error)
        return False
    try:
        if run.next_attempt() != attempt:
            return False
        if remote := RemoteRun.of(run.path):
            head = remote.free_head()
            if head is not None and head != copied_entry(run.path):  # it was chosen by what that says
                return False
            remote.remove()
        shutil.rmtree(run.path)
    except RunLockedError as error:
        log.info("%s", error)
        return False
    finally:
        run.release()
    return True


def discard_run(run: RunDir, lease: Lease) -> None:
    """Delete a run that this attempt has made, unless another has taken it over meanwhile."""
    with contextlib.suppress(RunLostError, CheckpointError, OSError):
        lease.check()
        if remote := RemoteRun.of(run.path):
            remote.remove()
        discard_folder(run.path)


def discard_folder(path: Path) -> None:
    """Delete the folder of a run or study, and the experiment's folder if that is empty now."""
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()
