"""Which runs are Trainyard's own to compute, and which belong to another trainer's script."""

from __future__ import annotations

import shlex

from trainyard.errors import InputError
from trainyard.integrations.checkpoints import TrainerCheckpoints
from trainyard.records.run_dir import RunDir


def refuse_guest(run: RunDir, verb: str) -> None:
    """Lets runs of ours pass.

    Raises:
        InputError: another trainer made the run; the message says how to go on with it, and where its model is.
    """
    manifest = run.manifest()
    if manifest is None or manifest.trainer is None:
        return
    command = shlex.join(["python", *manifest.command])
    checkpoint, _ = TrainerCheckpoints(run.path).newest()
    model = f"; its newest checkpoint is {checkpoint.path}" if checkpoint else ""
    raise InputError(
        f"run {run.id} was made by the Trainer of {manifest.trainer.name}, so trainyard cannot {verb} it; "
        f"to go on with it, start its "
        f"script again, with resume_from() of the TrainyardCallback: {command} (in {manifest.working_directory}){model}"
    )
