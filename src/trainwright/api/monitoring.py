"""Watch models in use: drift of files and services, pages, alert rules, quality by labels that come later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.api.results import load_for, read_with, versions_folder
from trainwright.errors import InputError
from trainwright.records.artifact import ArtifactDir
from trainwright.records.listing import has_model
from trainwright.redact import redacted
from trainwright.runs.data.versions import local_path
from trainwright.runs.lookup import RunName, find

if TYPE_CHECKING:
    from trainwright.monitoring.drift import DriftReport
    from trainwright.monitoring.reference import Reference

_SECONDS = 30.0  # that a service has to answer
_MOST_BYTES = 64 << 20  # of its answer


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
    from trainwright.inference.watched_files import windows_of, windows_of_rows
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
        windows = windows_of_rows(predictor, rows, known, window)
    elif isinstance(data, str | Path):
        read_with(predictor, params)
        windows = windows_of(predictor, local_path(data, versions_folder(found, runs_dir)), known, window)
    else:
        windows = windows_of_rows(predictor, data, known, window)
    return DriftReport(known.run, [compare(one, alarm_rate) for one in windows])


def monitor(
    source: Path | str,
    *,
    run: RunName | None = None,
    output: Path | str = "drift.html",
    window: int | None = None,
    alarm_rate: float = 0.01,
    key: str | None = None,
    runs_dir: Path | str | None = None,
    trust: bool = False,
) -> Path:
    """Write a page of a model in use: of a running service, of a log of requests, or of `drift --json`.

    Args:
        source: The URL of a service (its `/drift` is asked for); a log of requests, that is a file of rows
            or a folder of them with the columns of the rows and of the predictions; or a JSON file that
            `trainwright drift --json` wrote.
        run: The run that a log is of.
        output: The page to write.
        window: The number of rows of a window of a log; default 1,000.
        alarm_rate: As in `drift`, for a log.
        key: The API key of the service.
        runs_dir: The folder of the runs.
        trust: As in `load`.

    Returns:
        The path of the page.

    Raises:
        InputError: The service does not answer with a document of drift, or the log names no run.
        DataError: The log cannot be read.
        OSError: The page cannot be written.
    """
    from trainwright.reports.drift import write_drift
    from trainwright.safe_files import usable_path

    if str(source).startswith(("http://", "https://")):
        document = _asked(str(source), key)
    elif str(source).endswith(".json"):
        document = _parsed(Path(source).read_bytes(), str(source))
    else:
        document = _of_log(source, run, window, alarm_rate, runs_dir, trust=trust).to_json()
    return write_drift(document, usable_path(output))


def alert_rules(output: Path | str, *, latency: float = 1.0, queue: int = 1000) -> Path:
    """Write the alert rules of services for Prometheus (`rule_files`), and return the path.

    Args:
        output: The file to write, YAML.
        latency: The seconds that 99 of 100 requests must take at most.
        queue: The rows that may wait for the model for a few minutes.

    Raises:
        InputError: A limit is not positive.
        OSError: The file cannot be written.
    """
    from trainwright.monitoring.alerts import rules
    from trainwright.safe_files import usable_path, write_atomically

    path = usable_path(output)
    write_atomically(path, rules(latency, queue).encode())
    return path


def _of_log(
    log: Path | str,
    run: RunName | None,
    window: int | None,
    alarm_rate: float,
    runs_dir: Path | str | None,
    *,
    trust: bool,
) -> DriftReport:
    from trainwright.monitoring.drift import DriftReport, compare
    from trainwright.monitoring.logs import ROWS, windows_of_log

    if run is None:
        raise InputError(f"{log} is a log of requests: name the run that served them, --run RUN")
    known = reference(run, runs_dir=runs_dir, trust=trust)
    windows = windows_of_log(log, known, ROWS if window is None else window)
    return DriftReport(known.run, [compare(one, alarm_rate) for one in windows])


def _asked(url: str, key: str | None) -> Any:
    """Return the document of drift of a service.

    Raises:
        InputError: It does not answer, or answers with something else.
    """
    from urllib.error import HTTPError, URLError
    from urllib.parse import urlsplit, urlunsplit
    from urllib.request import HTTPRedirectHandler, Request, build_opener

    class NoRedirects(HTTPRedirectHandler):
        def redirect_request(self, *_: Any, **__: Any) -> None:  # another host must not get the key
            """Follow no redirect."""

    parts = urlsplit(url)
    path = parts.path if parts.path.endswith("/drift") else f"{parts.path.rstrip('/')}/drift"
    address = urlunsplit(parts._replace(path=path, fragment=""))
    request = Request(address, headers={"Authorization": f"Bearer {key}"} if key else {})
    try:
        with build_opener(NoRedirects).open(request, timeout=_SECONDS) as answer:
            content = answer.read(_MOST_BYTES + 1)
    except HTTPError as error:
        advice = ": give its key, --key-file FILE" if error.code in (401, 403) else ""
        raise InputError(f"{redacted(address)} answers {error.code} {error.reason}{advice}") from error
    except (URLError, OSError, ValueError) as error:
        raise InputError(f"{redacted(address)} does not answer: {getattr(error, 'reason', error)}") from error
    if len(content) > _MOST_BYTES:
        raise InputError(f"{redacted(address)} answers with more than {_MOST_BYTES >> 20} MiB")
    return _parsed(content, redacted(address))


def _parsed(content: bytes, where: str) -> Any:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} holds no JSON: {error}") from error
    if not isinstance(document, dict):
        raise InputError(f"{where} holds no document of drift")
    return document
