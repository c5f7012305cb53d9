"""Begin runs with the state of others: fork them, or continue after their end."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.api.progress import interruptible, shown, unless_interrupted
from trainwright.config import Overrides, Resolved
from trainwright.errors import InputError, RunNotFoundError, TrainingError, TrainwrightError
from trainwright.integrations.foreign import refuse_foreign_run
from trainwright.records.listing import find_run, has_model
from trainwright.records.run_dir import RunDir
from trainwright.runs.data.bundles import make_objects
from trainwright.runs.lookup import RunName, find, refuse_compressed
from trainwright.runs.objects import require_objects
from trainwright.runs.run import Run
from trainwright.runs.run_config import check_usable, read_config
from trainwright.runs.workdir import working_directory, working_for

if TYPE_CHECKING:
    from trainwright.callbacks.base import Callback
    from trainwright.engine.outside import VerdictFunction
    from trainwright.runs.children.create import Relation
    from trainwright.runs.request import Request

log = logging.getLogger("trainwright")


@dataclass(frozen=True)
class Training:
    """The terms of a child's training: what is given in Python, and what is allowed."""

    model: Any = None
    data: Any = None
    callbacks: Sequence[Callback] = ()
    allow_change: bool = False
    trust: bool = False
    verdict: VerdictFunction | None = None


@interruptible
def fork(
    run: RunName,
    overrides: Overrides = (),
    *,
    step: int | None = None,
    runs_dir: Path | str | None = None,
    allow_change: bool = False,
    model: Any = None,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
    trust: bool = False,
    verdict: VerdictFunction | None = None,
    quiet: bool = False,
) -> Run:
    """Train a new run that begins with the state of another one, which stays as it is.

    The new run keeps a copy of that state, and can be resumed and reproduced without the other one.
    `docs/forking.md` says what each override means.

    It works in the directory that the other run was started in; code is imported as `resume` does.

    Args:
        run: The run to fork: a run, a path, an id, a unique prefix, or `last`.
        overrides: The settings that differ from those of the other run.
        step: Where the new settings begin to hold; default: at the newest state of the other run. Where no
            checkpoint of that step is kept, the steps up to it are repeated from the newest one before it,
            with the settings of the other run.
        runs_dir: The folder of the runs.
        allow_change: Continue although the data of the other run have changed.
        model: The model object, if `train` was given one.
        data: The data objects, if `train` was given some; they may be others.
        callbacks: Observers of the run.
        trust: Import all that the run's config names; each import is announced in the log.
        verdict: Judges the run after each evaluation, as in `train`.
        quiet: Show no progress.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: It has no such step, or its state does not fit the settings, or there is nothing to train.
        ChangedInputsError: The data have changed; `allow_change` accepts that.
        TrainingError: The training failed; `resume` continues from the last commit.
        CheckpointError: A checkpoint cannot be read or written.
        Interrupted: Ctrl-C has ended the run, after a commit or before its first step; it is a
            `KeyboardInterrupt`, with the run, if there is one, in `run`.
    """
    parent = _with_step(find(run, runs_dir, has_model), step)
    with shown(callbacks, quiet=quiet) as observers:
        training = Training(model, data, observers, allow_change, trust, verdict)
        return unless_interrupted(train_child(parent, overrides, training, "fork", step))


def _with_step(run: RunDir, step: int | None) -> RunDir:
    """Return the run that has made a step: the run itself, or one that it began with the state of.

    Raises:
        InputError: The run that has made it is not there.
    """
    found = run
    while step is not None and step >= 0:
        lineage = found.lineage()
        initial = lineage.initial if lineage is not None else None
        if initial is None or step >= initial.step:
            break
        try:
            parent = find_run(initial.run_id, found.path.parent.parent)
        except RunNotFoundError as error:
            raise InputError(
                f"--step: run {found.id} begins with step {initial.step} of run {initial.run_id}, which is "
                f"not there: {error}"
            ) from error
        log.info(
            "run %s begins with step %d of run %s: that one, which has made step %d, is forked, with its "
            "settings",
            found.id,
            initial.step,
            parent.id,
            step,
        )
        found = parent
    return found


def is_longer(run: RunDir, overrides: Overrides) -> bool:
    """Return whether overrides give an ended run another length, so that a new one continues after it.

    Raises:
        ConfigError: An override is wrong.
        InputError: They change more than the length.
    """
    from trainwright.records.status import FINAL
    from trainwright.runs.children.compatibility import LENGTH
    from trainwright.runs.children.config import changed_computation, child_config

    status, manifest = run.status(), run.manifest()
    if not overrides or status not in FINAL or manifest is None or manifest.trainer is not None:
        return False
    own = read_config(run)
    changed = changed_computation(own, child_config(run, overrides))
    others = [key for key in changed if key not in LENGTH]
    if others:
        raise InputError(
            f"{others[0]}: run {run.id} is {status}, and a run that goes on after it can only be longer; "
            f"to change more, fork it: trainwright fork {run.id} {others[0]}=..."
        )
    return bool(changed)


def _of_overrides(parent: RunDir, resolved: Resolved) -> list[str]:
    """Return the overrides that have no effect; the file of the parent sets every key, used or not."""
    return [line for line in resolved.unused if not line.startswith(str(parent.config_file))]


def train_child(
    parent: RunDir, overrides: Overrides, training: Training, relation: Relation, step: int | None = None
) -> Run:
    """Make and train a run that begins with the state of another one; see `fork`."""
    from trainwright.engine.outside import check_verdict
    from trainwright.runs.children.config import child_config, child_placement
    from trainwright.runs.children.create import ChildRequest, create_child
    from trainwright.runs.request import Request

    check_verdict(training.verdict)
    verb = "fork" if relation == "fork" else "resume"
    refuse_foreign_run(parent, verb)
    refuse_compressed(parent, verb)
    with working_for(
        parent,
        working_directory(parent),
        resume=True,
        allow_change=training.allow_change,
        trust=training.trust,
    ):
        own, resolved = read_config(parent), child_config(parent, overrides)
        check_usable(parent, resolved)
        for note in (*resolved.notes, *_of_overrides(parent, resolved)):
            log.warning("config: %s", note)
        require_objects(parent, verb, model=training.model, data=training.data)
        objects = make_objects(resolved, training.model, training.data, training.callbacks)
        child = create_child(ChildRequest(parent, own, resolved, relation, step, training.model))
        placement = child_placement(own, resolved, parent)
        return attempted(
            Request(
                resolved,
                child,
                objects,
                placement=placement,
                allow_change=training.allow_change,
                verdict=training.verdict,
            )
        )


def attempted(request: Request) -> Run:
    """Make an attempt, and give an object the weights that then stand for the run.

    After an error they are those of its newest checkpoint, where there is one; the object may hold NaN. An
    attempt that is refused leaves it as it was.
    """
    from trainwright.runs.attempt import run_attempt
    from trainwright.runs.predictor import fill_object

    model = request.objects.model
    try:
        result = run_attempt(request)
    except TrainingError:
        with suppress(TrainwrightError):
            fill_object(request.run, model)
        raise
    made = Run.trained(request.run, result)
    fill_object(RunDir(made.path), model)
    return made
