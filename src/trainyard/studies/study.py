"""A study's folder, and the training of its runs."""

from __future__ import annotations

import logging
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainyard.callbacks.base import Callback
from trainyard.config import Resolved
from trainyard.datasets.base import DataBundle
from trainyard.datasets.rows.objects import from_objects
from trainyard.digest import fsync_folder, make_folders
from trainyard.errors import CheckpointError, InputError
from trainyard.records.run_dir import RunDir
from trainyard.records.study import StudyRecord, StudyRun
from trainyard.redact import redacted
from trainyard.runs.wiring import load_data

log = logging.getLogger("trainyard")
Json = dict[str, Any]
Watch = Callable[[Mapping[str, Any]], None]
RESULT = StudyRecord.RESULT


def unwatched(_: Mapping[str, Any]) -> None:
    """For who does not look."""


@dataclass(frozen=True)
class StudyRequest:
    """What stands beside the config: where runs are, data as Python objects, and who watches.

    `watch` is told of each run that ended: `run_id`, `status`, what the study calls it (`fold`, `model`), its test metrics.
    """

    runs_dir: Path
    resume: bool = False
    data: Any = None
    callbacks: Sequence[Callback] = ()
    watch: Watch = field(default=unwatched)

    def bundle(self, resolved: Resolved) -> DataBundle | None:
        """The data that were given as objects, divided as the config says."""
        return None if self.data is None else from_objects(self.data, resolved.config.data)

    def load(self, resolved: Resolved) -> DataBundle:
        """The data of a run, wherever they come from."""
        return self.bundle(resolved) or load_data(resolved.config)


@dataclass(frozen=True)
class Trial:
    """One run of a study: what the study calls it (`{"fold": 2}`), and its config."""

    place: Json
    resolved: Resolved


@dataclass(frozen=True)
class StudyPlan:
    """How a study is conducted.

    `by` is what trials are grouped by: where one fails, the study goes on without the others of its group, and is `failed` in
    the end; None: it ends there. `conclude` is called when the runs are done, with what failed by group, and gives the
    content of `result.json`. `report` may be called on a folder without one.
    """

    conclude: Callable[[Mapping[str, str]], Json]
    report: Callable[[Path], Any]
    by: str | None = None


class Study:
    """A study's folder."""

    def __init__(self, path: Path) -> None:
        self._dir = RunDir(path)

    @staticmethod
    def create(runs_dir: Path, experiment: str, kind: str, asked: Json) -> Study:
        """A new folder.

        Raises:
            InputError: it cannot be written.
        """
        study_id = f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        study = Study(runs_dir / experiment / study_id)
        record = StudyRecord(
            study_id=study_id,
            kind=kind,
            experiment=experiment,
            created=time.time(),
            command=[redacted(word) for word in sys.argv],
            asked=asked,
        )
        try:
            make_folders(study.path.parent)
            study.path.mkdir()
            fsync_folder(study.path.parent)
            record.save(study.path / StudyRecord.FILE)
        except OSError as error:
            raise InputError(
                f"cannot make the study's folder {study.path}: {error.strerror}; choose another place with --runs-dir"
            ) from error
        return study

    @property
    def id(self) -> str:
        return self._dir.id

    @property
    def path(self) -> Path:
        return self._dir.path

    @property
    def record(self) -> StudyRecord:
        """The content of `study.json`.

        Raises:
            CheckpointError: It is damaged or missing.
        """
        record = StudyRecord.load(self.path / StudyRecord.FILE)
        if record is None:
            raise CheckpointError(f"{self.path / StudyRecord.FILE} is missing")
        return record

    @property
    def result(self) -> Json:
        """The content of `result.json`; empty before the end."""
        return self._dir.read_json(RESULT)

    @property
    def status(self) -> str:
        """`completed`, `failed`, `preempted`, `interrupted`, `running`, or `crashed`."""
        state = self.record.state
        if self._dir.is_owned():
            return "running"
        return "crashed" if state == "running" else state

    def write(self, name: str, data: Json) -> None:
        self._dir.write_json(name, data)

    def update(self, **values: Any) -> None:
        """Change fields of `study.json`."""
        self.record.model_copy(update=values).save(self.path / StudyRecord.FILE)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Keeps others from working on this study.

        Raises:
            RunLockedError: another process does already.
        """
        self._dir.acquire()
        try:
            yield
        finally:
            self._dir.release()

    def run(self, place: Json) -> RunDir | None:
        """The run that has this place in the study, if it was begun and is still there."""
        ids = [run.run_id for run in self.record.runs if run.place == place]
        run = RunDir(self.path.parent / ids[-1]) if ids else None
        return run if run is not None and run.config_file.exists() else None

    def new_run(self, trial: Trial) -> RunDir:
        """A new run directory; the study knows of it before it is trained."""
        run = RunDir.create(self.path.parent.parent, self.path.parent.name, trial.resolved.dump())
        others = [one for one in self.record.runs if one.place != trial.place]
        self.update(runs=[*others, StudyRun(place=trial.place, run_id=run.id)])
        return run


class StudyView:
    """A look at the folder of a study; what it says is read when it is asked."""

    def __init__(self, path: Path) -> None:
        self._study = Study(path)

    @property
    def id(self) -> str:
        return self._study.id

    @property
    def path(self) -> Path:
        return self._study.path

    @property
    def status(self) -> str:
        """`completed`, `failed`, `preempted`, `interrupted`, `running` or `crashed`."""
        return self._study.status

    @property
    def result(self) -> Json:
        """The content of `result.json`; empty before the end."""
        return self._study.result


def unfinished(runs_dir: Path, experiment: str, kind: str, asked: Json) -> Study | None:
    """The newest study of the same kind, config and data that did not come to its end and that no process works on."""
    found = []
    for path in (runs_dir / experiment).glob(f"{kind}-*/{StudyRecord.FILE}"):
        study = Study(path.parent)
        try:
            if study.status not in ("completed", "running") and study.record.asked == asked:
                found.append((study.record.created, study))
        except CheckpointError as error:
            log.warning("study %s is passed over: %s", study.id, error)
    return max(found, key=lambda item: item[0])[1] if found else None


def begin(request: StudyRequest, experiment: str, kind: str, asked: Json) -> Study:
    """The newest unfinished study of the kind that was asked the same, where one is to be resumed; else a new one."""
    if request.data is not None:
        log.warning("data given as objects: only their author can reproduce the runs of this study")
    study = unfinished(request.runs_dir, experiment, kind, asked) if request.resume else None
    if study is None:
        return Study.create(request.runs_dir, experiment, kind, asked)
    log.info("resuming study %s", study.id)
    return study
