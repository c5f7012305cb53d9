"""Stop the attempt that trains a run, in another process or on another machine."""

from __future__ import annotations

import contextlib
import time

from trainwright.errors import InputError
from trainwright.records.run_dir import RunDir
from trainwright.safe_files import open_regular
from trainwright.storage.copies import download_records
from trainwright.storage.remote import RemoteRun

_PAUSE = 0.1  # seconds between two checks of a run on this machine
_STORE_PAUSE = 2.0  # seconds between two checks of a run in a store


def stop_run(run: RunDir, *, wait: bool) -> None:
    """Ask the running attempt to stop, and wait until it has ended.

    An attempt on another machine, which shares only the store, reads the request at its next heartbeat.

    Raises:
        InputError: The run is not running, or its directory or store cannot be written.
    """
    if not run.is_owned():
        raise InputError(f"run {run.id} is {run.status()}, not running: there is nothing to stop")
    while run.is_owned():
        is_here = run.is_locked()
        if (_ask(run) if is_here else _ask_elsewhere(run)) and not wait:
            return
        time.sleep(_PAUSE if is_here else _STORE_PAUSE)
        download_records(run)


def _ask(run: RunDir) -> bool:
    """Ask the running attempt to stop; return False if it is only starting, and has no record yet."""
    attempts = run.attempts()
    if not attempts or attempts[-1].status is not None:
        return False
    request = run.stop_request(attempts[-1].attempt)
    try:
        with contextlib.suppress(FileExistsError):
            open_regular(request, "xb", depth=2).close()
    except OSError as error:
        raise InputError(f"{request} cannot be written: {error.strerror}; end the process instead") from error
    return True


def _ask_elsewhere(run: RunDir) -> bool:
    """Ask the running attempt to stop, through the run's store; return whether there is one."""
    remote = RemoteRun.of(run.path)
    head = remote.head() if remote else None
    if remote is None or head is None or head.kind == "end":
        return False
    try:
        remote.heartbeats.ask_to_stop(head.attempt)
        if (now := remote.head()) is None or now.kind == "end":
            remote.heartbeats.stop_beating(head.attempt)  # it ended before, and deletes no later request
    except OSError as error:
        raise InputError(f"the store of run {run.id} cannot be written: {error}") from error
    return True
