"""Refuses runs that another trainer's script computes."""

from __future__ import annotations

import shlex

from trainwright.errors import InputError
from trainwright.integrations.checkpoints import TrainerCheckpoints
from trainwright.records.run_dir import RunDir


def refuse_foreign_run(run: RunDir, verb: str) -> None:
    """Raise an error if another trainer made the run.

    Args:
        run: The run that a command works on.
        verb: What the command does, for the message.

    Raises:
        InputError: Another trainer made it; the message says how to resume it, and where its model is.
    """
    manifest = run.manifest()
    if manifest is None or manifest.trainer is None:
        return
    command = shlex.join(["python", *manifest.command])
    checkpoint, _ = TrainerCheckpoints(run.path).newest()
    model = f"; its newest checkpoint is {checkpoint.path}" if checkpoint else ""
    again = (
        f"; to continue it, start its script again, with resume_from() of the TrainwrightCallback: {command} "
        f"(in {manifest.working_directory})"
    )
    raise InputError(
        f"run {run.id} was made by the Trainer of {manifest.trainer.name}, so trainwright cannot {verb} it"
        f"{'; it is completed' if run.status() == 'completed' else again}{model}"
    )
