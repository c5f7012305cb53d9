"""The verbs of Trainyard, as the command line and notebooks use them."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.config import Resolved
from trainyard.config import load as load_resolved
from trainyard.core.catalog import Catalog
from trainyard.core.run import UNFINISHED, RunDir, all_runs, default_runs_dir, find_run
from trainyard.errors import CheckpointError, ConfigError, InputError, Problem, RunLockedError, TrainyardError
from trainyard.integrations.owner import refuse_guest
from trainyard.redact import redacted_value
from trainyard.run import Run

if TYPE_CHECKING:
    from trainyard.callbacks.base import Callback
    from trainyard.comparison import Comparison
    from trainyard.core.predictor import Predictor
    from trainyard.core.reproduce import Reproduction
    from trainyard.datasets.base import DataBundle
    from trainyard.studies.benchmark import Benchmark
    from trainyard.studies.cross_validation import CrossValidation
    from trainyard.studies.study import Given, Watch
    from trainyard.types import Metrics, SplitName

log = logging.getLogger("trainyard")
Config = Path | str | Mapping[str, Any]
Overrides = Sequence[str] | Mapping[str, Any]
RunName = Run | Path | str
CLEANED = ("created", "crashed", "failed")


def check(config: Config, overrides: Overrides = ()) -> Resolved:
    """Reads and checks a config, without any framework.

    Raises:
        ConfigError: with every problem.
    """
    return load_resolved(config, overrides, Catalog())


def train(
    config: Config,
    overrides: Overrides = (),
    *,
    runs_dir: Path | str | None = None,
    resume: bool = False,
    model: Any = None,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Trains one run, from config to report.

    Args:
        config: a YAML file, or its content as a mapping.
        overrides: `key.path=value` texts, or a mapping from dotted keys.
        runs_dir: where run directories are made; default `TRAINYARD_RUNS`, or `runs`.
        resume: go on with the newest unfinished run of the same computation, if there is one. It keeps its own config:
            what differs and changes only the record (tracking ...) is not used, and named in a warning.
        model: a model object instead of `model.type`. Only who has it can reproduce the run.
        data: (train, val) or (train, val, test), each an (X, y) pair or a map-style dataset, or all rows as one pair or data
            frame, instead of the source that `data` names; its other settings (target, split ...) hold for them.
        callbacks: told of what happens.

    Raises:
        InputError: config, data or model are wrong; no run is left behind.
        TrainingError: the training failed; `resume` goes on from the last commit.
    """
    from trainyard.core.attempt import Request, run_attempt

    if model is not None:
        config, overrides = _with_model(config, overrides, model)
    resolved = load_resolved(config, overrides, Catalog(), objects=data is not None)
    _log_notes(resolved)
    place = Path(runs_dir) if runs_dir else default_runs_dir()
    objects = _objects(resolved, model, data, callbacks)
    if resolved.config.data is None and data is None:
        raise ConfigError(
            [Problem("no data section: train needs one", file=str(config) if not isinstance(config, Mapping) else "")]
        )
    with _working_in(Path.cwd()):
        if resume and (found := _unfinished(resolved, place)):
            log.info("resuming run %s", found.id)
            own = load_resolved(found.config_file, adapters=Catalog())
            _warn_of_unused(resolved, own, found)
            _need_objects(found, "resume", model=model, data=data)
            run_attempt(Request(own, found, objects))
            return Run(found)
        run = RunDir.create(place, resolved.config.experiment.name, resolved.dump())
        run_attempt(Request(resolved, run, objects))
    return Run(run)


def resume(
    run: RunName,
    *,
    runs_dir: Path | str | None = None,
    allow_change: bool = False,
    model: Any = None,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Goes on with a run from its newest whole checkpoint, to the bits of the run that was never interrupted.

    It works in the directory that the run was started in, and imports the user's code from there.

    Raises:
        RunNotFoundError: there is no such run.
        RunLockedError: another process owns it.
        ChangedInputsError: config, data or code have changed; `allow_change` lets them, and records it.
    """
    from trainyard.core.attempt import Request, run_attempt

    found = _find(run, runs_dir)
    refuse_guest(found, "resume")
    if found.status() == "completed":
        log.info("run %s is completed: there is nothing left to do", found.id)
        return Run(found)
    with _working_in(_working_directory(found)):
        resolved = load_resolved(found.config_file, adapters=Catalog())
        _need_objects(found, "resume", model=model, data=data)
        run_attempt(Request(resolved, found, _objects(resolved, model, data, callbacks), allow_change=allow_change))
    return Run(found)


def reproduce(
    run: RunName,
    *,
    runs_dir: Path | str | None = None,
    model: Any = None,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
) -> Reproduction:
    """Trains a completed run again, as a new run, and compares the two.

    It works in the directory that the run was started in, and imports the user's code from there.

    Raises:
        InputError: the run is not completed, or cannot be repeated here.
        Stopped: a signal ended the repetition.
    """
    from trainyard.core.attempt import Request, run_attempt
    from trainyard.core.reproduce import compare as compare_bits
    from trainyard.core.signals import Stopped

    original = _find(run, runs_dir)
    refuse_guest(original, "reproduce")
    if original.read("result.json").get("status") != "completed":
        raise InputError(f"run {original.id} is {original.status()}: only a completed run can be reproduced; resume it first")
    with _working_in(_working_directory(original)):
        resolved = load_resolved(original.config_file, adapters=Catalog())
        _need_objects(original, "reproduce", model=model, data=data)
        again = RunDir.create(original.path.parent.parent, original.experiment, resolved.dump())
        threads = original.read("manifest.json")["environment"]["threads"]
        parent = {"run_id": original.id, "relation": "reproduce"}
        result = run_attempt(Request(resolved, again, _objects(resolved, model, data, callbacks), parent, threads))
    if result["status"] != "completed":
        raise Stopped(result["status"])
    return compare_bits(original, again)


def load(run: RunName = "last", *, runs_dir: Path | str | None = None, model: Any = None) -> Predictor:
    """The model of a run, ready to predict: `trainyard.load("last").predict(frame)`.

    A run directory may come from elsewhere, so code is not imported from where it says that it was started: a model that
    the config names by an import path must be installed, or lie in the caller's own working directory. That holds for
    `evaluate` and `predict`, too.

    Args:
        run: a run, a path, an id, a unique prefix, or `last`.
        runs_dir: where the runs are.
        model: such an object as `train` was given, where it was given one; its weights become those of the run.
    """
    from trainyard.core.predictor import Predictor

    found = _find(run, runs_dir)
    refuse_guest(found, "load")
    _need_objects(found, "load", model=model)
    with _working_in(Path.cwd(), _own_code(found)):
        return Predictor(found, model)


def evaluate(
    run: RunName,
    *,
    split: SplitName = "test",
    data: Any = None,
    runs_dir: Path | str | None = None,
    model: Any = None,
) -> Metrics:
    """The metrics of a run's model on one of its splits, or on other rows.

    Relative paths in the run's config are relative to where it was started; code is imported as `load` does.

    Args:
        run: a run, a path, an id, a unique prefix, or `last`.
        split: a split of the run's own data.
        data: other rows: a CSV or Parquet file, or a data frame. For a run that was given its data as objects, these
            again (then `split` is one of theirs), or a file.
        runs_dir: where the runs are.
        model: such an object as `train` was given, where it was given one.

    Raises:
        InputError: the run has no weights or no such split, an object is missing, or the data are not the run's own.
    """
    found = _find(run, runs_dir)
    refuse_guest(found, "evaluate")
    is_file = isinstance(data, Path | str)
    _need_objects(found, "evaluate", model=model, data=data)
    predictor = load(Run(found), model=model)
    if "data" in _given_objects(found) and not is_file:
        return _evaluate_given(found, predictor, split, data, model)
    rows = predictor.read(Path(data)) if is_file else data
    with _working_in(_working_directory(found), _own_code(found)):
        return predictor.evaluate(split, rows).metrics


def predict(run: RunName, data: Path | str, *, runs_dir: Path | str | None = None, model: Any = None) -> Any:
    """The predictions for the rows of a CSV or Parquet file, as a data frame; `model` and imported code as in `load`."""
    predictor = load(run, runs_dir=runs_dir, model=model)
    return predictor.predict(predictor.read(Path(data)))


def export(
    run: RunName, path: Path | str, form: str | None = None, *, runs_dir: Path | str | None = None, model: Any = None
) -> Path:
    """Writes a run's model as a file or folder of its library's own (`model.ubj`, `model.skops`, a SavedModel ...).

    Args:
        run: a run, a path, an id, a unique prefix, or `last`.
        path: what to make; one that is there is replaced.
        form: one of the framework's formats; default: the one that the path ends with; its usual one if the path has no ending.
        runs_dir: where the runs are.
        model: such an object as `train` was given, where it was given one; imported code as in `load`.
    """
    return load(run, runs_dir=runs_dir, model=model).export(Path(path), form)


def explain(run: RunName, *, data: Any = None, runs_dir: Path | str | None = None, model: Any = None) -> dict[str, Any]:
    """What a run's model looks at: importance, permutation importance, SHAP values and partial dependence.

    They are written into the run's directory, and its report is made anew. `data` and `model` are what `train` was given as
    objects, if it was; paths and imported code are as in `evaluate`.

    Raises:
        InputError: the run has no weights, an object is missing, or the data are not the run's own.
    """
    found = _find(run, runs_dir)
    _need_objects(found, "explain", model=model, data=data)
    predictor = load(Run(found), model=model)
    bundle = _given_bundle(found, predictor, data) if data is not None else None
    with _working_in(_working_directory(found), _own_code(found)):
        explanation = predictor.explain(bundle)
    report(Run(found))
    return explanation


def report(run: RunName, *, runs_dir: Path | str | None = None) -> Path:
    """Writes the run's `report.html` anew, and returns its path."""
    from trainyard.reports.html import write_report

    return write_report(_find(run, runs_dir).path)


def runs(runs_dir: Path | str | None = None, experiment: str | None = None) -> list[Run]:
    """The runs, newest first."""
    found = all_runs(Path(runs_dir) if runs_dir else default_runs_dir())
    return [Run(run) for run in found if experiment in (None, run.experiment)]


def get(run: RunName, *, runs_dir: Path | str | None = None) -> Run:
    """The run that a path, an id, a unique prefix or `last` means."""
    return Run(_find(run, runs_dir))


def compare(first: RunName, second: RunName, *, runs_dir: Path | str | None = None) -> Comparison:
    """Two runs side by side: in what config and inputs they differ, and what came of it."""
    from trainyard.comparison import compare as compare_runs

    with _working_in(Path.cwd()):
        return compare_runs(get(first, runs_dir=runs_dir), get(second, runs_dir=runs_dir))


def init(file: Path | str, target: str) -> str:
    """A commented config (YAML) that trains on a data file as it stands.

    Raises:
        DataError: the file cannot be read, or has no such column.
    """
    from trainyard.datasets.sniff import draft_config

    return draft_config(file, target)


def schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of config files."""
    from trainyard.config.jsonschema import json_schema

    return json_schema(Catalog())


def clean(runs_dir: Path | str | None = None, *, statuses: Sequence[str] | None = None, dry_run: bool = True) -> list[Run]:
    """Deletes runs, and returns them; with `dry_run`, only returns them.

    A run that is under way is never touched, and one that is damaged or cannot be deleted is passed over with a warning.

    Args:
        runs_dir: where the runs are.
        statuses: the runs that stand so, whatever they hold; default: those of `CLEANED` that hold no checkpoint, so that
            nothing is lost that could be resumed.
        dry_run: delete nothing.
    """
    chosen = []
    for run in all_runs(Path(runs_dir) if runs_dir else default_runs_dir()):
        try:
            attempt = run.next_attempt()
            if _is_unwanted(run, statuses) and (dry_run or _delete(run, attempt)):
                chosen.append(Run(run))
        except (CheckpointError, OSError, ValueError) as error:
            log.warning("run %s is passed over: %s", run.id, error)
    return chosen


def _is_unwanted(run: RunDir, statuses: Sequence[str] | None) -> bool:
    status = run.status()
    if statuses is not None:
        return status in statuses and status != "running"
    return status in CLEANED and not any(run.path.glob("checkpoints/*/manifest.json"))


def _delete(run: RunDir, attempt: int) -> bool:
    """Deletes a run as its owner; not if another process owns it, or has taken it up since its next attempt was `attempt`."""
    try:
        run.acquire()
    except RunLockedError as error:
        log.info("%s", error)
        return False
    try:
        if run.next_attempt() != attempt:
            return False
        shutil.rmtree(run.path)
    finally:
        run.release()
    return True


def sync(run: RunName, *, runs_dir: Path | str | None = None) -> Any:
    """Sends to the trackers what they do not have yet."""
    from trainyard.trackers.feed import sync as sync_trackers

    return sync_trackers(_find(run, runs_dir).path, timeout=None)


def cross_validate(
    config: Config,
    overrides: Overrides = (),
    *,
    folds: int | None = None,
    runs_dir: Path | str | None = None,
    resume: bool = False,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
    watch: Watch | None = None,
) -> CrossValidation:
    """Trains a run for each fold of the rows, and tests it on that fold; gives mean and spread, and each row's prediction.

    Folds are stratified for classes (`data.split.stratify`), keep groups together (`data.split.group`), or follow each other
    in time (`data.split.time`: each run learns from older rows only). `data.split.val` of the other rows validate. Rows of
    `val_path` and `test_path` are left out.

    Args:
        config: a YAML file, or its content as a mapping.
        overrides: `key.path=value` texts, or a mapping from dotted keys.
        folds: how many; default: `data.split.folds` of the config, or 5.
        runs_dir: where run directories, and the study's folder beside them, are made.
        resume: go on with the newest unfinished cross-validation of the same config and data: runs that are done are kept.
        data: all rows as one pair (X, y) or one data frame, instead of `data`.
        callbacks: told of what happens in each run.
        watch: called with a mapping (`fold`, `run_id`, `status`, test metrics) when a run ended.

    Returns:
        The study; its `status` says whether a signal ended it.

    Raises:
        InputError: config or data are wrong, or cannot be cut into so many folds.
        TrainingError: the training of a fold failed; `resume` goes on from there.
    """
    from trainyard.studies.cross_validation import cross_validate as run_study

    with _working_in(Path.cwd()):
        return run_study(config, overrides, _given(runs_dir, resume, data, callbacks, watch), folds)


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
    data: Any = None,
    callbacks: Sequence[Callback] = (),
    watch: Watch | None = None,
) -> Benchmark:
    """Trains several models on the same rows, and ranks them: metric, significance, time, size and latency.

    Args:
        config: a YAML file, or its content as a mapping; its model section holds for the model of its own type.
        overrides: `key.path=value` texts, or a mapping from dotted keys.
        models: the values of `model.type` to compare.
        params: options by model: `{"mlp": {"hidden": [64]}}`.
        folds: cross-validate each in so many folds; None: train each once, on the splits of the config.
        metric: what to rank by: `f1`, `test_f1` or `val_f1`; default: the first one that the config computes, on the test split.
        runs_dir: where run directories, and the study's folder beside them, are made.
        resume: go on with the newest unfinished benchmark of the same; runs that are done are kept, failed ones tried again.
        data: the data as objects, as `train` takes them; with `folds`, one pair (X, y) or one data frame.
        callbacks: told of what happens in each run.
        watch: called with a mapping (`model`, `fold`, `run_id`, `status`, test metrics or `error`) when a run ended.

    Returns:
        The study; `failed` names the models that could not be trained. A model that fails does not stop the others.

    Raises:
        InputError: config, models or data are wrong; nothing was trained.
    """
    from trainyard.studies.benchmark import Contest
    from trainyard.studies.benchmark import benchmark as run_study

    contest = Contest(models, params or {}, folds, metric)
    with _working_in(Path.cwd()):
        return run_study(config, overrides, _given(runs_dir, resume, data, callbacks, watch), contest)


def _given(runs_dir: Path | str | None, resume: bool, data: Any, callbacks: Sequence[Callback], watch: Watch | None) -> Given:
    """What stands beside the config of a study."""
    from trainyard.studies.study import Given, unwatched

    return Given(Path(runs_dir) if runs_dir else default_runs_dir(), resume, data, callbacks, watch or unwatched)


def _find(run: RunName, runs_dir: Path | str | None) -> RunDir:
    if isinstance(run, Run):
        return RunDir(run.path)
    return find_run(str(run), Path(runs_dir) if runs_dir else default_runs_dir())


def _unfinished(resolved: Resolved, runs_dir: Path) -> RunDir | None:
    """The newest unfinished run of the same computation."""
    wanted, experiment = resolved.computation_hash(), resolved.config.experiment.name
    for run in all_runs(runs_dir):
        try:
            if run.experiment == experiment and run.status() in UNFINISHED and _computation(run) == wanted:
                return run
        except TrainyardError as error:  # what is left of another run is none of this one's business
            log.warning("run %s is passed over: %s", run.id, error)
    return None


def _computation(run: RunDir) -> str:
    """A run's computation hash; killed before its manifest was written, it is known by its config alone."""
    recorded: str | None = run.read("manifest.json").get("computation_hash")
    return recorded or load_resolved(run.config_file, adapters=Catalog()).computation_hash()


def _working_directory(run: RunDir) -> Path:
    """Where the run was started: what its config names by relative paths lies there."""
    attempts = run.attempts()
    recorded = Path(attempts[0]["working_directory"]) if attempts else Path.cwd()
    return recorded if recorded.is_dir() else Path.cwd()


def _own_code(run: RunDir) -> list[Path]:
    """Where code may be imported from for a run that may come from elsewhere: the caller's own working directory.

    And the run's, where the caller's lies in it.
    """
    here, recorded = Path.cwd(), _working_directory(run)
    return [here, *([recorded] if recorded != here and here.is_relative_to(recorded) else [])]


@contextlib.contextmanager
def _working_in(folder: Path, code: Sequence[Path] | None = None) -> Iterator[None]:
    """Works in a folder; modules can be imported from the folders in `code` (default: from this one)."""
    before = list(sys.path)
    # "" in it (notebooks have that) would mean the new folder.
    during = [str(Path(place).absolute()) for place in (*map(str, code or [folder]), *before)]
    with contextlib.chdir(folder):
        sys.path[:] = during
        try:
            yield
        finally:
            added = [place for place in sys.path if place not in during]
            sys.path[:] = [*added, *before]


def _objects(resolved: Resolved, model: Any, data: Any, callbacks: Sequence[Callback]) -> Any:
    from trainyard.core.build import Objects

    bundle = None
    if data is not None:
        from trainyard.datasets.objects import from_objects

        bundle = from_objects(data, resolved.config.data)
    objects = Objects(model, bundle, callbacks)
    if objects.names:
        log.warning("%s given as objects: only their author can reproduce this run", " and ".join(objects.names))
    return objects


def _with_model(config: Config, overrides: Overrides, model: Any) -> tuple[Config, Overrides]:
    """Puts the object's class, and its framework, where the config names the model."""
    from trainyard.core.registry import framework_of_class

    named = {"type": _class_name(type(model)), "framework": framework_of_class(type(model))}
    if isinstance(config, Mapping):
        return {**config, "model": named}, overrides
    settings = {f"model.{key}": value for key, value in named.items()}
    if isinstance(overrides, Mapping):
        return config, {**overrides, **settings}
    return config, [*overrides, *(f"{key}={value}" for key, value in settings.items())]


def _class_name(cls: type) -> str:
    """`package.module:Name`, as configs name classes; nothing is imported by it, so it need not lead to a local class."""
    words = [*cls.__module__.split("."), cls.__qualname__.rpartition(".")[2]]
    *module, name = (re.sub(r"^(?![A-Za-z_])", "_", re.sub(r"\W", "_", word)) for word in words)
    return f"{'.'.join(module)}:{name}"


def _given_objects(run: RunDir) -> list[str]:
    """Which of `model` and `data` the run was given as objects."""
    return list(run.read("manifest.json").get("objects", []))


def _need_objects(run: RunDir, verb: str, **given: Any) -> None:
    names = [name for name in _given_objects(run) if name in given]
    if any(given[name] is None for name in names):
        again = ", ".join(f"{name}=..." for name in names)
        raise InputError(
            f"run {run.id} was given {' and '.join(names)} as {'an object' if len(names) == 1 else 'objects'}, which no file "
            f"holds: pass such again, in Python: trainyard.{verb}({run.id!r}, {again}); the command line cannot"
        )


def _warn_of_unused(given: Resolved, own: Resolved, run: RunDir) -> None:
    """Names what was given and has no effect, as a run keeps the config that it was started with."""
    now, kept = given.flat(), own.flat()
    for key in dict.fromkeys([*now, *kept]):
        if now.get(key) != kept.get(key):
            mine, its = (redacted_value(key, values.get(key, "nothing")) for values in (now, kept))
            log.warning("config: %s: %s is not used: run %s keeps its own value %s", key, mine, run.id, its)


def _evaluate_given(run: RunDir, predictor: Predictor, split: SplitName, data: Any, model: Any) -> Metrics:
    """The metrics on a split of the data objects that the run was given."""
    from trainyard.core.build import build_framework, wanted_metrics, weights_file
    from trainyard.datasets.base import DataBundle
    from trainyard.evaluation.metrics import evaluate as compute

    manifest, bundle = run.read("manifest.json"), _given_bundle(run, predictor, data)
    if split not in bundle.splits:
        raise InputError(f"run {run.id} has no {split} split; it has {', '.join(bundle.splits)}")
    own = DataBundle(predictor.info, bundle.splits)
    framework = build_framework(predictor.config, own, manifest["environment"]["threads"], None, model)
    framework.restore(weights_file(run).parent, weights_only=True)
    wanted = wanted_metrics(predictor.config, predictor.info)
    return compute(framework.predict(bundle.splits[split]), wanted, predictor.info, split).metrics


def _given_bundle(run: RunDir, predictor: Predictor, data: Any) -> DataBundle:
    """The data objects that the run was given, prepared as they were.

    Raises:
        InputError: they are others.
    """
    from trainyard.core.inputs import data_inputs
    from trainyard.datasets.objects import from_objects

    bundle = from_objects(data, predictor.config.data)
    if data_inputs(bundle)["hash"] != run.read("manifest.json")["data"]["hash"]:
        raise InputError(f"the data are not those that run {run.id} was made with: pass what `train` was given")
    return bundle


def _log_notes(resolved: Resolved) -> None:
    for note in resolved.notes:
        log.info("config: %s", note)
    if resolved.config.distributed.enabled:
        log.info("config: distributed.enabled: this version trains in one process")
