"""Find the run that a user means."""

from __future__ import annotations

import glob
import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from trainwright.config import Overrides, Resolved
from trainwright.config.schema import PLACEMENT
from trainwright.errors import InputError, RunLockedError, TrainwrightError
from trainwright.records.artifact import ArtifactDir, is_artifact, is_recorded, read_certificate
from trainwright.records.listing import all_runs, find_run, has_model, runs_folder
from trainwright.records.run_dir import RunDir
from trainwright.records.status import UNFINISHED
from trainwright.redact import redacted_value
from trainwright.runs.run import Run
from trainwright.runs.run_config import read_config
from trainwright.storage.ownership import is_own

log = logging.getLogger("trainwright")
RunName = Run | Path | str
_LENGTH = ("training.epochs", "training.max_steps")


def find(run: RunName, runs_dir: Path | str | None, fits: Callable[[RunDir], bool] | None = None) -> RunDir:
    """Return the directory of the run that a user names; see `find_run`. An exported model has one, too.

    Raises:
        InputError: An exported model is named where a run is needed.
        OtherFormatError: Another version of Trainwright wrote the run.
    """
    if not isinstance(run, Run) and is_artifact(path := Path(str(run))):
        return _artifact(path, runs_dir, fits)
    found = RunDir(run.path) if isinstance(run, Run) else find_run(str(run), runs_folder(runs_dir), fits=fits)
    found.check_format()
    return found


def _artifact(path: Path, runs_dir: Path | str | None, fits: Callable[[RunDir], bool] | None) -> ArtifactDir:
    """Return the exported model at a path, for what needs a model alone.

    Raises:
        InputError: What is asked for needs a run.
    """
    known = read_certificate(path)
    if fits is not has_model:
        raise InputError(
            f"{path} is an exported model, and no run: predict, evaluate, runs compare and certificate "
            f"verify take it; it came from run {known.run['id']}"
        )
    folder = runs_folder(runs_dir)
    runs = [RunDir(folder) for folder in folder.glob(f"*/{glob.escape(known.run['id'])}")]
    own = [run for run in runs if is_own(run.path)]
    recorded = any(is_recorded(run, path) for run in own)
    return ArtifactDir(path, known, is_own=recorded, has_own_run=bool(own))


def refuse_compressed(run: RunDir, verb: str) -> None:
    """Refuse to train a run that was compressed from another one.

    Raises:
        InputError: It was.
    """
    lineage = run.lineage()
    if lineage is not None and lineage.relation == "compress":
        raise InputError(
            f"run {run.id} is compressed from {lineage.run_id}, and has no training to {verb}: {verb} that "
            "one, and compress the result"
        )


def find_unfinished(resolved: Resolved, runs_dir: Path) -> RunDir | None:
    """Return the newest unfinished run of the same computation, or None."""
    wanted, experiment = resolved.computation_hash(), resolved.config.experiment.name
    for run in all_runs(runs_dir):
        try:
            if run.experiment == experiment and run.status() in UNFINISHED and _computation(run) == wanted:
                return run
        except TrainwrightError as error:  # a damaged run must not stop this one
            log.warning("run %s is skipped: %s", run.id, error)
    return None


def refuse_running(resolved: Resolved, runs_dir: Path) -> None:
    """Refuse to begin another run of a computation that a process works on.

    Raises:
        RunLockedError: There is such a run.
    """
    wanted, experiment = resolved.computation_hash(), resolved.config.experiment.name
    for run in all_runs(runs_dir):
        if run.experiment == experiment and run.status() == "running" and _is_of(run, wanted):
            raise RunLockedError(
                f"run {run.id} of this computation is running: wait for it, or stop it (trainwright stop "
                f"{run.id}); without --resume (resume=True), another run begins"
            )


def _is_of(run: RunDir, computation: str) -> bool:
    try:
        return _computation(run) == computation
    except TrainwrightError:  # it is damaged
        return False


def _computation(run: RunDir) -> str:
    """Return a run's computation hash: of its config, if it was killed before its manifest was written."""
    manifest = run.manifest()
    recorded = manifest.computation_hash if manifest else None
    if manifest is None and run.lineage() is not None:
        return ""  # its config is not all that it computes from
    return recorded or read_config(run).computation_hash()


def placement_of_overrides(run: RunDir, own: Resolved, overrides: Overrides) -> dict[str, Any]:
    """Return the placement that overrides ask for, by dotted key.

    Raises:
        ConfigError: An override is wrong.
        InputError: One changes another key.
    """
    if not overrides:
        return {}
    given = read_config(run, overrides)
    now, kept = given.flat(), own.flat()
    others = [key for key in {**now, **kept} if now.get(key) != kept.get(key) and key not in PLACEMENT]
    if others:
        longer = f"; finish this run (trainwright resume {run.id}), then resume it with {others[0]}=..."
        raise InputError(
            f"{others[0]}: a resumed run keeps its config; only where it computes and how it reads can be "
            f"changed, as by training.threads or training.device"
            f"{longer if others[0] in _LENGTH else ''}; to change more, fork it: "
            f"trainwright fork {run.id} {others[0]}=..."
        )
    return {key: now[key] for key in PLACEMENT if given.sources.get(key) != own.sources.get(key)}


def mesh_of_overrides(run: RunDir, own: Resolved, overrides: Overrides, verb: str) -> dict[str, Any]:
    """Return the mesh that overrides ask for, by dotted key: another placement of the run's processes.

    Args:
        run: The run.
        own: Its config.
        overrides: `distributed.nproc=2` and the like.
        verb: What is done with the run.

    Raises:
        ConfigError: An override is wrong, or the mesh does not divide the virtual one.
        InputError: One changes another key, or the framework knows no meshes.
    """
    if not overrides:
        return {}
    from trainwright.runs.processes.started import processes_of

    processes_of(own.config)
    given = read_config(run, overrides)
    asked = [key for key in given.sources if given.sources[key] != own.sources.get(key)]
    for key in asked:
        if not key.startswith("distributed."):
            raise InputError(
                f"{key}: {verb} keeps the run's config, but for its processes: distributed.nproc, strategy, "
                "shard, tensor, pipeline ..."
            )
        if key not in PLACEMENT:
            raise InputError(
                f"{key}: the bits depend on it, so {verb} keeps that of the run; only the mesh of processes "
                "can be another one: distributed.nproc, strategy, shard, tensor, pipeline ..."
            )
    now = given.flat()
    return {key: now[key] for key in asked}


def warn_of_unused(given: Resolved, own: Resolved, run: RunDir, known: Collection[str] = ()) -> None:
    """Warn of settings other than the placement that are not used, as a run keeps its own config.

    Args:
        given: The config that was asked for.
        own: The run's config.
        run: The run.
        known: Keys whose values make no difference.
    """
    now, kept = given.flat(), own.flat()
    for key in dict.fromkeys([*now, *kept]):
        if now.get(key) != kept.get(key) and key not in PLACEMENT and key not in known:
            mine, its = (redacted_value(key, values.get(key, "nothing")) for values in (now, kept))
            log.warning("config: %s: %s is not used: run %s keeps its own value %s", key, mine, run.id, its)
