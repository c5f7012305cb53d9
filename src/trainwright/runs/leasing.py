"""Put a new run into its store, and take the right to write to a run: on the local disk, or in its store."""

from __future__ import annotations

import logging
from contextlib import suppress

from trainwright import plugins
from trainwright.errors import CheckpointError, InputError, TrainwrightError
from trainwright.records.run_dir import RunDir
from trainwright.runs.cleanup import discard_folder
from trainwright.runs.wiring import run_checkpoints
from trainwright.storage.lease import Lease
from trainwright.storage.log import Log
from trainwright.storage.remote import RemoteRun
from trainwright.storage.run_files import is_no_tensor
from trainwright.storage.seals import Seals, problems
from trainwright.storage.urls import refuse_lost_copy

log = logging.getLogger("trainwright")


def publish(run: RunDir) -> None:
    """Make a run that was just created exist in its store; on the local disk, it does already.

    Raises:
        InputError: The store cannot be used. Nothing is left of the run.
    """
    try:
        if remote := RemoteRun.of(run.path):
            remote.check()
            Lease(remote.log, 0, 0, remote).create()
    except (TrainwrightError, OSError) as error:
        discard_folder(run.path)
        raise InputError(f"the run cannot be created: {error}") from error


def take_lease(run: RunDir, *, compresses: bool = False) -> Lease:
    """Take the lease of a run that this process owns, for a new attempt.

    For a run in a store, this also makes the working copy what the newest entry of the log says.

    Args:
        run: The run.
        compresses: Whether checkpoints are compressed when they are stored.

    Raises:
        MissingExtraError: They are to be, and the library for that is not installed.
        RunLockedError: Another process has just taken the run.
        InputError: The store cannot be used.
        CheckpointError: The store cannot be read, or what is there is damaged.
        OSError: The lease cannot be written.
    """
    remote = RemoteRun.of(run.path, compresses=compresses)
    if remote is None:
        refuse_lost_copy(run.path)
        entries = Log(plugins.adapter("store", "file")(run.path))
        head = None
        with suppress(CheckpointError):  # it is damaged: `run_checkpoints` warns
            head = entries.head()
    else:
        remote.check()
        entries, head = remote.log, remote.free_head()
        remote.sweep()
        if head is not None:
            remote.download(head, is_no_tensor)  # the rest is fetched as far as it is needed
    for problem in problems(run):
        log.warning("run %s: %s", run.id, problem)
    number = head.number if head else max(entries.numbers(), default=0)
    attempt = max(run.next_attempt(), head.attempt + 1 if head else 1)
    seals = None if remote else Seals(run.path, head, attempt)
    lease = Lease(entries, number, attempt, remote, seals)
    existing = run_checkpoints(run)
    if remote:
        remote.heartbeats.note_unowned()
    # Checkpoints that have lost their manifest are included, so that a resume names them as damaged.
    names = existing.resume.names()
    logged = set(head.names("checkpoints") if head and remote else ())  # `problems` names those on the disk
    for lost in sorted(logged.difference(names)):
        log.warning("checkpoint %s is missing, though the run's log names it", lost)
    lease.take(names, existing.best.names())
    return lease
