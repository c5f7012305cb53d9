"""Compare two data sets, and find which difference of two runs moved a metric."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainwright.api.progress import interruptible, study_unless_interrupted, watched
from trainwright.records.listing import local_runs_folder
from trainwright.runs.lookup import RunName, find

if TYPE_CHECKING:
    from trainwright.datasets.tables.diff.result import DataDiff
    from trainwright.studies.study import TrialWatcher
    from trainwright.studies.why.why import Why


@interruptible
def why(
    first: RunName,
    second: RunName,
    *,
    metric: str | None = None,
    max_runs: int = 60,
    runs_dir: Path | str | None = None,
    resume: bool = False,
    watch: TrialWatcher | None = None,
    trust: bool = False,
    quiet: bool = False,
) -> Why:
    """Find which of the differences of two runs moved a metric, by making them one by one and in groups.

    The differences are keys of the config, the data, and the user's own code, if both commits are in the
    repository. Each measurement is a run in the experiment of the first run; one that was made before is
    reused. They are repeated with other seeds until the shares stand out from the noise.

    Args:
        first: A completed run: itself, a path, an id, a unique prefix, or `last`.
        second: The other one.
        metric: The metric: `f1`, `test_f1` or `val_f1`; default: the first one of the test split.
        max_runs: The number of runs that may be trained.
        runs_dir: The folder of the runs.
        resume: Continue the newest study of the same two runs and metric; it may train more runs now.
        watch: Called with a mapping (`changes`, `seed`, `run_id`, the metric) after each measurement.
        trust: As in `load`.
        quiet: Print no line for each measurement; with `watch`, none is printed, either.

    Returns:
        The study; `answer` is a sentence, `moved_by` names the changes, and `shares` has their shares.

    Raises:
        Interrupted: Ctrl-C has ended the study, which can be resumed; it is a `KeyboardInterrupt`.
        RunNotFoundError: There is no such run.
        InputError: A run is not completed, was given objects, or starts from another run; or the two have no
            metric in common.
        TrainingError: One of the two runs cannot be made again here.
    """
    from trainwright.studies.study import StudyRequest, ignore_trials
    from trainwright.studies.why.why import WhyRequest
    from trainwright.studies.why.why import why as run_study

    folder = local_runs_folder(runs_dir, "studies")
    before, after = find(first, folder), find(second, folder)
    watch = watched(watch, quiet=quiet) or ignore_trials
    study = StudyRequest(before.path.parent.parent, resume, watch=watch)
    return study_unless_interrupted(run_study(before, after, WhyRequest(study, metric, max_runs, trust)))


def data_diff(
    first: RunName,
    second: RunName,
    *,
    key: str | Sequence[str] | None = None,
    limit: int = 10,
    runs_dir: Path | str | None = None,
    trust: bool = False,
) -> DataDiff:
    """Compare two data sets: their columns, rows, cells and distributions.

    Args:
        first: A file of rows (CSV, Parquet, JSON Lines, Excel, npz), a folder or a pattern of such files, or
            a version of them (`churn@v3`); or a run, whose data are meant.
        second: The same.
        key: The column, or columns, that identify a row. Default: a column that is named like an identifier,
            and has no value twice; if there is none, rows are compared by content.
        limit: The number of changed cells, and of added and removed rows, that are named.
        runs_dir: The folder of the runs.
        trust: As in `load`.

    Returns:
        The differences. If the rows of a run are gone, or have changed since, two runs are compared by what
        they recorded.

    Raises:
        InputError: There is no such file and no such run, no such column, or a table cannot be read.
    """
    from trainwright.runs.data.differences import data_diff as compare

    keys = [key] if isinstance(key, str) else list(key or ())
    return compare(first, second, key=keys, limit=limit, runs_dir=runs_dir, trust=trust)
