"""Which runs are Trainyard's own to compute, and which belong to another trainer's script."""

from __future__ import annotations

import shlex

from trainyard.errors import InputError
from trainyard.integrations.checkpoints import TrainerCheckpoints
from trainyard.records.rundir import RunDir


def refuse_guest(run: RunDir, verb: str) -> None:
    """Lets runs of ours pass.

    Raises:
        InputError: another trainer made the run; the message says how to go on with it, and where its model is.
    """
    manifest = run.read("manifest.json")
    trainer = manifest.get("trainer")
    if trainer is None:
        return
    command = shlex.join(["python", *manifest.get("command", [])])
    checkpoint, _ = TrainerCheckpoints(run.path).newest()
    model = f"; its newest checkpoint is {checkpoint.path}" if checkpoint else ""
    raise InputError(
        f"run {run.id} was made by the Trainer of {trainer['name']}, so trainyard cannot {verb} it; to go on with it, start its "
        f"script again, with resume_from() of the TrainyardCallback: {command} (in {manifest.get('working_directory')}){model}"
    )
