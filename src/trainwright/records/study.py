"""The record of a study: its question, its status, and its runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from trainwright.errors import CheckpointError
from trainwright.records import trials
from trainwright.records.document import Document, Name, Record
from trainwright.records.status import Ended
from trainwright.storage.log import StoredFile
from trainwright.storage.seals import damage, whole_file

# The kinds of studies: the beginning of their ids, and the relation of their runs to them.
KINDS = ("cv", "benchmark", "tune", "why")
_SEALED = (
    *("search.yaml", "settings.json", "earlier.json", trials.FILE),
    *("result.json", "best.yaml", "out_of_fold.json"),
)


class StudyRun(Record):
    """A run of a study; `label` is what the study calls it (`{"model": "mlp", "fold": 2}`).

    `reused` says that the run was completed before, with the same inputs, and not trained for this study.
    """

    label: dict[str, Any]
    run_id: Name
    reused: bool = False


class StudyRecord(Document):
    """The content of `study.json`.

    `question` is what makes two studies the same; `status` is `running` while a process works on it, and how
    it ended afterwards; `created` is in seconds since the epoch. `files` seals the other records of a study
    that no process works on.
    """

    FILE: ClassVar[str] = "study.json"
    RESULT: ClassVar[str] = "result.json"  # the results, beside it

    study_id: str
    kind: str
    experiment: str
    created: float
    command: list[str] = Field(default_factory=list)
    question: dict[str, Any] = Field(default_factory=dict)
    status: Literal["running", Ended] = "running"
    runs: list[StudyRun] = Field(default_factory=list)
    error: str | None = None
    files: dict[str, StoredFile] = Field(default_factory=dict)


def sealed_files(folder: Path) -> dict[str, StoredFile]:
    """Return the length and the SHA-256 of configs, settings, log and results in a study's folder.

    Raises:
        OSError: One cannot be read.
    """
    return {name: whole_file(folder / name) for name in _SEALED if (folder / name).exists()}


def study_problems(folder: Path) -> list[str]:
    """Return a sentence for each file of a study that is missing, or not what was written."""
    try:
        record = StudyRecord.load(folder / StudyRecord.FILE)
    except CheckpointError as error:
        return [str(error)]
    if record is None:
        return [f"{folder / StudyRecord.FILE} is missing"]
    found = [
        f"{folder / name}: {problem}"
        for name, sealed in sorted(record.files.items())
        if (problem := damage(folder, name, sealed))
    ]
    is_named = any(problem.startswith(str(folder / trials.FILE)) for problem in found)
    unsealed = None if is_named else trials.damage(folder)
    return [*found, unsealed] if unsealed else found


def is_study(name: str) -> bool:
    """Return whether a name is that of a study, and not of a run: its path, or the beginning of its id."""
    return (Path(name) / StudyRecord.FILE).is_file() or name.startswith(tuple(f"{kind}-" for kind in KINDS))
