"""The studies in a folder of runs, as a list of runs needs them: their runs, and their best result."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.errors import CheckpointError
from trainwright.numerals import number
from trainwright.records.run_dir import RunDir
from trainwright.records.study import KINDS, StudyRecord
from trainwright.records.study_results import BenchmarkResult, CrossValidationResult
from trainwright.records.trials import read_log
from trainwright.records.tuning_result import TuningResult
from trainwright.storage.deletion import marked

log = logging.getLogger("trainwright")
Json = dict[str, Any]
NOUNS = {"cv": "fold", "tune": "trial"}  # of the runs of other kinds: `run`


class ListedStudy(NamedTuple):
    """A study, with the runs that were made for it.

    Attributes:
        path: Its folder.
        kind: One of `records.study.KINDS`.
        status: Its status now; `deleted`: its deletion was cut off.
        labels: What the study calls its runs, by their ids: `{"fold": 2}`.
        best: Its best result in words, such as `best val_loss 0.43`; empty before its end.
        metrics: The same as a metric and its value.
    """

    path: Path
    kind: str
    status: str
    labels: Mapping[str, Json]
    best: str = ""
    metrics: Mapping[str, float] = {}

    @property
    def id(self) -> str:
        """The study's id."""
        return self.path.name

    def counted(self, count: int) -> str:
        """Return a number of its runs in words: `12 trials`."""
        noun = NOUNS.get(self.kind, "run")
        return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def listed_studies(runs_dir: Path, experiment: str | None = None) -> list[ListedStudy]:
    """Return the studies in a folder of runs; one that cannot be read is named in a warning.

    Args:
        runs_dir: The folder of the runs.
        experiment: Only the studies of this experiment.
    """
    found = []
    for path in _folders(runs_dir, experiment):
        try:
            found.append(listed_study(path))
        except CheckpointError as error:
            log.warning("study %s: %s", path.name, error)
    return found


def _folders(runs_dir: Path, experiment: str | None) -> Iterator[Path]:
    for folder in runs_dir.iterdir() if runs_dir.is_dir() else ():
        if experiment in (None, folder.name):
            for kind in KINDS:
                files = [*folder.glob(f"{kind}-*/{StudyRecord.FILE}")]
                yield from (file.parent for file in (*files, *folder.glob(f"{kind}-*/{_DELETED}")))


_DELETED = marked(StudyRecord.FILE)


def listed_study(folder: Path) -> ListedStudy:
    """Return the study in a folder.

    Raises:
        CheckpointError: Its record or its log is damaged.
    """
    folder = folder.absolute()
    record = StudyRecord.load(folder / StudyRecord.FILE)
    deleted = None if record else StudyRecord.load(folder / _DELETED)
    if (known := record or deleted) is None:
        raise CheckpointError(f"{folder / StudyRecord.FILE} is missing")
    labels = {one.run_id: one.label for one in known.runs if not one.reused}
    if known.kind == "tune":
        labels |= _trials(folder)
    # A log that was changed by hand must not lead out of the folder.
    labels = {run_id: label for run_id, label in labels.items() if Path(run_id).name == run_id}
    status = "deleted" if deleted else _status(folder, known)
    best, metrics = _best(folder, known.kind)
    return ListedStudy(folder, known.kind, status, labels, best, metrics)


def _status(folder: Path, record: StudyRecord) -> str:
    if RunDir(folder).is_owned():
        return "running"
    return "crashed" if record.status == "running" else record.status


def _trials(folder: Path) -> dict[str, Json]:
    """Return the labels of the runs of a search, the training of the best one at its end included."""
    logged = read_log(folder)
    labels: dict[str, Json] = {}
    for trial in logged.trials:
        for run_id in filter(None, (trial.run_id, *trial.others)):
            labels.setdefault(run_id, {"trial": trial.number})
    finals = (str(note["run_id"]) for note in logged.notes if note.get("run_id"))
    return labels | {run_id: {"final": True} for run_id in finals if run_id not in labels}


def _best(folder: Path, kind: str) -> tuple[str, dict[str, float]]:
    """Return the best result of a study in words, and as a metric; empty where there is none."""
    content = RunDir(folder).read_json(StudyRecord.RESULT)
    if kind == "tune":
        search = TuningResult.of(content)
        if search.best is not None:
            value = search.best.value
            return f"best {search.metric} {number(value, zeros=False)}", {search.metric: value}
    elif kind == "cv":
        for name, spread in CrossValidationResult.of(content).metrics.items():
            return f"{name} {_text(spread.mean)} ± {_text(spread.std)}", {name: spread.mean}
    elif kind == "benchmark":
        models = [one for one in BenchmarkResult.of(content).models if one.mean is not None and one.metric]
        for first in models[:1]:
            value, metric = first.mean or 0.0, str(first.metric)
            return f"best {first.model}: {metric} {_text(value)}", {metric: value}
    return "", {}


def _text(value: float) -> str:
    return number(value, zeros=False)


def with_studies(summaries: Sequence[Json], studies: Sequence[ListedStudy]) -> list[Json]:
    """Return the summaries of runs with the `study` that made each, and its `label`; None if none did."""
    by_run = {(one.path.parent.name, run_id): one for one in studies for run_id in one.labels}
    found = []
    for summary in summaries:
        study = by_run.get((summary["experiment"], summary["run_id"]))
        label = study.labels[summary["run_id"]] if study else None
        found.append(summary | {"study": study.id if study else None, "label": label})
    return found


def grouped(
    rows: Sequence[tuple[Json, int]], studies: Sequence[ListedStudy], *, everything: bool
) -> list[tuple[Json, int]]:
    """Return the rows of a list of runs with one for each study in front of, or instead of, its runs.

    Args:
        rows: The summaries of runs, with their `study`, and their depths.
        studies: The studies.
        everything: Whether the runs of studies have rows, too.

    Returns:
        The summaries of runs and studies with their depths; a study comes where the first of its runs was.
    """
    known = {one.id: one for one in studies}
    members: dict[str, list[tuple[Json, int]]] = {}
    for row in rows:
        if row[0].get("study") in known:
            members.setdefault(row[0]["study"], []).append(row)
    found = []
    for row in rows:
        if (name := row[0].get("study")) not in known:
            found.append(row)
        elif (of_study := members.pop(name, None)) is not None:
            found.append((_summary(known[name], [summary for summary, _ in of_study]), 0))
            found += [(summary, depth + 1) for summary, depth in of_study] if everything else []
    return found


def _summary(study: ListedStudy, runs: Sequence[Json]) -> Json:
    """Return what a list says of a study in one line."""

    def total(name: str) -> float | None:
        values = [run[name] for run in runs if run.get(name)]
        return sum(values) if values else None

    def shared(name: str) -> str | None:
        values = list(dict.fromkeys(str(run[name]) for run in runs if run.get(name)))
        return f"{len(values)} different" if len(values) > 1 else next(iter(values), None)

    return {
        "run_id": study.id,
        "experiment": study.path.parent.name,
        "path": str(study.path),
        "status": study.status,
        "study": study.id,
        "summary": ", ".join(filter(None, [study.counted(len(runs)), study.best])),
        "metrics": dict(study.metrics),
        **{name: shared(name) for name in ("model", "data")},
        **{name: total(name) for name in ("duration", "gpu_hours", "cost")},
    }
