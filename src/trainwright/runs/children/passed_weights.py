"""The initial weights of a model object that was passed in Python, in the run and its children."""

from __future__ import annotations

from pathlib import Path

from trainwright import plugins
from trainwright.engine.checkpoint import Checkpoints
from trainwright.records.lineage import FOLDER
from trainwright.records.run_dir import RunDir
from trainwright.runs.wiring import Components
from trainwright.world import World


def passed_weights(run: RunDir) -> Checkpoints:
    """Return where a run keeps the initial state of a model object that it was passed: as step 0."""
    return Checkpoints(plugins.adapter("store", "file")(run.path / FOLDER), "passed")


def keep_passed(run: RunDir, components: Components, world: World, *, is_new: bool) -> None:
    """Keep the initial state of a model object that was passed, or give the object the one that was kept.

    The object is trained in place, so that a resume, a repetition or a fork may meet it with other weights.
    A collective call.

    Args:
        run: The run.
        components: The components of the attempt, whose learner was just built.
        world: Its processes.
        is_new: Whether the inputs of the run have not been recorded yet.

    Raises:
        CheckpointError: The state is damaged, or cannot be written.
    """
    weights = passed_weights(run)
    kept = world.from_main(lambda: weights.load_step(0) if weights.names() else None)
    if kept is not None:
        components.learner.restore(weights.folder(kept), weights_only=True)
    elif is_new:
        snapshot = components.learner.snapshot(weights_only=True)

        def keep() -> None:
            (run.path / FOLDER).mkdir(exist_ok=True)
            weights.commit(0, snapshot)

        try:
            world.main_only(keep)
        finally:
            snapshot.release()


def copy_passed(parent: RunDir, child: Path) -> None:
    """Copy the initial state of the model object that a parent was passed, if it was, for a child of step 0.

    Raises:
        CheckpointError, OSError: It is damaged, or the copy cannot be written.
    """
    kept = passed_weights(parent)
    for name in kept.names():
        (child / FOLDER).mkdir(exist_ok=True)
        kept.copy_to(kept.load(name), plugins.adapter("store", "file")(child / FOLDER))
