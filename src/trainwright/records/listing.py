"""Finding runs in a folder of runs."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from trainwright import plugins
from trainwright.errors import InputError, RunNotFoundError, TrainwrightError
from trainwright.records.checkpoint_names import checkpoint_names
from trainwright.records.lineage import RELATIONS
from trainwright.records.run_dir import RunDir
from trainwright.records.status import TESTED
from trainwright.records.study import StudyRecord
from trainwright.records.trials import FILE as TRIALS
from trainwright.safe_files import read_regular, usable_path
from trainwright.storage.copies import download_records, refresh
from trainwright.storage.urls import is_url, url_of, working_folder

log = logging.getLogger("trainwright")
_NAMING = (StudyRecord.FILE, TRIALS)  # files of a study that name its runs
_HALF_URL = re.compile(rf"({'|'.join(plugins.BUILT_IN['store'])}):/?([^/].*)")


def runs_folder(runs_dir: Path | str | None = None) -> Path:
    """Return the folder that holds the runs; for a URL, that of their working copies.

    Args:
        runs_dir: A folder or a URL; default: `TRAINWRIGHT_RUNS`, or `runs` in the working directory.

    Raises:
        InputError: The URL cannot be used, or the folder is a file.
    """
    chosen = runs_dir or os.environ.get("TRAINWRIGHT_RUNS") or "runs"
    return working_folder(str(chosen)) if is_url(chosen) else _local(chosen)


def local_runs_folder(runs_dir: Path | str | None, what: str) -> Path:
    """Return the folder that holds the runs, for what cannot be kept in a store.

    Raises:
        InputError: The runs are in a store.
    """
    chosen = runs_dir or os.environ.get("TRAINWRIGHT_RUNS") or "runs"
    if is_url(chosen):
        raise InputError(f"{what} are kept in a local folder, not in {chosen}: choose one with --runs-dir")
    return _local(chosen)


def _local(chosen: Path | str) -> Path:
    """Return a folder of runs on the local disk.

    Raises:
        InputError: It is a file, too long for a path, or a URL that lacks its slashes.
    """
    if isinstance(chosen, str) and (half := _HALF_URL.fullmatch(chosen)):
        whole = f"{half[1]}://{half[2]}" if half[1] != "file" else f"file:///{half[2]}"
        raise InputError(f"{chosen} is neither a folder nor a URL; write {whole}")
    folder = usable_path(chosen)
    if folder.is_file():
        raise InputError(f"{chosen} is a file; give the folder of the runs, or the URL of a store")
    return folder


def all_runs(runs_dir: Path) -> Iterator[RunDir]:
    """Return the runs in a folder, newest first (run ids begin with the time in UTC).

    Raises:
        CheckpointError: The folder holds working copies, and their store cannot be read.
    """
    refresh(runs_dir)
    folders = (path.parent for path in runs_dir.glob("*/*/config.yaml"))
    return (RunDir(path) for path in sorted(folders, key=lambda path: path.name, reverse=True))


def has_model(run: RunDir) -> bool:
    """Return whether a run has weights that can be loaded: it has ended, or has saved a checkpoint.

    A run that another trainer made counts, as its error says where its model is.
    """
    if run.status() in TESTED:
        return True
    if (manifest := run.manifest()) is not None and manifest.trainer is not None:
        return True
    return bool(checkpoint_names(run))


def find_run(
    name: str,
    runs_dir: Path,
    before: RunDir | None = None,
    fits: Callable[[RunDir], bool] | None = None,
) -> RunDir:
    """Return the run that `name` means: a path, a URL, an id, a unique prefix of an id, or `last`.

    For a run in a store, all files except checkpoints are downloaded.

    Args:
        name: What the user called it.
        runs_dir: The folder of the run directories.
        before: Only runs older than this one are meant, unless they are named by their path.
        fits: Returns whether a run has what is asked for; `last` is the newest one that has, and that no
            study made. If none has, it is the newest one, so that the error says what that one lacks.

    Raises:
        RunNotFoundError: There is none, or more than one.
        CheckpointError: The store cannot be read.
    """
    if is_url(name):  # URL/experiment/run-id
        url, _, run_id = name.rstrip("/").rsplit("/", 2)
        if not is_url(url):
            raise RunNotFoundError(f"{name} names no run; give URL/EXPERIMENT/RUN")
        name, runs_dir = run_id, working_folder(url)
    run = _named(name, runs_dir, before, fits)
    download_records(run)
    return run


def _named(name: str, runs_dir: Path, before: RunDir | None, fits: Callable[[RunDir], bool] | None) -> RunDir:
    with contextlib.suppress(OSError):  # a name that is too long for a path
        if (Path(name) / "config.yaml").is_file():
            return RunDir(Path(name))
    runs = [run for run in all_runs(runs_dir) if before is None or run.id < before.id]
    if name == "last" and runs:
        return _last(runs, fits)
    matches = [run for run in runs if run.id == name]
    matches = matches or [run for run in runs if name and run.id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        first = ", ".join(run.id for run in matches[:5]) + (" ..." if len(matches) > 5 else "")
        raise RunNotFoundError(
            f"{name!r} is the beginning of {len(matches)} run ids: {first}; give more of the one you mean"
        )
    for folder in runs_dir.glob("*/*"):
        if folder.name == name and url_of(runs_dir):
            download_records(RunDir(folder))  # it is in the store, and this says why it cannot be read
    if (newest := next((run for run in runs if run.path.parent.name == name), None)) is not None:
        raise RunNotFoundError(f"{name!r} is an experiment, and no run; its newest run is {newest.id}")
    url = url_of(runs_dir)
    where, path = url or runs_dir.absolute(), f"{url}/EXPERIMENT/RUN" if url else "a path"
    if not runs:
        raise RunNotFoundError(f"no run {name!r}: {where} holds no runs; give another folder with --runs-dir")
    raise RunNotFoundError(
        f"no run {name!r} in {where} (the newest is {runs[0].id}); "
        f"give {path}, an id, the beginning of an id, or `last`"
    )


def _last(runs: Sequence[RunDir], fits: Callable[[RunDir], bool] | None) -> RunDir:
    """Return the newest run that fits and that somebody asked for.

    If there is none, return the newest one that fits, of a study; else the newest one.
    """
    helper = None
    for run in runs:
        try:
            if fits is not None and not fits(run):
                continue
            if not _is_helper(run):
                if run is not runs[0]:
                    log.info(
                        "last is run %s: newer ones lack what is asked for, or belong to a study", run.id
                    )
                return run
            helper = helper or run
        except TrainwrightError as error:  # a damaged run must not hide the others
            log.warning("run %s is skipped: %s", run.id, error)
    return helper or runs[0]


def newest_is_study(runs_dir: Path) -> bool:
    """Return whether a study is newer than every run that somebody asked for by itself."""
    studies = [path.parent.name.partition("-")[2] for path in runs_dir.glob(f"*/*/{StudyRecord.FILE}")]
    if not studies:
        return False
    newer = [run for run in all_runs(runs_dir) if run.id > max(studies)]
    return all(_is_helper(run) for run in newer)


def _is_helper(run: RunDir) -> bool:
    """Return whether a study made a run, and nobody asked for it by itself."""
    manifest = run.manifest()
    if manifest is None:  # it was killed before it wrote one
        records = [path for name in _NAMING for path in run.path.parent.glob(f"*/{name}")]
        return any(run.id.encode() in read_regular(path) for path in records)
    parent = manifest.parent
    return parent is not None and parent.relation not in RELATIONS
