"""Choose the runs and studies that `runs clean` deletes."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from trainwright.errors import CheckpointError, InputError
from trainwright.records.listing import all_runs
from trainwright.records.run_dir import RunDir
from trainwright.records.status import ENDED
from trainwright.records.study import StudyRecord
from trainwright.records.study_list import ListedStudy, listed_studies
from trainwright.runs.deletion import Deletable, cut_off, of_run, of_study, skipped, unsent_values
from trainwright.storage.remote import copied_entry
from trainwright.storage.urls import url_of
from trainwright.types import Mode

log = logging.getLogger("trainwright")
CLEANED = ("crashed", "failed")  # not `created`: a run may wait for a worker
_OLD = (*(status for status in ENDED if status != "paused"), "crashed")  # what its age alone deletes


class Criteria(NamedTuple):
    """The runs that are to be deleted.

    A study is deleted with all its runs or not at all. Without criteria, its failed and crashed runs from
    which nothing resumes are deleted alone.

    Attributes:
        statuses: The statuses of runs; None: as the other criteria need.
        older_than: Seconds since a run did anything.
        experiment: Only the runs of this experiment.
        keep_best: How many of each experiment are kept, by the metric of their best models.
    """

    statuses: Sequence[str] | None = None
    older_than: float | None = None
    experiment: str | None = None
    keep_best: int | None = None

    @property
    def deletes_whole_studies(self) -> bool:
        """True if studies are deleted as a whole."""
        return any(one is not None for one in (self.statuses, self.older_than, self.keep_best))


def cleanable(runs_dir: Path, criteria: Criteria) -> Iterator[Deletable]:
    """Yield what satisfies all criteria, but for what trackers lack values of, which a warning names.

    Raises:
        InputError: A criterion is wrong.
    """
    if criteria.older_than is not None and criteria.older_than < 0:
        raise InputError(f"older_than is {criteria.older_than}: an age is 0 or more")
    if criteria.keep_best is not None and criteria.keep_best < 1:
        raise InputError(f"keep_best is {criteria.keep_best}: give 1 or more")
    for one in deletable(runs_dir, criteria):
        if one.status != "deleted" and (problem := unsent_values(one)):
            log.warning("%s is skipped: %s", one.folder.id, problem)
        else:
            yield one


def deletable(runs_dir: Path, criteria: Criteria) -> Iterator[Deletable]:
    """Yield what satisfies all criteria, the newest first, after what a kill has left of earlier deletions.

    What is damaged is skipped with a warning; what is running is left out.
    """
    yield from cut_off(runs_dir)
    studies = [one for one in listed_studies(runs_dir, criteria.experiment) if one.status != "deleted"]
    of_studies = {one.path.parent / run_id: one for one in studies for run_id in one.labels}
    found: list[Deletable] = []
    for run in all_runs(runs_dir):
        study = of_studies.get(run.path)
        keeps_study = study is not None and (criteria.deletes_whole_studies or study.status == "running")
        if criteria.experiment in (None, run.experiment) and not keeps_study:
            with skipped(run):
                if _has_wanted_status(run, criteria):
                    found.append(of_run(run))
    for study in studies if criteria.deletes_whole_studies else ():
        with skipped(RunDir(study.path)):
            if study.status in (criteria.statuses or _OLD):
                found.append(of_study(study))
    found = [one for one in found if criteria.older_than is None or _age(one) > criteria.older_than]
    if criteria.keep_best is not None:
        found = _worse(found, _kept(runs_dir, criteria, of_studies))
    yield from sorted(found, key=lambda one: _time_of(one.folder.id), reverse=True)


def _time_of(name: str) -> str:
    """Return the part of an id that orders runs and studies by their time."""
    return name if name[:1].isdigit() else name.partition("-")[2]


def _has_wanted_status(run: RunDir, criteria: Criteria) -> bool:
    """Return whether a run may be deleted by its status; if nothing is said: if nothing resumes from it.

    Raises:
        CheckpointError: A record of the run is damaged, so its status is not certain.
    """
    status = run.status()
    run.check_attempts()
    if criteria.statuses is not None:
        return status in criteria.statuses and status != "running"
    if criteria.deletes_whole_studies:
        return status in _OLD
    return status in CLEANED and not _has_checkpoint(run)


def _has_checkpoint(run: RunDir) -> bool:
    """Return whether anything can be resumed; a working copy may lack the checkpoints of its run."""
    entry = copied_entry(run.path) if url_of(run.path.parent.parent) else None
    is_named = entry is not None and bool(entry.checkpoints)
    return is_named or any(run.path.glob("checkpoints/*/manifest.json"))


def _age(one: Deletable) -> float:
    """Return the seconds since a run, or any run of a study, did anything, as far as is recorded."""
    times = [0.0]
    for run in one.runs:
        creation = run.creation()
        times += [creation.time if creation else 0.0]
        times += [max(attempt.started, attempt.ended or 0.0) for attempt in run.attempts()]
    if one.is_study:
        record = StudyRecord.load(one.folder.path / StudyRecord.FILE)
        times.append(record.created if record else 0.0)
    newest = max(times)
    return time.time() - (newest or one.folder.path.stat().st_mtime)


class _Score(NamedTuple):
    """The metric of the best model of a run, and how bad it is: the lower the better."""

    metric: str
    badness: float


def _score(one: Deletable) -> _Score | None:
    """Return the score of a run, or of the best run of a study; None if it has none."""
    scores = [found for run in one.runs if (found := _score_of_run(run)) is not None]
    of_metric = [score for score in scores if score.metric == scores[0].metric]
    return min(of_metric, key=lambda score: score.badness, default=None)


def _score_of_run(run: RunDir) -> _Score | None:
    with contextlib.suppress(CheckpointError):
        result, manifest = run.result(), run.manifest()
        computation = manifest.computation if manifest else {}
        metric = str(computation.get("checkpoint.metric", "val_loss"))
        best = result.best if result else None
        value = result.metrics.get(metric, math.nan) if result else math.nan
        if best is not None and best.metric is not None and best.value is not None:
            metric, value = best.metric, best.value
        mode = computation.get("checkpoint.mode", "auto")
        mode = _mode_of(metric) if mode == "auto" else mode
        return (
            None if mode is None or math.isnan(value) else _Score(metric, value if mode == "min" else -value)
        )
    return None


def _mode_of(metric: str) -> Mode | None:
    """Return the mode of a metric; None of a user's own, whose code is not imported for this."""
    from trainwright.evaluation.metrics import mode_of

    name = "" if ":" in metric else metric
    while name:
        with contextlib.suppress(InputError):
            return mode_of(name)
        name = name.rpartition("_")[0]  # of one of several targets: `val_rmse_price`
    return None


def _kept(
    runs_dir: Path, criteria: Criteria, of_studies: Mapping[Path, ListedStudy]
) -> dict[tuple[str, str], float]:
    """Return, by experiment and metric, the badness of the worst that is kept of all runs and studies."""
    units = [of_study(one) for one in {one.path: one for one in of_studies.values()}.values()]
    for run in all_runs(runs_dir):
        if run.path not in of_studies and criteria.experiment in (None, run.experiment):
            with contextlib.suppress(CheckpointError, OSError, ValueError):
                units.append(of_run(run))
    scores: dict[tuple[str, str], list[float]] = {}
    for one in units:
        if (score := _score(one)) is not None:
            scores.setdefault((one.folder.experiment, score.metric), []).append(score.badness)
    count = criteria.keep_best or 1
    return {key: sorted(found)[count - 1] for key, found in scores.items() if count <= len(found)}


def _worse(found: Iterable[Deletable], kept: Mapping[tuple[str, str], float]) -> list[Deletable]:
    """Return those that are worse than the worst that is kept; what has no score is left out."""
    worse = []
    for one in found:
        score = _score(one)
        if score is not None and score.badness > kept.get((one.folder.experiment, score.metric), math.inf):
            worse.append(one)
    return worse
