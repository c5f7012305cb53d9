"""The final training of a study: the best configuration is trained once more."""

from __future__ import annotations

from pathlib import Path

from trainwright.errors import TrainingError
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import LoggedTrial, TrialLog
from trainwright.studies.tuning.jobs import Job
from trainwright.studies.tuning.workers import Executor

_KIND = "final"  # of the note that names the run


def final_run(runs: Path, log: TrialLog, best: LoggedTrial) -> RunDir | None:
    """Return the run of the final training of the best trial, if it was begun."""
    notes = [note for note in log.notes if note["kind"] == _KIND and note["trial"] == best.number]
    return RunDir(runs / notes[-1]["run_id"]) if notes else None


def train_final(executor: Executor, job: Job, log: TrialLog) -> None:
    """Train the best configuration, or continue that; a note in the log names the run before it begins.

    Raises:
        TrainingError: The training failed.
        Stopped: A signal came.
    """
    (path,) = job.runs
    if not any(note["kind"] == _KIND and note["run_id"] == path.name for note in log.notes):
        log.note(kind=_KIND, trial=job.trial, run_id=path.name)
    executor.submit(job)
    while (outcome := executor.wait()) is None:
        pass  # another worker has joined
    if outcome.status == "failed":
        raise TrainingError(f"the best configuration cannot be trained again: {outcome.error}")
