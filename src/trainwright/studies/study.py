"""A study's folder, its trials, and what a study needs besides a config."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainwright.callbacks.base import Callback
from trainwright.config import Resolved
from trainwright.datasets.base import DataBundle
from trainwright.errors import CheckpointError, InputError, RunLockedError, RunNotFoundError
from trainwright.records.run_dir import RunDir, make_id, write_config
from trainwright.records.status import Status
from trainwright.records.study import StudyRecord, StudyRun, sealed_files, study_problems
from trainwright.records.trials import FILE as TRIALS
from trainwright.redact import redacted
from trainwright.runs.data.bundles import make_bundle
from trainwright.runs.frameworks import own_copy
from trainwright.runs.objects import Objects
from trainwright.runs.wiring import load_data
from trainwright.runs.workdir import creation_of
from trainwright.safe_files import fsync_folder, make_folders
from trainwright.storage.ownership import Signature, is_own, signature
from trainwright.storage.seals import damage

log = logging.getLogger("trainwright")
Json = dict[str, Any]
TrialWatcher = Callable[[Mapping[str, Any]], None]
RESULT = StudyRecord.RESULT


def ignore_trials(_: Mapping[str, Any]) -> None:
    """Do nothing; the default of `StudyRequest.watch`."""


@dataclass(frozen=True)
class StudyRequest:
    """The arguments of a study, besides its config.

    `runs_dir` is the folder of the runs. `resume` continues the newest unfinished study with the same
    question; `allow_change` accepts changed inputs then. `reuse` takes completed runs of the same inputs
    instead of training new ones. `data` and `model` are Python objects; each run trains a copy of the model.
    `watch` is called when a run has ended, with its `run_id`, `status`, label (`fold`, `model`) and test
    metrics.
    """

    runs_dir: Path
    resume: bool = False
    reuse: bool = True
    data: Any = None
    callbacks: Sequence[Callback] = ()
    watch: TrialWatcher = field(default=ignore_trials)
    allow_change: bool = False
    model: Any = None

    def bundle(self, resolved: Resolved) -> DataBundle | None:
        """Return the data that were given as objects, split as the config says; None without such data."""
        return make_bundle(resolved, self.data, self.model)

    def load(self, resolved: Resolved) -> DataBundle:
        """Load the data of a run: the objects that were given, or the source in the config."""
        return self.bundle(resolved) or load_data(resolved.config, self.model)

    def objects(self, resolved: Resolved) -> Objects:
        """Return what a run is given in Python: a model object of its own, the data, and the callbacks.

        Raises:
            InputError: The model cannot be copied.
        """
        return Objects(own_copy(self.model), self.bundle(resolved), self.callbacks)

    def question(self) -> Json:
        """Return what two studies must share, besides their configs; inputs are compared run by run."""
        return {} if self.model is None else {"objects": ["model"]}

    @property
    def given(self) -> list[str]:
        """The names of what was given as objects."""
        return [name for name in ("model", "data") if getattr(self, name) is not None]


@dataclass(frozen=True)
class Trial:
    """One run of a study: its label (`{"fold": 2}`) and its config."""

    label: Json
    resolved: Resolved


class Study:
    """A study's folder."""

    def __init__(self, path: Path) -> None:
        self._dir = RunDir(path)

    @staticmethod
    def create(runs_dir: Path, experiment: str, kind: str, question: Json) -> Study:
        """Create a study's folder.

        Raises:
            InputError: The folder cannot be written.
        """
        study_id = f"{kind}-{make_id()}"
        study = Study(runs_dir / experiment / study_id)
        record = StudyRecord(
            study_id=study_id,
            kind=kind,
            experiment=experiment,
            created=time.time(),
            command=[redacted(word) for word in sys.argv],
            question=question,
        )
        try:
            make_folders(study.path.parent)
            study.path.mkdir()
            fsync_folder(study.path.parent)
            record.save(study.path / StudyRecord.FILE)
        except OSError as error:
            raise InputError(
                f"cannot make the study's folder {study.path}: {error.strerror}; "
                "choose another folder with --runs-dir"
            ) from error
        return study

    @property
    def id(self) -> str:
        """The study's id."""
        return self._dir.id

    @property
    def path(self) -> Path:
        """The study's folder."""
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
        """The content of `result.json`; empty before the end.

        Raises:
            CheckpointError: It is damaged, or missing although the study has ended.
        """
        sealed = self.record.files.get(RESULT)
        if sealed is not None and (problem := damage(self.path, RESULT, sealed)):
            raise CheckpointError(f"{self.path / RESULT}: {problem}")
        return self._dir.read_json(RESULT)

    def problems(self) -> list[str]:
        """Return a sentence for each file of the study that is missing, or not what was written."""
        return study_problems(self.path)

    @property
    def status(self) -> Status:
        """`completed`, `failed`, `preempted`, `interrupted`, `running`, or `crashed`."""
        status = self.record.status
        if self._dir.is_owned():
            return "running"
        return "crashed" if status == "running" else status

    @property
    def is_owned(self) -> bool:
        """True while some process works on it, and decides its trials."""
        return self._dir.is_owned()

    def write(self, name: str, data: Json) -> None:
        """Write a JSON file into the folder."""
        self._dir.write_json(name, data)

    def settings(self, name: str) -> Json:
        """Return the content of a JSON file of the folder; empty if there is none."""
        return self._dir.read_json(name)

    def write_config(self, name: str, config: str) -> None:
        """Write a config (YAML) into the folder; one with secrets is for its owner only to read."""
        write_config(self.path / name, config)

    def write_signed_config(self, name: str, config: str, code_folder: str) -> None:
        """Write the config of the study, and the signature that shows later that this user did."""
        signed = signature(self.path, config.encode(), code_folder)
        self._dir.write(Signature.FILE, Signature(code_folder=code_folder, signature=signed))
        self.write_config(name, config)

    def is_own(self, name: str) -> bool:
        """Return whether this user has begun the study, with the config in a file of the folder."""
        return is_own(self.path, name)

    def update(self, **values: Any) -> None:
        """Change fields of `study.json`.

        A final status seals the other files of the study; `running` removes their seals.
        """
        if values.get("status") == "running":
            values["files"] = {}
        elif "status" in values:
            values["files"] = sealed_files(self.path)
        self.record.model_copy(update=values).save(self.path / StudyRecord.FILE)

    def check_seals(self) -> None:
        """Check the seals before the study goes on; damaged results are only warned of: they are made again.

        Raises:
            CheckpointError: Its log is damaged.
        """
        for problem in self.problems():
            if problem.startswith(str(self.path / TRIALS)):
                raise CheckpointError(problem)
            log.warning("study %s: %s", self.id, problem)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Own the study, so that no other process works on it.

        Raises:
            RunLockedError: Another process owns it.
        """
        try:
            self._dir.acquire("study")
        except RunLockedError as error:
            if self.record.kind != "tune":
                raise
            raise RunLockedError(
                f"{error}; `trainwright work {self.id}` trains trials of it as well"
            ) from error
        try:
            yield
        finally:
            self._dir.release()

    def run(self, label: Json) -> RunDir | None:
        """Return the run of the trial with this label; None if it was not begun, or was deleted."""
        ids = [run.run_id for run in self.record.runs if run.label == label]
        run = RunDir(self.path.parent / ids[-1]) if ids else None
        return run if run is not None and run.config_file.exists() else None

    def reused(self, label: Json) -> bool:
        """Return whether the run of the trial with this label was not trained for this study."""
        return any(run.reused for run in self.record.runs if run.label == label)

    def new_run(self, trial: Trial) -> RunDir:
        """Create a trial's run directory, and record it in `study.json` before it is trained."""
        resolved, experiment = trial.resolved, self.path.parent
        run = RunDir.create(
            experiment.parent,
            experiment.name,
            resolved.dump(),
            created=creation_of(resolved),
        )
        self._record_run(StudyRun(label=trial.label, run_id=run.id))
        return run

    def reuse(self, trial: Trial, run: RunDir) -> None:
        """Record a completed run of this experiment as that of a trial."""
        self._record_run(StudyRun(label=trial.label, run_id=run.id, reused=True))

    def _record_run(self, run: StudyRun) -> None:
        others = [other for other in self.record.runs if other.label != run.label]
        self.update(runs=[*others, run])


class StudyView:
    """A read-only view of a study's folder; each property reads the files again."""

    def __init__(self, path: Path) -> None:
        self._study = Study(path)

    @property
    def id(self) -> str:
        """The study's id."""
        return self._study.id

    @property
    def path(self) -> Path:
        """The study's folder."""
        return self._study.path

    @property
    def status(self) -> Status:
        """`completed`, `failed`, `preempted`, `interrupted`, `running` or `crashed`."""
        return self._study.status

    @property
    def result(self) -> Json:
        """The content of `result.json`; empty before the end."""
        return self._study.result


def find_unfinished(
    runs_dir: Path,
    experiment: str,
    kind: str,
    question: Json,
    *,
    completed: bool = False,
) -> Study | None:
    """Return the newest unfinished study of the same kind, config and data that no process works on.

    With `completed`, a completed one will do: it may go on. If there is none but one that is running, a
    warning names that.
    """
    unfinished: list[Study] = []
    running: list[Study] = []
    for path in (runs_dir / experiment).glob(f"{kind}-*/{StudyRecord.FILE}"):
        study = Study(path.parent)
        try:
            status = study.status
            if (status == "completed" and not completed) or study.record.question != question:
                continue
            (running if status == "running" else unfinished).append(study)
        except CheckpointError as error:
            log.warning("study %s is skipped: %s", study.id, error)
    if running and not unfinished:
        log.warning(
            "study %s is running, so it cannot be resumed: a new study begins", max(running, key=_created).id
        )
    return max(unfinished, key=_created, default=None)


def all_studies(runs_dir: Path) -> list[Study]:
    """Return the studies in a folder of runs, newest first; a damaged one comes last."""
    studies = [Study(path.parent) for path in runs_dir.glob(f"*/*/{StudyRecord.FILE}")]
    return sorted(studies, key=_created, reverse=True)


def _created(study: Study) -> float:
    try:
        return study.record.created
    except CheckpointError:
        return 0.0


def find_study(name: str, runs_dir: Path) -> Study:
    """Return the study that `name` means: a path, an id, a unique prefix of an id, or `last`.

    Raises:
        RunNotFoundError: There is none, or more than one.
    """
    if (Path(name) / StudyRecord.FILE).is_file():
        return Study(Path(name))
    studies = all_studies(runs_dir)
    matches = studies[:1] if name == "last" else [study for study in studies if study.id.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise RunNotFoundError(
            f"{name!r} is the beginning of {len(matches)} study ids; give more of the one you mean"
        )
    known = f"the newest is {studies[0].id}" if studies else "it holds no studies"
    raise RunNotFoundError(f"there is no study {name!r} in {runs_dir}; {known}")


def open_study(
    request: StudyRequest,
    experiment: str,
    kind: str,
    question: Json,
    *,
    completed: bool = False,
) -> Study:
    """Return the newest unfinished study with the same question if the request resumes; or a new one.

    Args:
        request: The arguments of the study.
        experiment: The name that groups runs.
        kind: One of `records.study.KINDS`.
        question: What two studies must share to be the same: the computation, the data, and the kind's own
            options.
        completed: Resume a completed study, too: it may have more trials now.
    """
    if request.given:
        log.warning(
            "%s given as objects: only their author can reproduce the runs of this study",
            " and ".join(request.given),
        )
    study = None
    if request.resume:
        study = find_unfinished(request.runs_dir, experiment, kind, question, completed=completed)
    if study is None:
        return Study.create(request.runs_dir, experiment, kind, question)
    log.info("resuming study %s", study.id)
    return study
