"""List runs, delete them, and send to trackers what they do not have yet."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.errors import CheckpointError
from trainwright.records.listing import all_runs, runs_folder
from trainwright.runs.cleanup import delete_run, is_unwanted
from trainwright.runs.run import Run

if TYPE_CHECKING:
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
    from trainwright.storage.index import summaries as read_summaries

    runs = read_summaries(runs_folder(runs_dir), experiment)
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
    runs_dir: Path | str | None = None, *, statuses: Sequence[str] | None = None, dry_run: bool = True
) -> list[Run]:
    """Delete runs, and return them; with `dry_run`, only return them.

    A running run is never touched, and one that is damaged or cannot be deleted is skipped with a warning.

    Args:
        runs_dir: The folder of the runs.
        statuses: Delete the runs with one of these statuses, with or without checkpoints. Default: `crashed`
            and `failed` runs without a checkpoint. A run that is only `created` may wait for a worker.
        dry_run: Delete nothing.
    """
    chosen = []
    for run in all_runs(runs_folder(runs_dir)):
        try:
            attempt = run.next_attempt()
            if is_unwanted(run, statuses) and (dry_run or delete_run(run, attempt)):
                chosen.append(Run(run))
        except (CheckpointError, OSError, ValueError) as error:
            log.warning("run %s is skipped: %s", run.id, error)
    return chosen


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
