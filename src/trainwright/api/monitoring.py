"""Watch models in use: drift of files and services, pages, alert rules, quality by labels that come later."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.api.results import load_for, read_with, versions_folder
from trainwright.errors import InputError
from trainwright.records.artifact import ArtifactDir
from trainwright.records.listing import has_model
from trainwright.runs.data.versions import local_path
from trainwright.runs.lookup import RunName, find

if TYPE_CHECKING:
    from trainwright.monitoring.drift import DriftReport
    from trainwright.monitoring.reference import Reference


def reference(
    run: RunName,
    *,
    data: Any = None,
    runs_dir: Path | str | None = None,
    model: Any = None,
    trust: bool = False,
) -> Reference:
    """Return what a run's training rows and predictions are like, as windows of served rows are compared.

    It is made from the run's own data, and kept in the run's folder (`monitoring/reference.json`): later, the
    data need not be there.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`; or an exported model.
        data: The data objects, if `train` was given some.
        runs_dir: The folder of the runs.
        model: The model object, if `train` was given one.
        trust: As in `load`.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run's data are gone, or have changed.
        CheckpointError: A file of the run is damaged.
    """
    from trainwright.runs.watching import reference_of

    found = find(run, runs_dir, has_model)
    predictor = load_for(found, "drift", model, trust=trust, pinned=False)
    return reference_of(found, predictor, data, trust=trust)


def drift(
    run: RunName,
    data: Any = None,
    *,
    against: RunName | None = None,
    alarm_rate: float = 0.01,
    window: int | None = None,
    params: Mapping[str, Any] | None = None,
    runs_dir: Path | str | None = None,
    trust: bool = False,
) -> DriftReport:
    """Compare rows, or the training rows of another run, with those that a run was trained on.

    The thresholds are calibrated by resampling the run's own training rows: a window without drift is taken
    for one with the probability `alarm_rate`, over all columns together.

    Args:
        run: A run, a path, an id, a unique prefix, or `last`; or an exported model.
        data: A file of rows, as `predict` takes it, or rows in memory, as `Predictor.predict` takes them.
        against: Another run, whose training rows are compared instead.
        alarm_rate: The probability of a drift in a window that has none.
        window: The number of rows of a window; default: all rows are one.
        params: Options of reading the file, as in `predict`.
        runs_dir: The folder of the runs.
        trust: As in `load`.

    Returns:
        The report: `drifted`, `lines` in words, and `windows`.

    Raises:
        RunNotFoundError: There is no such run.
        InputError: The run's data are gone or have changed, or the arguments do not go together.
        DataError: The file cannot be read, or lacks a column of the training data.
    """
    from trainwright.inference.watched_files import window_of, windows_of
    from trainwright.monitoring.drift import DriftReport, check_alarm_rate, compare
    from trainwright.runs.watching import bundle_with_rows, reference_of, training_rows

    if (data is None) == (against is None):
        raise InputError("give either rows or another run (--against) to compare with the training rows")
    if window is not None and window < 1:
        raise InputError(f"a window of {window} rows given; give at least 1")
    check_alarm_rate(alarm_rate)
    found = find(run, runs_dir, has_model)
    predictor = load_for(found, "drift", None, trust=trust, pinned=False)
    known = reference_of(found, predictor, trust=trust)
    if against is not None:
        other = find(against, runs_dir, has_model)
        if isinstance(other, ArtifactDir):
            raise InputError(f"{against} is an exported model, and has no training rows; name its run")
        others = load_for(other, "drift", None, trust=trust, pinned=False)
        rows = training_rows(bundle_with_rows(other, others, trust=trust))
        if rows is None:
            raise InputError(f"run {other.id} was not trained on columns, which drift compares")
        windows = [window_of(predictor, rows, known)]
    elif isinstance(data, str | Path):
        read_with(predictor, params)
        windows = windows_of(predictor, local_path(data, versions_folder(found, runs_dir)), known, window)
    else:
        windows = [window_of(predictor, data, known)]
    return DriftReport(known.run, [compare(one, alarm_rate) for one in windows])
