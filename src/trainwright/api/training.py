"""Train runs, resume them, and prove them by training them again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainwright.api.forking import Training, attempted, is_longer, train_child
from trainwright.api.progress import interruptible, shown, unless_interrupted
from trainwright.config import Config, Overrides, Resolved
from trainwright.config import load as load_resolved
from trainwright.config.overrides import with_settings
from trainwright.errors import InputError, LoaderBatchSizeError, TrainingError
from trainwright.integrations.foreign import refuse_foreign_run
from trainwright.records.decision import journalled_decisions
from trainwright.records.listing import runs_folder
from trainwright.records.manifest import Parent
from trainwright.records.run_dir import RunDir
from trainwright.runs.catalog import Catalog
from trainwright.runs.data.bundles import make_bundle, make_objects
from trainwright.runs.frameworks import copied_model
from trainwright.runs.lookup import (
    RunName,
    find,
    find_unfinished,
    placement_of_overrides,
    refuse_running,
    warn_of_unused,
)
from trainwright.runs.objects import (
    Objects,
    name_batch_size,
    name_model,
    passed_objects,
    require_data,
    require_objects,
)
from trainwright.runs.processes.placement import repeated_placement, resumed_config
from trainwright.runs.run import Run
from trainwright.runs.run_config import usable_config
from trainwright.runs.trust import of_own_config
from trainwright.runs.workdir import code_beside, creation_of, working_directory, working_for, working_in
from trainwright.storage.seals import problems

if TYPE_CHECKING:
    from trainwright.callbacks.base import Callback
    from trainwright.engine.outside import VerdictFunction
    from trainwright.runs.reproduce import Reproduction

log = logging.getLogger("trainwright")


@interruptible
def train(
    config: Config | None = None,
    overrides: Overrides = (),
    *,
    runs_dir: Path | str | None = None,
    resume: bool = False,
    reuse: bool = False,
    model: Any = None,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
    verdict: VerdictFunction | None = None,
    quiet: bool = False,
) -> Run:
    """Train one run, from config to report.

    Args:
        config: A YAML file, or its content as a mapping; it may be left out if model and data are given.
        overrides: `key.path=value` texts, or a mapping from dotted keys.
        runs_dir: The folder for run directories; default `TRAINWRIGHT_RUNS`, or `runs`.
        resume: Continue the newest unfinished run of the same computation, if there is one. It keeps its own
            config: other settings that change only the record (tracking ...) are not used, and a warning
            names them. The device and the number of threads are used, if they are set.
        reuse: Return the newest completed run of the experiment that has the same inputs, if there is one,
            without training: the same computation, data, code, initial weights and numeric environment, and a
            tier better than `statistical`. Damaged runs are passed over. Settings that change only the record
            are not used, and a warning names them. It is tried before `resume`.
        model: A model object, used instead of `model.type`, or the name of a model, a class or a function.
            An object is trained itself: a network from the weights that it has, an estimator as if `fit` were
            called. Afterwards it holds the weights that the metrics of the run are of: those of the best
            model where there is one, else the last. The run can be reproduced only with such an object.
        data: (train, val) or (train, val, test), each an (X, y) pair or a map-style dataset; or all rows as
            one pair or data frame. They replace the source that the section `data` names; its other settings
            (target, split ...) apply to them.
        callbacks: Observers of the run.
        verdict: Judges the run after each evaluation of the validation split: it is called with the step and
            the metrics, and returns `"keep"`; or `"prune"` to end the run as `pruned`; or `"pause"` to commit
            the run, which `resume` continues.
        quiet: Show no progress. Otherwise it is a bar on a terminal and in a notebook, and lines elsewhere.

    Raises:
        InputError: Config, data or model are wrong. A run that fails before its journal is opened is removed.
        RunLockedError: With `resume`: another process owns the run.
        ChangedInputsError: With `resume`: data or code have changed.
        TrainingError: The training failed; `resume` continues from the last commit.
        CheckpointError: A checkpoint cannot be written, or the best model is damaged.
        Interrupted: Ctrl-C has ended the run, after a commit or before its first step; it is a
            `KeyboardInterrupt`, with the run, if there is one, in `run`.
    """
    from trainwright.engine.outside import check_verdict

    check_verdict(verdict)
    if config is None:
        config = _without_config(model, data)
    with shown(callbacks, quiet=quiet) as observers:
        terms, given = _Terms(runs_dir, resume, reuse), Training(model, data, observers, verdict=verdict)
        said: set[str] = set()
        try:
            with _noting(said):
                return unless_interrupted(_train(config, overrides, terms, given))
        except LoaderBatchSizeError as error:  # only the function that the config names could tell
            size = error.batch_size
        log.info("training.batch_size: %d, as of the data loader", size)
        sized = with_settings(overrides, {"training.batch_size": size})
        with _noting(said, again=False):
            return unless_interrupted(_train(config, sized, terms, given))


def _without_config(model: Any, data: Any) -> Config:
    """Return the config of a run that has none.

    Raises:
        InputError: Nothing says what is trained, or on what.
    """
    if model is None or data is None:
        raise InputError(
            'no config: give a YAML file, or a mapping such as {"model": "random_forest", "data": {"path": '
            '"rows.csv", "target": "y"}}; or model=... and data=...'
        )
    return {}


@contextmanager
def _noting(said: set[str], *, again: bool = True) -> Iterator[None]:
    """Collect logged messages in `said`; with `again=False`, suppress those that are in it."""

    def is_new(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        known = message in said and not again
        said.update([message] if again else [])
        return not known

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


class _Terms(NamedTuple):
    """The arguments of `train` that let it return an existing run, and the folder of the runs."""

    runs_dir: Path | str | None
    resume: bool
    reuse: bool


def _train(config: Config, overrides: Overrides, terms: _Terms, given: Training) -> Run:
    """Find a run, or train a new one; see `train`."""
    from trainwright.runs.attempt import run_attempt
    from trainwright.runs.predictor import fill_object
    from trainwright.runs.processes.ranks import follow, is_restarted
    from trainwright.runs.request import Request
    from trainwright.runs.reuse import CompletedRuns

    model, data = given.model, given.data
    if model is not None:
        config, overrides, model = name_model(config, overrides, model)
    folder = runs_folder(terms.runs_dir)
    resolved = load_resolved(config, overrides, Catalog(folder), objects=data is not None)
    if data is not None and (sized := name_batch_size(resolved, overrides, data)) is not None:
        resolved = load_resolved(config, sized, Catalog(folder), objects=True)
    log_notes(resolved)
    if data is None:
        require_data(resolved, config)
    with working_in(Path.cwd(), [Path.cwd(), *code_beside(resolved)]):
        objects = make_objects(resolved, model, data, given.callbacks)
        if (followed := follow(resolved.config, objects, run_attempt)) is not None:
            fill_object(followed, model)
            return Run(followed)
        if terms.reuse:
            completed = CompletedRuns(folder, resolved.config.experiment.name, is_asked=True)
            if (known := completed.find(resolved, objects)) is not None:
                fill_object(known, model)
                return Run(known)
        if (terms.resume or is_restarted()) and (found := find_unfinished(resolved, folder)):
            return _resume_for(found, resolved, objects, data, given.verdict)
        experiment = resolved.config.experiment.name
        if terms.resume:
            if resolved.config.distributed.nnodes == 1:  # each of several nodes begins one
                refuse_running(resolved, folder)
            log.info("no unfinished run of this computation in %s/%s: a new one begins", folder, experiment)
        run = RunDir.create(folder, experiment, resolved.dump(), created=creation_of(resolved))
        return attempted(Request(resolved, run, objects, verdict=given.verdict))


def _resume_for(
    found: RunDir, asked: Resolved, objects: Objects, data: Any, verdict: VerdictFunction | None
) -> Run:
    """Continue an unfinished run for a config of the user's, which says what code may be imported.

    (`resume` has no such config: there, the run's own decides, if it is trusted.)

    Args:
        found: The run, which keeps its own config.
        asked: The config that `train` was given.
        objects: What `train` was given in Python; its data are divided anew, as the run's config says.
        data: The data objects, as they were given.
        verdict: As in `train`.
    """
    from trainwright.runs.request import Request

    log.info("resuming run %s", found.id)
    require_objects(found, "resume", model=objects.model, data=data)
    with of_own_config(found, asked):
        own = usable_config(found)
        warn_of_unused(asked, own, found)
        placement = asked.placement(explicit=True)
        bundle = make_bundle(resumed_config(found, own, placement), data, objects.model)
        given = replace(objects, data=bundle)
        return attempted(Request(own, found, given, placement=placement, verdict=verdict, keep=True))


@interruptible
def resume(
    run: RunName,
    overrides: Overrides = (),
    *,
    runs_dir: Path | str | None = None,
    allow_change: bool = False,
    model: Any = None,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
    trust: bool = False,
    verdict: VerdictFunction | None = None,
    quiet: bool = False,
) -> Run:
    """Continue a run from its newest valid checkpoint, to the bits of the run that was never interrupted.

    A run that was stopped or pruned continues. If a run was to stop or be pruned, but died before that, it
    ends now as was decided.

    With another length (`training.epochs=60`), a run that has ended stays as it is: a new run continues after
    it, and is returned. `docs/forking.md` says when it has the bits of a run that had this length from the
    start; if it has not, a warning says why.

    It works in the directory that the run was started in. The user's code is imported from the current
    working directory, and from that one if the folder of runs is in it; `docs/security.md` has the rules.

    It has the number of threads and the device of the attempt before. Another numeric environment (threads,
    device, machine, packages) is recorded and lowers the determinism tier, or is refused if the config
    demands `bitwise`.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        overrides: Another placement (`training.threads=2`, `training.device=cpu`); for an ended run, also
            another length.
        runs_dir: The folder of the runs.
        allow_change: Continue although config, data or code have changed, or the environment of a run that
            demands `bitwise`; it is recorded.
        model: The model object, if `train` was given one.
        data: The data objects, if `train` was given some.
        callbacks: Observers of the run.
        trust: Import all that the run's config names; each import is announced in the log.
        verdict: Judges the run after each evaluation, as in `train`; evaluations that were judged in an
            earlier attempt are not judged again.
        quiet: Show no progress.

    Raises:
        InputError: An object is missing, or the run names code that is not imported.
        RunNotFoundError: There is no such run.
        RunLockedError: Another process owns it.
        ChangedInputsError: Config, data or code have changed; `allow_change` accepts and records that.
        TrainingError: The training failed; another `resume` continues from the last commit.
        CheckpointError: A checkpoint cannot be written or restored, or the best model is damaged, or the
            result of a completed run is damaged or missing.
        Interrupted: Ctrl-C has ended the run, after a commit or before its first step; it is a
            `KeyboardInterrupt`, with the run, if there is one, in `run`.
    """
    from trainwright.engine.outside import check_verdict

    check_verdict(verdict)
    found = find(run, runs_dir)
    with shown(callbacks, quiet=quiet) as observers:
        training = Training(model, data, observers, allow_change, trust, verdict)
        if is_longer(found, overrides):
            return unless_interrupted(train_child(found, overrides, training, "continue"))
        return unless_interrupted(_resume(found, overrides, training))


def _resume(found: RunDir, overrides: Overrides, given: Training) -> Run:
    """Continue a run, unless it is completed; see `resume`."""
    from trainwright.runs.attempt import run_attempt
    from trainwright.runs.predictor import fill_object
    from trainwright.runs.processes.ranks import follow
    from trainwright.runs.request import Request

    allow_change = given.allow_change
    if found.status() == "completed":
        found.require_result()
        for problem in problems(found):
            log.warning("run %s: %s", found.id, problem)
        log.info(
            "run %s is completed: there is nothing left to do; to train for longer: trainwright resume %s "
            "training.epochs=...",
            found.id,
            found.id,
        )
        if "model" in passed_objects(found):
            fill_object(found, given.model)
        return Run(found)
    refuse_foreign_run(found, "resume")
    with working_for(
        found, working_directory(found), resume=True, allow_change=allow_change, trust=given.trust
    ):
        resolved = usable_config(found)
        placement = placement_of_overrides(found, resolved, overrides)
        require_objects(found, "resume", model=given.model, data=given.data)
        resumed = resumed_config(found, resolved, placement)
        objects = make_objects(resumed, given.model, given.data, given.callbacks)
        if follow(resolved.config, objects, run_attempt) is not None:
            fill_object(found, given.model)
            return Run(found)
        return attempted(
            Request(
                resolved,
                found,
                objects,
                placement=placement,
                allow_change=allow_change,
                verdict=given.verdict,
                keep=True,
            )
        )


def stop(run: RunName, *, runs_dir: Path | str | None = None, wait: bool = True) -> Run:
    """Stop a run that another thread or process trains.

    The run notices the request within a second, finishes its step, evaluates, saves, tests its best model,
    and ends as `stopped`. If it reaches its last step first, it ends as `completed`.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        runs_dir: The folder of the runs.
        wait: Return when the run has ended. A callback of that run must give False, or both wait forever.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run is not running, or another trainer made it.
    """
    from trainwright.runs.processes.stopping import stop_run

    found = find(run, runs_dir, lambda one: one.status() == "running")
    refuse_foreign_run(found, "stop")
    stop_run(found, wait=wait)
    return Run(found)


@interruptible
def reproduce(
    run: RunName,
    overrides: Overrides = (),
    *,
    runs_dir: Path | str | None = None,
    model: Any = None,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
    trust: bool = False,
    quiet: bool = False,
) -> Reproduction:
    """Train a completed, stopped or pruned run again, as a new run, and compare the two.

    The new run repeats the decisions of the old one: it is stopped where that one was.

    It works in the directory that the run was started in. The user's code is imported from the current
    working directory; `docs/security.md` has the rules.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        overrides: Another mesh of processes (`distributed.nproc=1`), which divides the virtual mesh of the
            run; default: that of its last attempt, on one node.
        runs_dir: The folder of the runs.
        model: The model object, if `train` was given one; its weights do not matter, and stay as they are.
        data: The data objects, if `train` was given some.
        callbacks: Observers of the run.
        trust: Import all that the run's config names; each import is announced in the log.
        quiet: Show no progress.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run has not ended yet, or cannot be repeated here, or names code that is not imported;
            or an override is about more than the mesh.
        TrainingError: The training of the repetition failed, or was stopped.
        CheckpointError: A checkpoint cannot be written.
        Interrupted: Ctrl-C has ended the repetition.
    """
    from trainwright.engine.signals import Stopped
    from trainwright.records.status import FINAL
    from trainwright.runs.attempt import run_attempt
    from trainwright.runs.children.create import copy_origin
    from trainwright.runs.reproduce import compare_bits
    from trainwright.runs.request import Request

    original = find(run, runs_dir, lambda one: one.status() in FINAL)
    refuse_foreign_run(original, "reproduce")
    if original.status() not in FINAL:
        raise InputError(
            f"run {original.id} {_ended(original)}; only a completed, stopped or pruned run can be "
            "reproduced: resume it, or start a new run, first"
        )
    if (manifest := original.manifest()) is not None and manifest.compression is not None:
        from trainwright.api.compressing import compress_again

        return compare_bits(original, compress_again(original, model, data, trust=trust))
    original.require_result()  # what could not be compared afterwards is not trained for
    with working_for(original, working_directory(original), trust=trust):
        resolved = usable_config(original)
        placement = repeated_placement(original, resolved, overrides)
        require_objects(original, "reproduce", model=model, data=data)
        again = RunDir.create(
            original.path.parent.parent,
            original.experiment,
            resolved.dump(),
            lambda again: copy_origin(original, again),
            original.creation(),
        )
        decisions = journalled_decisions(original.journal).to_json()
        before = original.require_manifest().parent
        parent = Parent(
            run_id=original.id,
            relation="reproduce",
            decisions=decisions,
            untested=before is not None and before.untested,
        )
        with shown(callbacks, quiet=quiet) as observers:
            objects = make_objects(resolved, copied_model(model), data, observers)
            result = run_attempt(Request(resolved, again, objects, parent, placement))
    if result.status in ("preempted", "interrupted"):
        raise Stopped(result.status)
    if result.status == "stopped" and result.steps != original.require_result().steps:
        raise TrainingError(
            f"the repetition {again.id} was stopped at step {result.steps}: there is nothing to compare yet; "
            "reproduce the run again"
        )
    return compare_bits(original, again)


def _ended(run: RunDir) -> str:
    """Return the status of an unfinished run in words, with the error of a failed one."""
    status, result = run.status(), run.result()
    error = result.error if status == "failed" and result is not None else None
    return f"is {status}" + (f" ({error})" if error else "")


def log_notes(resolved: Resolved) -> None:
    """Log what the user should know about a config before a run is made of it."""
    resolved.log_notes()
    distributed = resolved.config.distributed
    if distributed.enabled and distributed.nproc == 1:
        log.warning(
            "config: distributed.enabled means one process for each GPU, which is one here; set "
            "distributed.nproc for more"
        )
