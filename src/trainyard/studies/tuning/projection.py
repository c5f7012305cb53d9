"""Optuna's storage of a study: `optuna.db`, a copy of the log for `optuna.load_study` and optuna-dashboard.

The study never reads it. Optuna makes the tables; the rows are written here, many in one transaction, because
Optuna's own way takes 25 ms of CPU for each trial.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import logging
import math
import sqlite3
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trainyard.records.run_dir import RunDir
from trainyard.records.trials import LoggedTrial
from trainyard.types import Mode

log = logging.getLogger("trainyard")
FILE = "optuna.db"
_SECONDS = 10.0  # between two updates of a study that goes on
_DIRECTIONS = {"min": "minimize", "max": "maximize"}


class Projector:
    """Keeps the storage of a study up to date; nothing is done where Optuna is not installed.

    Args:
        folder: The study's folder; its name is that of the study in the storage.
        metrics: The metrics with their modes.
    """

    def __init__(self, folder: Path, metrics: dict[str, Mode]) -> None:
        self._folder, self._metrics = folder, metrics
        self._due = time.monotonic() + _SECONDS

    def is_due(self, *, end: bool = False) -> bool:
        """Return whether the storage is to be written now: at the end, and every few seconds before."""
        if importlib.util.find_spec("optuna") is None or not (end or time.monotonic() >= self._due):
            return False
        self._due = time.monotonic() + _SECONDS
        return True

    def write(self, frozen: Sequence[Any], trials: Sequence[LoggedTrial]) -> None:
        """Add the trials that are new; a failure is a warning.

        Args:
            frozen: Optuna's frozen trials, all ended, from the first one on.
            trials: The same trials in the log.
        """
        if not trials:
            return
        try:
            try:
                self._write(frozen, trials)
            except sqlite3.DatabaseError:  # damaged, or of another version: it is only a copy
                (self._folder / FILE).unlink()
                self._write(frozen, trials)
        except Exception as error:
            log.warning("%s cannot be written: %s: %s", FILE, type(error).__name__, error)

    def _write(self, frozen: Sequence[Any], trials: Sequence[LoggedTrial]) -> None:
        path = self._folder / FILE
        if not path.exists():
            self._create(path)
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            named = "SELECT study_id FROM studies WHERE study_name = ?"
            (study,) = connection.execute(named, (self._folder.name,)).fetchone()
            count = "SELECT COUNT(*) FROM trials WHERE study_id = ?"
            (known,) = connection.execute(count, (study,)).fetchone()
            for trial, logged in zip(frozen[known:], trials[known:], strict=True):
                _insert(connection, study, trial, logged, _times(self._folder.parent, logged))

    def _create(self, path: Path) -> None:
        optuna: Any = importlib.import_module("optuna")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        aside = path.with_suffix(".new")
        aside.unlink(missing_ok=True)
        storage = optuna.storages.RDBStorage(f"sqlite:///{aside}")
        directions = [_DIRECTIONS[mode] for mode in self._metrics.values()]
        study = optuna.create_study(storage=storage, study_name=self._folder.name, directions=directions)
        study._storage.set_study_system_attr(study._study_id, "study:metric_names", list(self._metrics))
        storage.remove_session()
        storage.engine.dispose()
        aside.replace(path)


def _times(runs: Path, trial: LoggedTrial) -> tuple[str | None, str | None]:
    """Return when the first attempt of a trial began and the last one ended, in UTC."""
    attempts = RunDir(runs / trial.run_id).attempts() if trial.run_id else []
    if not attempts:
        now = _utc(time.time())
        return now, now
    return _utc(attempts[0].started), _utc(attempts[-1].ended or attempts[-1].started)


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")


def _insert(
    connection: sqlite3.Connection,
    study: int,
    trial: Any,
    logged: LoggedTrial,
    times: tuple[str | None, str | None],
) -> None:
    def add(table: str, **row: Any) -> int | None:
        names, marks = ", ".join(row), ", ".join("?" * len(row))
        into = f"INSERT INTO {table} ({names}) VALUES ({marks})"
        return connection.execute(into, tuple(row.values())).lastrowid

    began, ended = times
    state = trial.state.name
    number = add(
        "trials",
        number=logged.number,
        study_id=study,
        state=state,
        datetime_start=began,
        datetime_complete=ended,
    )
    for table, row in _rows(trial, logged):
        add(table, trial_id=number, **row)


def _rows(trial: Any, logged: LoggedTrial) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a trial, with the names of their tables."""
    from optuna.distributions import distribution_to_json

    for name, value in trial.params.items():
        distribution = trial.distributions[name]
        yield (
            "trial_params",
            {
                "param_name": name,
                "param_value": distribution.to_internal_repr(value),
                "distribution_json": distribution_to_json(distribution),
            },
        )
    for objective, value in enumerate(trial.values or ()):
        stored, kind = _stored(value)
        yield "trial_values", {"objective": objective, "value": stored, "value_type": kind}
    for step, value in trial.intermediate_values.items():
        stored, kind = _stored(value)
        yield (
            "trial_intermediate_values",
            {"step": step, "intermediate_value": stored, "intermediate_value_type": kind},
        )
    for key, value in trial.system_attrs.items():
        if ":optimizer" in key:
            continue  # the state of CMA-ES, a pickle
        yield "trial_system_attributes", {"key": key, "value_json": json.dumps(value)}
    error = {"error": logged.ending.error} if logged.ending and logged.ending.error else {}
    run = {"run_id": logged.run_id} if logged.run_id else {}
    for key, value in {**run, **error, **trial.user_attrs}.items():
        yield "trial_user_attributes", {"key": key, "value_json": json.dumps(value)}


def _stored(value: float) -> tuple[float | None, str]:
    """Return a number as Optuna stores it: what is not finite by its name."""
    if math.isnan(value):
        return None, "NAN"
    return (value, "FINITE") if math.isfinite(value) else (None, "INF_POS" if value > 0 else "INF_NEG")
