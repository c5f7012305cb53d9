"""Delete runs, and studies with their runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainwright.config.env import filled_in
from trainwright.errors import CheckpointError, InputError, RunLockedError, RunNotFoundError
from trainwright.records.listing import all_runs
from trainwright.records.run_dir import RunDir
from trainwright.records.study import StudyRecord, is_study
from trainwright.records.study_list import ListedStudy, listed_studies, listed_study
from trainwright.storage.deletion import mark_deleted, marked, remove_folder
from trainwright.storage.remote import DELETED, RemoteRun, copied_entry
from trainwright.storage.sizes import size_of
from trainwright.storage.urls import open_store, url_of

log = logging.getLogger("trainwright")
CONFIG = "config.yaml"


@dataclass(frozen=True)
class Deletable:
    """A run, or a study with its runs, to be deleted at once.

    Attributes:
        folder: The directory of the run, or the study's folder.
        status: Its status; `deleted`: its deletion was cut off.
        attempts: The runs, with the number of the next attempt of each when it was chosen.
        is_study: Whether it is a study.
    """

    folder: RunDir
    status: str
    attempts: Mapping[Path, int]
    is_study: bool = False

    @property
    def runs(self) -> list[RunDir]:
        """The runs."""
        return [RunDir(path) for path in self.attempts]

    def bytes(self) -> int:
        """Return the size of its files; those with several names count once."""
        return sum(size_of(path) for path in {self.folder.path, *self.attempts})


def of_run(run: RunDir) -> Deletable:
    """Return a run as something to delete; it may be damaged."""
    status: str
    try:
        status = run.status()
    except CheckpointError:
        status = "damaged"
    return Deletable(run, status, {run.path: run.next_attempt()})


def of_study(study: ListedStudy) -> Deletable:
    """Return a study, with the runs that were made for it, as something to delete."""
    found = [RunDir(study.path.parent / run_id) for run_id in study.labels]
    attempts = {run.path: run.next_attempt() for run in found if run.config_file.exists()}
    return Deletable(RunDir(study.path), study.status, attempts, is_study=True)


@contextlib.contextmanager
def skipped(folder: RunDir) -> Iterator[None]:
    """Turn what cannot be read of a run or study into a warning."""
    try:
        yield
    except (CheckpointError, OSError, ValueError) as error:
        log.warning("run %s is skipped: %s", folder.id, error)


def cut_off(runs_dir: Path) -> Iterator[Deletable]:
    """Yield the runs and studies whose deletion was cut off."""
    if url := url_of(runs_dir):
        for key in open_store(url).list(DELETED):
            yield Deletable(RunDir(runs_dir / key.removeprefix(DELETED)), "deleted", {})
    for file in runs_dir.glob(f"*/*/{marked(CONFIG)}"):
        yield Deletable(RunDir(file.parent), "deleted", {})
    for file in runs_dir.glob(f"*/*/{marked(StudyRecord.FILE)}"):
        with skipped(RunDir(file.parent)):
            yield of_study(listed_study(file.parent))


def unsent_values(one: Deletable) -> str | None:
    """Return that trackers lack values of a run, and how to send them."""
    from trainwright.trackers.feed import unsent

    for run in one.runs:
        for tracker, count in unsent(run.path):
            return (
                f"{tracker} has not received {count} of the values of run {run.id}: `trainwright runs sync "
                f"{run.id}` sends them; `trainwright runs delete --force {one.folder.id}` deletes it anyway"
            )
    return None


def named(
    names: Sequence[Path | str], runs_dir: Path, find: Callable[[str], RunDir], *, force: bool
) -> list[Deletable]:
    """Return the runs and studies of some names, if all may be deleted.

    Args:
        names: Paths, ids or beginnings of ids.
        runs_dir: The folder of the runs.
        find: Returns the run that a name means.
        force: Whether a run of a study may be deleted alone, and what trackers lack values of.

    Raises:
        RunNotFoundError: There is no such run or study.
        RunLockedError: One is running.
        InputError: One is not in the folder, belongs to a study, or has values that trackers lack.
    """
    found: dict[Path, Deletable] = {}
    for name in map(str, names):
        one = of_study(listed_study(_find_study(name, runs_dir))) if is_study(name) else of_run(find(name))
        found[one.folder.path] = one
    inside = {path for one in found.values() if one.is_study for path in one.attempts}
    chosen = [one for path, one in found.items() if path not in inside]
    studies = {
        one.path.parent / run_id: one.id
        for one in listed_studies(runs_dir)
        if one.status != "deleted"
        for run_id in one.labels
    }
    for one in chosen:
        path = one.folder.path
        check_inside(path, path.parent.parent if url_of(path.parent.parent) else runs_dir)
        if running := [run.id for run in (one.folder, *one.runs) if _is_owned(run)]:
            raise RunLockedError(f"{running[0]} is running: stop it first (trainwright stop)")
        if not force and (study := studies.get(path)) is not None:
            raise InputError(
                f"run {path.name} belongs to study {study}, whose results need it: delete the study "
                f"(trainwright runs delete {study}), or add --force"
            )
        if not force and (problem := unsent_values(one)):
            raise InputError(problem)
    return chosen


def _is_owned(run: RunDir) -> bool:
    """Return whether a process owns a run; none can take a lock that is a symbolic link."""
    return not _lock_of(run).is_symlink() and run.is_owned()


def _lock_of(run: RunDir) -> Path:
    return run.path / RunDir.LOCK


def _find_study(name: str, runs_dir: Path) -> Path:
    """Return the folder of the study that a name means.

    Raises:
        RunNotFoundError: There is none, or more than one.
    """
    if (Path(name) / StudyRecord.FILE).is_file():
        return Path(name).absolute()
    found = [one.path for one in listed_studies(runs_dir) if one.id.startswith(name)]
    if len(found) == 1:
        return found[0]
    problem = f"is the beginning of {len(found)} study ids" if found else f"is no study in {runs_dir}"
    raise RunNotFoundError(f"{name!r} {problem}")


def children_of(chosen: Sequence[Deletable], runs_dir: Path) -> dict[str, list[str]]:
    """Return the ids of the runs that go on from, or repeat, those that are deleted, by the ids of these."""
    gone = {run.path for one in chosen for run in one.runs}
    parents = {path.name for path in gone}
    found: dict[str, list[str]] = {}
    for run in all_runs(runs_dir) if gone else ():
        with contextlib.suppress(CheckpointError):
            lineage = run.lineage()
            if lineage is not None and run.path not in gone and lineage.run_id in parents:
                found.setdefault(lineage.run_id, []).append(run.id)
    return found


def users_of_weights(chosen: Sequence[Deletable], runs_dir: Path) -> dict[str, list[str]]:
    """Return the ids of the runs whose `model.init_from` is deleted, by the ids of the runs that it names."""
    gone = {run.path.resolve() for one in chosen for run in one.runs}
    found: dict[str, list[str]] = {}
    for run in all_runs(runs_dir) if gone else ():
        with contextlib.suppress(CheckpointError):
            manifest = run.manifest()
            source = Path(filled_in(manifest.init_from)) if manifest and manifest.init_from else None
            if source is not None and source.resolve() in gone and run.path.resolve() not in gone:
                found.setdefault(source.name, []).append(run.id)
    return found


def check_inside(folder: Path, runs_dir: Path) -> None:
    """Refuse to delete what is not in a folder of runs, or there by a symbolic link alone.

    Raises:
        InputError: It is not.
    """
    if folder.is_symlink() or folder.parent.is_symlink():
        raise InputError(f"{folder} is behind a symbolic link, and nothing is deleted through a link")
    if folder.absolute().parent.parent.resolve() != runs_dir.resolve():
        raise InputError(
            f"{folder} is not in the runs folder {runs_dir}: name the folder that it is in with --runs-dir "
            "(in Python: runs_dir=...)"
        )


def delete(one: Deletable) -> bool:
    """Delete a run or study; return False if another process owns it or has started a new attempt.

    Raises:
        OSError, CheckpointError: Something cannot be deleted.
    """
    check_inside(one.folder.path, one.folder.path.parent.parent)
    if one.is_study:
        return _delete_study(one)
    if one.status == "deleted":
        return _finish(one.folder)
    return delete_run(one.folder, one.attempts[one.folder.path])


def _finish(run: RunDir) -> bool:
    """Go on with the deletion of a run that was cut off."""
    remote = RemoteRun.of(run.path)
    with contextlib.suppress(CheckpointError):  # there may be no note in the store
        if remote is not None and not remote.finish_removal():
            return False
    if run.path.is_dir():
        remove_folder(run.path, CONFIG)
    return True


def _delete_study(one: Deletable) -> bool:
    """Delete a study, and then its runs; after a kill in between, its list of runs is still there."""
    study = one.folder
    if any(map(_is_owned, one.runs)):
        log.info("a run of study %s is running", study.id)
        return False
    try:
        study.acquire("study")
    except RunLockedError as error:
        log.info("%s", error)
        return False
    try:
        mark_deleted(study.path, StudyRecord.FILE)
        gone = [
            delete_run(run, attempt) for run, attempt in zip(one.runs, one.attempts.values(), strict=True)
        ]
        if all(gone):
            remove_folder(study.path, StudyRecord.FILE)
    finally:
        study.release()
    return all(gone)


def delete_run(run: RunDir, attempt: int) -> bool:
    """Delete a run as its owner; return False if another process owns it or has started a new attempt.

    Args:
        run: The run directory.
        attempt: The number of its next attempt when it was chosen.

    Raises:
        InputError: It is reached by a symbolic link.
        OSError, CheckpointError: Something cannot be deleted.
    """
    check_inside(run.path, run.path.parent.parent)
    if _lock_of(run).is_symlink():
        _lock_of(run).unlink()
    try:
        run.acquire()
    except RunLockedError as error:
        log.info("%s", error)
        return False
    try:
        if run.next_attempt() != attempt:
            return False
        if remote := RemoteRun.of(run.path):
            head = remote.free_head()
            if head is not None and head != copied_entry(run.path):  # it was chosen by what that says
                return False
            remote.remove()
        remove_folder(run.path, CONFIG)
    except RunLockedError as error:
        log.info("%s", error)
        return False
    finally:
        run.release()
    return True
