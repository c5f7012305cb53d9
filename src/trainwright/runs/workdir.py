"""The working directory of a run, and the folders of the user's own project."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder
from pathlib import Path

from trainwright.config import Resolved
from trainwright.datasets.samples.file_hashes import hash_of
from trainwright.errors import ChangedInputsError, InputError
from trainwright.process.environ import temporary_environment
from trainwright.process.observation.observing import observing
from trainwright.records.creation import Creation
from trainwright.records.run_dir import RunDir
from trainwright.records.study import StudyRecord
from trainwright.require import import_paths, importing_by
from trainwright.runs.semantics import changed, in_words
from trainwright.runs.trust import RunImports
from trainwright.storage.ownership import Signature, is_own, own_code_folder

_LIBRARIES = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
_STANDARD = [one for path in _LIBRARIES for one in (path, os.path.join(path, "lib-dynload"))]  # noqa: PTH118
_RECORDS = (Creation.FILE, StudyRecord.FILE, Signature.FILE)  # of runs and studies


def working_directory(run: RunDir) -> Path:
    """Return the folder that relative paths in the run's config start from.

    It is the one in which the run was created. Where that is gone or cannot be right (a relative one, or one
    inside the run directory), it is the one of the first attempt, or else the current one.
    """
    creation, attempts = run.creation(), run.attempts()
    recorded = [creation.working_directory] if creation else []
    recorded += [attempt.working_directory for attempt in attempts[:1]]
    usable = (
        path
        for path in map(Path, recorded)
        if path.is_absolute() and path.is_dir() and not _is_inside(path, run.path)
    )
    return next(usable, Path.cwd())


def code_folders(run: RunDir, *, resume: bool = False, trust: bool = False) -> list[Path]:
    """Return the folders of the user's own project, from which the run may import code.

    The caller's working directory always counts. The one that the run records counts, too, if the user trusts
    the run; or if the run is the user's own (see `storage.ownership`), and the caller either works below that
    folder, or resumes the run and the folder of runs is in it. Where it counts, so does the folder of the
    config of a run that is trusted or own, if code was there. A folder of runs, or one inside a run
    directory, is no project, and never counts.

    Args:
        run: The run directory.
        resume: Whether the run is to be resumed.
        trust: Whether the user trusts the run.
    """
    here, recorded = Path.cwd(), working_directory(run)
    runs = run.path.resolve().parent.parent
    holds_runs = recorded.resolve() == runs.parent
    folders = [here]
    if (
        recorded != here
        and _is_private(recorded)
        and ((resume and holds_runs) or here.is_relative_to(recorded))
        and is_own(run.path)
    ):
        folders = [recorded, here]  # in the other one there may be another project's module of the same name
    elif recorded != here and trust:
        folders = [here, recorded]
    if recorded in folders and (beside := _code_of(run, trust=trust)) is not None:
        folders.append(beside)
    return [folder for folder in folders if not _is_of_runs(folder, run.path)]


def _code_of(run: RunDir, *, trust: bool) -> Path | None:
    """Return the folder of the config of a run, if code that it names was there and may be imported."""
    if not trust:
        return own_code(run.path)
    created = run.creation()
    folder = Path(created.code_folder) if created is not None and created.code_folder else None
    return folder if folder is not None and folder.is_absolute() and folder.is_dir() else None


def own_code(one: Path) -> Path | None:
    """Return the folder of the config of an own run or search, if code that it names was there.

    Args:
        one: The directory of the run or the search.
    """
    folder = own_code_folder(one)
    if folder is None or not folder.is_absolute() or not folder.is_dir() or _is_inside(folder, one):
        return None
    return folder if _is_private(folder) else None


def code_beside(resolved: Resolved) -> list[Path]:
    """Return the folder of a config's file if a module that it names is there, and nowhere else.

    Raises:
        InputError: This process has imported another module of that name.
    """
    folder = resolved.folder
    if folder is not None and any((folder / name).exists() for name in _RECORDS):
        folder = own_code(folder)  # such as the `best.yaml` of a search
    if folder is None or folder.resolve() == Path.cwd().resolve():
        return []
    searched = [str(Path.cwd()), *(str(Path(path).absolute()) for path in sys.path if path != str(folder))]
    names = {path.partition(":")[0].partition(".")[0] for path in import_paths(resolved.nested)}
    found = {name: spec for name in names if (spec := PathFinder.find_spec(name, [str(folder)])) is not None}
    only = {name: spec for name, spec in found.items() if PathFinder.find_spec(name, searched) is None}
    for name, spec in only.items():
        loaded = getattr(sys.modules.get(name), "__file__", None)
        if loaded and spec.origin and Path(loaded).resolve() != Path(spec.origin).resolve():
            raise InputError(
                f"module {name!r} is already imported in this process, from {loaded}; the config needs "
                f"{spec.origin}: start a new process for it"
            )
    return [folder] if only else []


def creation_of(resolved: Resolved) -> Creation:
    """Return what is recorded of the creation of a run of a config."""
    beside = next(map(str, code_beside(resolved)), "")
    return Creation(settings=resolved.settings, data_paths=resolved.data_paths(), code_folder=beside)


def _is_private(folder: Path) -> bool:
    """Return whether a folder is of the working directory's owner, and not for everyone to write (`/tmp`)."""
    status = folder.stat()
    has_same_owner = status.st_uid == Path.cwd().stat().st_uid
    return has_same_owner and not status.st_mode & stat.S_IWOTH and folder != Path(folder.anchor)


def _is_of_runs(folder: Path, one: Path) -> bool:
    """Return whether a folder is the folder of runs of a run or study, or lies in one of its experiments."""
    runs, folder = one.resolve().parent.parent, folder.resolve()
    if folder == runs or not folder.is_relative_to(runs):
        return folder == runs
    experiment = runs / folder.relative_to(runs).parts[0]
    return any(next(experiment.glob(f"*/{name}"), None) for name in ("config.yaml", StudyRecord.FILE))


def _is_inside(path: Path, folder: Path) -> bool:
    return path.resolve().is_relative_to(folder.resolve())


@contextlib.contextmanager
def working_for(
    run: RunDir,
    folder: Path | None = None,
    *,
    resume: bool = False,
    allow_change: bool = False,
    trust: bool = False,
) -> Iterator[None]:
    """Work for a run that may come from someone else: its config imports only what `RunImports` accepts.

    Args:
        run: The run directory.
        folder: The folder to work in; default: the current working directory.
        resume: See `code_folders`.
        allow_change: Accept a run of which this version of Trainwright computes a part otherwise.
        trust: Whether the user trusts the run.

    Raises:
        ChangedInputsError: This version of Trainwright computes a part of the run otherwise.
        CheckpointError: The manifest is damaged.
    """
    if not allow_change:
        _refuse_changed_parts(run)
    folders = code_folders(run, resume=resume, trust=trust)
    rule = RunImports(run, folders, trusted=trust, started=working_directory(run))
    with importing_by(rule), working_in(folder or Path.cwd(), rule.folders, without=run.path):
        yield


def _refuse_changed_parts(run: RunDir) -> None:
    manifest = run.manifest()
    if manifest is not None and (parts := changed(manifest.semantics)):
        raise ChangedInputsError(
            f"this version of Trainwright computes parts of run {run.id} differently: {in_words(parts)}; use "
            f"version {manifest.code.trainwright or 'that made it'}"
        )


@contextlib.contextmanager
def working_in(
    folder: Path, code: Sequence[Path] | None = None, *, without: Path | None = None
) -> Iterator[None]:
    """Work in a folder; modules can be imported from the folders in `code` (default: from this one).

    Args:
        folder: The new working directory.
        code: The folders in which modules are searched first, after those of Python's own library.
        without: The directory of a run or a study, from which nothing is imported, nor from the folder of
            runs that holds it, even if it is the current one and Python searches there.
    """
    before = list(sys.path)
    code = [folder] if code is None else code
    # "" in it (notebooks have that) would mean the new folder.
    searched = [str(Path(path).absolute()) for path in (*map(str, code), *before)]
    # A module that is named like one of Python's would break the libraries that import that.
    during = sorted(searched, key=lambda path: path not in _STANDARD)
    if without is not None:
        during = [path for path in during if not _is_of_runs(Path(path), without)]
        code = [path for path in code if not _is_of_runs(path, without)]
    is_code = folder.resolve() in [path.resolve() for path in code]
    # Processes of Python that start in here, ours or those of libraries, import from it only if it is code.
    apart = {} if is_code else {"PYTHONSAFEPATH": "1"}
    with contextlib.chdir(folder), temporary_environment(apart), observing(hash_of):
        sys.path[:] = during
        try:
            yield
        finally:
            added = [path for path in sys.path if path not in during]
            sys.path[:] = [*added, *before]
