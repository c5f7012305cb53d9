"""Delete the folders of runs and studies that have come to nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

from trainwright.errors import CheckpointError, RunLostError
from trainwright.records.run_dir import RunDir
from trainwright.records.study import StudyRecord
from trainwright.storage.deletion import remove_folder
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
    is_study = (path / StudyRecord.FILE).exists()
    with contextlib.suppress(OSError):
        remove_folder(path, StudyRecord.FILE if is_study else RunDir(path).config_file.name)
        path.parent.rmdir()
