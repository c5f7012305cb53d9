"""Stop the attempt that trains a run, in whatever process it is."""

from __future__ import annotations

import contextlib
import time

from trainyard.errors import InputError
from trainyard.records.run_dir import RunDir
from trainyard.safe_open import open_regular

_PAUSE = 0.1  # seconds between two looks at the run


def stop_run(run: RunDir, *, wait: bool) -> None:
    """Ask the running attempt to stop, and wait until it has ended.

    Raises:
        InputError: The run is not running, or its directory cannot be written.
    """
    if not run.is_owned():
        raise InputError(f"run {run.id} is {run.status()}, not running: there is nothing to stop")
    while run.is_owned():
        if _ask(run) and not wait:
            return
        time.sleep(_PAUSE)


def _ask(run: RunDir) -> bool:
    """Ask the present attempt to stop; return whether there is one, and not only its beginning."""
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
