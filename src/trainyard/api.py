"""The verbs of Trainyard, as the command line and notebooks use them."""

from __future__ import annotations

import contextlib
import logging
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainyard.config import Resolved
from trainyard.config import load as load_resolved
from trainyard.core.catalog import Catalog
from trainyard.core.run import UNFINISHED, RunDir, all_runs, default_runs_dir, find_run
from trainyard.errors import ConfigError, InputError, Problem, TrainyardError
from trainyard.run import Run

if TYPE_CHECKING:
    from trainyard.callbacks.base import Callback
    from trainyard.comparison import Comparison
    from trainyard.core.predictor import Predictor
    from trainyard.core.reproduce import Reproduction
    from trainyard.types import Metrics, SplitName

log = logging.getLogger("trainyard")
Config = Path | str | Mapping[str, Any]
Overrides = Sequence[str] | Mapping[str, Any]
RunName = Run | Path | str


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
        resume: go on with the newest unfinished run of the same computation, if there is one.
        model: a model object instead of `model.type`. Only who has it can reproduce the run.
        data: (train, val) or (train, val, test), each an (X, y) pair or a map-style dataset, instead of `data`.
        callbacks: told of what happens.

    Raises:
        InputError: config, data or model are wrong; no run is left behind.
        TrainingError: the training failed; `resume` goes on from the last commit.
    """
    from trainyard.core.attempt import Request, run_attempt

    if model is not None:
        config, overrides = _with_model(config, overrides, model)
    resolved = check(config, overrides)
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
            run_attempt(Request(load_resolved(found.config_file, adapters=Catalog()), found, objects))
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

    Raises:
        RunNotFoundError: there is no such run.
        RunLockedError: another process owns it.
        ChangedInputsError: config, data or code have changed; `allow_change` lets them, and records it.
    """
    from trainyard.core.attempt import Request, run_attempt

    found = _find(run, runs_dir)
    if found.status() == "completed":
        log.info("run %s is completed: there is nothing left to do", found.id)
        return Run(found)
    with _working_in(_working_directory(found)):
        resolved = load_resolved(found.config_file, adapters=Catalog())
        _need_objects(found, model, data)
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

    Raises:
        InputError: the run is not completed, or cannot be repeated here.
        Stopped: a signal ended the repetition.
    """
    from trainyard.core.attempt import Request, run_attempt
    from trainyard.core.reproduce import compare as compare_bits
    from trainyard.core.signals import Stopped

    original = _find(run, runs_dir)
    if original.read("result.json").get("status") != "completed":
        raise InputError(f"run {original.id} is {original.status()}: only a completed run can be reproduced; resume it first")
    with _working_in(_working_directory(original)):
        resolved = load_resolved(original.config_file, adapters=Catalog())
        _need_objects(original, model, data)
        again = RunDir.create(original.path.parent.parent, original.experiment, resolved.dump())
        threads = original.read("manifest.json")["environment"]["threads"]
        parent = {"run_id": original.id, "relation": "reproduce"}
        result = run_attempt(Request(resolved, again, _objects(resolved, model, data, callbacks), parent, threads))
    if result["status"] != "completed":
        raise Stopped(result["status"])
    return compare_bits(original, again)


def load(run: RunName = "last", *, runs_dir: Path | str | None = None, model: Any = None) -> Predictor:
    """The model of a run, ready to predict: `trainyard.load("last").predict(frame)`."""
    from trainyard.core.predictor import Predictor

    found = _find(run, runs_dir)
    with _working_in(_working_directory(found)):
        return Predictor(found, model)


def evaluate(
    run: RunName, *, split: SplitName = "test", data: Path | str | None = None, runs_dir: Path | str | None = None
) -> Metrics:
    """The metrics of a run's model on one of its splits, or on the rows of a file."""
    found = _find(run, runs_dir)
    predictor = load(Run(found))
    rows = None if data is None else predictor.read(Path(data))
    with _working_in(_working_directory(found)):
        return predictor.evaluate(split, rows).metrics


def predict(run: RunName, data: Path | str, *, runs_dir: Path | str | None = None) -> Any:
    """The predictions for the rows of a CSV or Parquet file, as a data frame."""
    predictor = load(run, runs_dir=runs_dir)
    return predictor.predict(predictor.read(Path(data)))


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


def clean(
    runs_dir: Path | str | None = None, *, statuses: Sequence[str] = ("created", "crashed", "failed"), dry_run: bool = True
) -> list[Run]:
    """Deletes the runs that stand so, and returns them; with `dry_run`, only returns them. Running ones are never touched."""
    chosen = [run for run in runs(runs_dir) if run.status in statuses and run.status != "running"]
    for run in chosen:
        if not dry_run:
            shutil.rmtree(run.path)
    return chosen


def sync(run: RunName, *, runs_dir: Path | str | None = None) -> Any:
    """Sends to the trackers what they do not have yet."""
    from trainyard.trackers.feed import sync as sync_trackers

    return sync_trackers(_find(run, runs_dir).path, timeout=None)


def _find(run: RunName, runs_dir: Path | str | None) -> RunDir:
    if isinstance(run, Run):
        return RunDir(run.path)
    return find_run(str(run), Path(runs_dir) if runs_dir else default_runs_dir())


def _unfinished(resolved: Resolved, runs_dir: Path) -> RunDir | None:
    """The newest unfinished run of the same computation."""
    wanted, experiment = resolved.computation_hash(), resolved.config.experiment.name
    for run in all_runs(runs_dir):
        try:
            if run.experiment == experiment and run.status() in UNFINISHED and not run.is_owned() and _computation(run) == wanted:
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


@contextlib.contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    """Works in a folder, whose modules can be imported."""
    with contextlib.chdir(folder):
        sys.path.insert(0, str(folder))
        try:
            yield
        finally:
            with contextlib.suppress(ValueError):
                sys.path.remove(str(folder))


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
    """Puts the object's class where the config names the model."""
    name = f"{type(model).__module__}:{type(model).__qualname__}"
    if isinstance(config, Mapping):
        return {**config, "model": {"type": name}}, overrides
    if isinstance(overrides, Mapping):
        return config, {**overrides, "model.type": name}
    return config, [*overrides, f"model.type={name}"]


def _need_objects(run: RunDir, model: Any, data: Any) -> None:
    given = {"model": model, "data": data}
    missing = [name for name in run.read("manifest.json").get("objects", []) if given[name] is None]
    if missing:
        raise InputError(
            f"run {run.id} was given {' and '.join(missing)} as objects; only who has them can go on: pass them again"
        )


def _log_notes(resolved: Resolved) -> None:
    for note in resolved.notes:
        log.info("config: %s", note)
    if resolved.config.distributed.enabled:
        log.info("config: distributed.enabled: this version trains in one process")
