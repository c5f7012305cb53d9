"""Delete the folders of runs and studies that have come to nothing."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from trainwright.errors import CheckpointError, RunLostError
from trainwright.records.run_dir import RunDir
from trainwright.storage.lease import Lease
from trainwright.storage.remote import RemoteRun


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
