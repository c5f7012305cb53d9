"""List runs, delete them, and send to trackers what they do not have yet."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.errors import CheckpointError, InputError
from trainwright.records.listing import all_runs, find_run, runs_folder
from trainwright.runs.run import Run

if TYPE_CHECKING:
    from trainwright.runs.deletion import Deletable
    from trainwright.runs.lookup import RunName

log = logging.getLogger("trainwright")


def list_runs(runs_dir: Path | str | None = None, experiment: str | None = None) -> list[Run]:
    """Return the runs, newest first."""
    found = all_runs(runs_folder(runs_dir))
    return [Run(run) for run in found if experiment in (None, run.experiment)]


def summaries(
    runs_dir: Path | str | None = None,
    experiment: str | None = None,
    *,
    where: str | None = None,
    sort: str | None = None,
    gpu_price: float | None = None,
) -> list[dict[str, Any]]:
    """Return the result, path and status of each run, newest first, with its model, data and duration.

    `study` is the id of the study that made a run, or None, and `label` what the study calls it.
    Thousands of runs take a fraction of a second.

    Args:
        runs_dir: The folder of the run directories; default `TRAINWRIGHT_RUNS`, or `runs`.
        experiment: Only the runs of this experiment.
        where: Only the runs that this is true for: `val_f1 > 0.9 and model = lightgbm`.
        sort: The value to sort by, the smallest first; with `-` before it, the greatest.
        gpu_price: The price of an hour of one GPU, for `cost`.

    Raises:
        InputError: `where` cannot be read, or it or `sort` names what no run has.
    """
    from trainwright.records.queries import chosen, ordered
    from trainwright.records.study_list import listed_studies, with_studies
    from trainwright.storage.index import summaries as read_summaries

    folder = runs_folder(runs_dir)
    runs = with_studies(read_summaries(folder, experiment), listed_studies(folder, experiment))
    if gpu_price is not None:
        runs = [
            run | ({"cost": run["gpu_hours"] * gpu_price} if run.get("gpu_hours") else {}) for run in runs
        ]
    runs = chosen(runs, where) if where else runs
    return ordered(runs, sort) if sort else runs


def get(run: RunName, *, runs_dir: Path | str | None = None) -> Run:
    """Return the run that a path, an id, a unique prefix or `last` means.

    Raises:
        RunNotFoundError: There is no such run, or more than one.
    """
    from trainwright.runs.lookup import find  # brings NumPy, which a list of runs does without

    return Run(find(run, runs_dir))


def clean(
    runs_dir: Path | str | None = None,
    *,
    statuses: Sequence[str] | None = None,
    older_than: float | None = None,
    experiment: str | None = None,
    keep_best: int | None = None,
    dry_run: bool = True,
) -> list[Run]:
    """Delete runs, and return them; with `dry_run`, only return them. A study without runs counts as one.

    A running run is never touched. One that is damaged, that trackers lack values of, or that cannot be
    deleted is skipped with a warning. What a kill has left of an earlier deletion is deleted, too.

    Args:
        runs_dir: The folder of the runs.
        statuses: Delete the runs with one of these statuses, with or without checkpoints; of studies, those
            with one of these statuses, with all their runs. Default: `crashed`
            and `failed` runs without a checkpoint. A run that is only `created` may wait for a worker.
        older_than: Delete the runs, and the studies with all their runs, that have ended and did nothing for
            so many seconds.
        experiment: Only the runs of this experiment.
        keep_best: Of the runs and studies of each experiment, keep so many, by the metric of their best
            models, and delete those that are worse.
        dry_run: Delete nothing.

    Raises:
        InputError: `older_than` or `keep_best` is negative.
    """
    from trainwright.runs.cleaning import Criteria, cleanable

    found = cleanable(runs_folder(runs_dir), Criteria(statuses, older_than, experiment, keep_best))
    return [Run(run) for one in found if dry_run or is_gone(one) for run in one.runs or [one.folder]]


def delete(
    *runs: RunName, runs_dir: Path | str | None = None, force: bool = False, dry_run: bool = False
) -> list[Path]:
    """Delete runs, and studies with the runs that were made for them.

    Args:
        *runs: Runs, or names of runs and studies.
        runs_dir: The folder of the runs.
        force: Delete also runs of a study alone, and what trackers lack values of.
        dry_run: Delete nothing.

    Returns:
        The folders of the runs and studies that were deleted.

    Raises:
        RunNotFoundError: There is no such run or study.
        RunLockedError: One is running.
        InputError: One is not in the folder of the runs, belongs to a study, or trackers lack values of it.
    """
    chosen = to_delete(runs, runs_dir, force=force)
    return [one.folder.path for one in chosen if dry_run or is_gone(one)]


def to_delete(
    runs: Sequence[RunName], runs_dir: Path | str | None = None, *, force: bool = False
) -> list[Deletable]:
    """Return what `delete` deletes."""
    from trainwright.runs.deletion import named

    names: dict[Path, list[str]] = {}  # by the folder of the runs
    for run in runs:
        path = getattr(run, "path", None)
        names.setdefault(path.parent.parent if path else runs_folder(runs_dir), []).append(str(path or run))
    return [
        one
        for folder, inside in names.items()
        for one in named(inside, folder, partial(find_run, runs_dir=folder), force=force)
    ]


def is_gone(one: Deletable) -> bool:
    """Delete a run or study; return whether that was done."""
    from trainwright.runs.deletion import delete as delete_now

    try:
        return delete_now(one)
    except (CheckpointError, OSError, InputError) as error:
        log.warning("%s is not deleted: %s", one.folder.id, error)
        return False


def sync(run: RunName, *, runs_dir: Path | str | None = None, trust: bool = False) -> Any:
    """Send to the trackers what they do not have yet.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`.
        runs_dir: The folder of the runs.
        trust: Use the variables and hosts that the run names for its trackers.

    Returns:
        The state of each tracker, with the values sent and those still to send.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run's config or manifest is missing or damaged; or its trackers use variables or
            hosts, and it is neither own nor trusted.
    """
    from trainwright.runs.lookup import find
    from trainwright.trackers.feed import sync as sync_trackers

    return sync_trackers(find(run, runs_dir).path, timeout=None, trust=trust)
