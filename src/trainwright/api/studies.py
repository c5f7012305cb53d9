"""Compare models and configs in studies of many runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.api.progress import interruptible, study_unless_interrupted, watched
from trainwright.config import Config, Overrides, load
from trainwright.config.overrides import with_settings
from trainwright.errors import ConfigError, InputError
from trainwright.records.listing import local_runs_folder
from trainwright.runs.catalog import Catalog
from trainwright.runs.objects import name_model
from trainwright.runs.workdir import code_beside, working_in

if TYPE_CHECKING:
    from trainwright.callbacks.base import Callback
    from trainwright.studies.benchmark import Benchmark
    from trainwright.studies.cross_validation import CrossValidation
    from trainwright.studies.study import Study, StudyRequest, TrialWatcher
    from trainwright.studies.tuning.reproduce import StudyReproduction
    from trainwright.studies.tuning.tuning_view import Tuning


@interruptible
def cross_validate(
    config: Config,
    overrides: Overrides = (),
    *,
    folds: int | None = None,
    runs_dir: Path | str | None = None,
    resume: bool = False,
    reuse: bool = True,
    model: Any = None,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
    watch: TrialWatcher | None = None,
    quiet: bool = False,
) -> CrossValidation:
    """Train one run for each fold of the rows, and test it on that fold.

    The result has mean and spread of the metrics, and each row's prediction.

    Folds are stratified by class (`data.split.stratify`), keep groups together (`data.split.group`), or
    follow each other in time (`data.split.time`: each run learns only from older rows). Of the rows outside
    the fold, the share `data.split.val` validates. Rows of `val_path` and `test_path` are left out.

    Args:
        config: A YAML file, or its content as a mapping.
        overrides: `key.path=value` texts, or a mapping from dotted keys.
        folds: Number of folds; default: `data.split.folds` of the config, or 5.
        runs_dir: The folder for run directories, and the study's folder beside them.
        resume: Continue the newest unfinished cross-validation of the same config and data; completed runs
            are kept.
        reuse: Take completed runs of this experiment with the same inputs (see `train`) instead of training
            them again; callbacks do not see these.
        model: A model object, or the name of a model, a class or a function, as `train` takes them. Each run
            trains a copy of the object, with its weights; the object stays as it is.
        data: All rows as one pair (X, y) or one data frame, instead of `data`.
        callbacks: Observers of each run.
        watch: Called with a mapping (`fold`, `run_id`, `status`, test metrics) when a run has ended.
        quiet: Print no line for each run that has ended; with `watch`, none is printed, either.

    Returns:
        The study; its `status` says whether a signal ended it.

    Raises:
        Interrupted: Ctrl-C has ended the study, which can be resumed; it is a `KeyboardInterrupt`.
        InputError: Config or data are wrong, or cannot be cut into that many folds.
        TrainingError: The training of a fold failed; `resume` continues from there.
    """
    from trainwright.studies.cross_validation import cross_validate as run_study

    config, overrides, model = _named(config, overrides, model)
    with _working_in(config, overrides, data):
        request = _study_request(runs_dir, resume, reuse, data, callbacks, watched(watch, quiet=quiet))
        request = replace(request, model=model)
        return study_unless_interrupted(run_study(config, overrides, request, folds))


@interruptible
def benchmark(
    config: Config,
    overrides: Overrides = (),
    *,
    models: Sequence[str],
    params: Mapping[str, Mapping[str, Any]] | None = None,
    folds: int | None = None,
    metric: str | None = None,
    runs_dir: Path | str | None = None,
    resume: bool = False,
    reuse: bool = True,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
    watch: TrialWatcher | None = None,
    quiet: bool = False,
    model: Any = None,
) -> Benchmark:
    """Train several models on the same rows, and rank them: metric, significance, time, size and latency.

    Args:
        config: A YAML file, or its content as a mapping; its model section holds for the model of its own
            type.
        overrides: `key.path=value` texts, or a mapping from dotted keys.
        models: The values of `model.type` to compare.
        params: Options by model: `{"mlp": {"hidden": [64]}}`.
        folds: Cross-validate each on that many folds; None: train each once, on the splits of the config.
        metric: The metric to rank by: `f1`, `test_f1` or `val_f1`; default: the first one that the config
            computes, on the test split.
        runs_dir: The folder for run directories, and the study's folder beside them.
        resume: Continue the newest unfinished benchmark with the same question; completed runs are kept, and
            failed ones are tried again.
        reuse: Take completed runs of this experiment with the same inputs (see `train`) instead of training
            them again; callbacks do not see these.
        data: The data as objects, as `train` takes them; with `folds`, one pair (X, y) or one data frame.
        callbacks: Observers of each run.
        watch: Called with a mapping (`model`, `fold`, `run_id`, `status`, test metrics or `error`) when a run
            has ended.
        quiet: Print no line for each run that has ended; with `watch`, none is printed, either.
        model: Always refused: a model object would be the only one that is compared.

    Returns:
        The study; `failed` names the models that could not be trained. A model that fails does not stop the
        others.

    Raises:
        InputError: Config, models or data are wrong; nothing was trained.
        Interrupted: Ctrl-C has ended the study, as in `cross_validate`.
    """
    from trainwright.studies.benchmark import ModelSelection
    from trainwright.studies.benchmark import benchmark as run_study

    if model is not None:
        raise InputError(
            "benchmark compares the models that `models` names, and takes no model object; train that alone: "
            "trainwright.cross_validate(config, model=..., data=...)"
        )
    selection = ModelSelection(models, params or {}, folds, metric)
    with _working_in(config, overrides, data):
        request = _study_request(runs_dir, resume, reuse, data, callbacks, watched(watch, quiet=quiet))
        return study_unless_interrupted(run_study(config, overrides, request, selection))


@interruptible
def tune(
    config: Config | Callable[[Any], Any],
    overrides: Overrides = (),
    *,
    space: Mapping[str, Any] | None = None,
    runs_dir: Path | str | None = None,
    start_from: Path | str | None = None,
    resume: bool = False,
    model: Any = None,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
    watch: TrialWatcher | None = None,
    quiet: bool = False,
    **tuning: Any,
) -> Tuning:
    """Search for the best values of a config's keys, as its `tuning` section says; each trial is a run.

    A function `objective(trial)` can be tuned, too: it gets Optuna's trial, whose `suggest_*` define the
    space, and returns the value (with several metrics, one for each).

    The trials are a function of the config, however many are trained at once, and however often the study is
    killed and resumed.

    Args:
        config: A YAML file, its content as a mapping, or a function. With a function, `overrides` may set
            `tuning.trials` (default: 100), `tuning.mode` (default: min), `tuning.sampler`, `experiment.seed`
            and other keys of these two sections.
        overrides: `key.path=value` texts, or a mapping from dotted keys.
        space: For each dotted key a list of choices, or `{"low": ..., "high": ...}`; merged into the
            `tuning.space` of the config, as overrides are.
        runs_dir: The folder for run directories, and the study's folder beside them.
        start_from: Another study, by id, path or `last`: the sampler begins with those of its trials that are
            in the space.
        resume: Continue the newest unfinished study of the same question; `tuning.trials` may be larger now.
        model: A model object, or the name of a model, a class or a function, as `train` takes them. Each
            trial trains a copy of the object, with its weights; that stays as it is. With one, the space
            has no keys of `model`, and `tuning.parallel` must be 1.
        data: The data as objects, as `train` takes them; `tuning.parallel` must be 1.
        callbacks: Observers of each run; `tuning.parallel` must be 1.
        watch: Called with a mapping when a trial has ended: its `trial`, `run_id`, `status` and metric; and
            the `best`, `done`, `running`, `pruned`, `failed` and `time_left` of the search.
        quiet: Print no line for each run that has ended; with `watch`, none is printed, either.
        **tuning: Other keys of `tuning`, such as `trials=50`; Optuna's `n_trials` is another name of it.

    Returns:
        The study; `best_trial`, `best_run`, `best_params` and `best_config` are those of the best trial.

    Raises:
        InputError: Config, space or data are wrong; nothing was trained.
        Interrupted: Ctrl-C has ended the study, as in `cross_validate`.
        TrainingError: The first three trials have all failed.
    """
    from trainwright.studies.study import find_study
    from trainwright.studies.tuning.objective import tune_function
    from trainwright.studies.tuning.tune import tune as run_study

    given = {f"tuning.{key}": value for key, value in tuning.items()}
    given |= {} if space is None else {"tuning.space": space}
    if given:
        overrides = with_settings(overrides or {}, given)
    if callable(config):
        if model is not None:
            raise InputError("a function makes its own models: leave model out")
    else:
        config, overrides, model = _named(config, overrides, model)
    with _working_in(config, overrides, data):
        request = _study_request(runs_dir, resume, False, data, callbacks, watched(watch, quiet=quiet))
        request = replace(request, model=model)
        if callable(config):
            if start_from is not None:
                raise InputError(
                    "start_from: a study of a Python function cannot start from another study; leave it out"
                )
            return study_unless_interrupted(tune_function(config, overrides, request))
        earlier = None if start_from is None else find_study(str(start_from), request.runs_dir)
        return study_unless_interrupted(run_study(config, overrides, request, earlier))


def suggest_tuning(config: Config, overrides: Overrides = ()) -> str:
    """Return a `tuning` section (YAML) with the keys that are usually worth a search for a config's model.

    Raises:
        ConfigError: The config has problems.
        InputError: Nothing is known of this model.
    """
    from trainwright.studies.tuning.space_advice import suggest

    with _working_in(config, overrides, None):
        return suggest(config, overrides)


@interruptible
def resume_study(
    study: str,
    overrides: Overrides = (),
    *,
    runs_dir: Path | str | None = None,
    model: Any = None,
    data: Any = None,
    allow_change: bool = False,
    callbacks: Sequence[Callback] = (),
    watch: TrialWatcher | None = None,
    trust: bool = False,
    quiet: bool = False,
) -> Tuning:
    """Continue a search by its name, maybe for more trials or minutes: `{"tuning.trials": 100}`.

    The study keeps its config. If it ended by its time limit, it gets as many minutes again.

    Args:
        study: A path, an id, or a unique prefix of an id.
        overrides: `key.path=value` texts, or a mapping from dotted keys; allowed: `tuning.trials`,
            `tuning.max_minutes`, `tuning.target`, `tuning.parallel`.
        runs_dir: The folder of the runs.
        model: The model object, if `tune` was given one.
        data: The data objects, if `tune` was given some.
        allow_change: Continue although data or code have changed; the study's log records it.
        callbacks: Observers of each run; `tuning.parallel` must be 1.
        watch: As for `tune`.
        trust: Import the code that the study's config names.
        quiet: As for `tune`.

    Raises:
        RunNotFoundError: There is no such study.
        ChangedInputsError: Data or code have changed; `allow_change` accepts and records that.
        InputError: It is not a search, an override changes another key, or its config names code.
        RunLockedError: Another process works on it.
        Interrupted: Ctrl-C has ended the study, as in `cross_validate`.
    """
    from trainwright.studies.tuning.resume import resume_study as resume

    chosen = _study(study, runs_dir)
    request = _study_request(
        chosen.path.parent.parent, False, False, data, callbacks, watched(watch, quiet=quiet)
    )
    request = replace(request, allow_change=allow_change, model=model)
    return study_unless_interrupted(resume(chosen, overrides, request, trust=trust), "the same call")


@interruptible
def work_study(
    study: str,
    *,
    runs_dir: Path | str | None = None,
    watch: TrialWatcher | None = None,
    trust: bool = False,
    quiet: bool = False,
) -> Tuning:
    """Train trials of a search together with other processes, until the search has ended.

    Any number of processes may join, on all machines that share the folder of the runs. One of them is the
    leader, which decides the trials; when it ends, another one becomes the leader. If a process dies, another
    one continues its trial from the newest checkpoint.

    Args:
        study: A path, an id, or a unique prefix of an id.
        runs_dir: The folder of the runs.
        watch: As for `tune`; called while this process leads.
        trust: Import the code that the study's config names.
        quiet: As for `tune`.

    Returns:
        The study. One that is completed is left as it is.

    Raises:
        RunNotFoundError: There is no such study.
        InputError: It is not a search, its config names code, or its folder has no locks that all machines
            see.
        TrainingError: The first three trials have all failed.
        Interrupted: Ctrl-C has ended the work of this process.
    """
    from trainwright.studies.tuning.resume import work_on

    chosen = _study(study, runs_dir)
    request = _study_request(chosen.path.parent.parent, False, False, None, (), watched(watch, quiet=quiet))
    return study_unless_interrupted(work_on(chosen, request, trust=trust), "the same call")


@interruptible
def reproduce_study(
    study: str,
    *,
    runs_dir: Path | str | None = None,
    model: Any = None,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
    watch: TrialWatcher | None = None,
    trust: bool = False,
    quiet: bool = False,
) -> StudyReproduction:
    """Make all trials of a completed search again, as a new study, and compare the two trial by trial.

    Args:
        study: A path, an id, or a unique prefix of an id.
        runs_dir: The folder of the runs.
        model: The model object, if `tune` was given one.
        data: The data objects, if `tune` was given some.
        callbacks: Observers of each run; `tuning.parallel` must be 1.
        watch: As for `tune`.
        trust: Import the code that the study's config names.
        quiet: As for `tune`.

    Returns:
        The verdict and, where the studies differ, the first trial that does.

    Raises:
        RunNotFoundError: There is no such study.
        InputError: It is not a search, has not ended, or its config names code.
        Interrupted: Ctrl-C has ended the repetition.
    """
    from trainwright.studies.tuning.reproduce import reproduce_study as reproduce

    chosen = _study(study, runs_dir)
    watch = watched(watch, quiet=quiet)
    request = _study_request(chosen.path.parent.parent, False, False, data, callbacks, watch)
    return reproduce(chosen, replace(request, model=model), trust=trust)


def _named(config: Config, overrides: Overrides, model: Any) -> tuple[Config, Overrides, Any]:
    """Return a config that names the model, the overrides, and the model if it is an object."""
    return (config, overrides, None) if model is None else name_model(config, overrides, model)


def _working_in(
    config: Config | Callable[[Any], Any], overrides: Overrides, data: Any
) -> AbstractContextManager[None]:
    """Work in the current folder, and import code from it, and from beside the config."""
    beside: Sequence[Path] = ()
    if isinstance(config, str | PathLike):
        with suppress(ConfigError):  # it is reported where the study reads it
            beside = code_beside(load(config, overrides, Catalog(), objects=data is not None))
    return working_in(Path.cwd(), [Path.cwd(), *beside])


def _study(name: str, runs_dir: Path | str | None) -> Study:
    from trainwright.studies.study import Study, find_study

    return Study(find_study(name, local_runs_folder(runs_dir, "studies")).path.absolute())


def _study_request(
    runs_dir: Path | str | None,
    resume: bool,
    reuse: bool,
    data: Any,
    callbacks: Sequence[Callback],
    watch: TrialWatcher | None,
) -> StudyRequest:
    """Return the arguments of a study, besides its config."""
    from trainwright.studies.study import StudyRequest, ignore_trials

    folder = local_runs_folder(runs_dir, "studies")
    return StudyRequest(folder, resume, reuse, data, callbacks, watch or ignore_trials)
