"""Optuna's storage of a study, a copy of the log for `optuna.load_study` and optuna-dashboard.

It is `optuna.db` in the study's folder, or a PostgreSQL server. The study never reads it, and does not need
it: a server that is away gets later what it has missed. Optuna makes the tables; the rows are written here,
many in one transaction, because Optuna's own way takes 25 ms of CPU for each trial.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trainwright.config.tuning import SQLITE, TuningConfig
from trainwright.errors import ConfigError, Problem
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import LoggedTrial
from trainwright.redact import HIDDEN, is_secret, redacted, remember_passwords, without_literals
from trainwright.require import require
from trainwright.studies.configs import StudyConfig
from trainwright.types import Mode

log = logging.getLogger("trainwright")
FILE = "optuna.db"
_SECONDS = 10.0  # between two updates of a study that goes on
_PATIENCE = 10.0  # seconds that the end of a study waits for a server
_PAUSED = "RUNNING"  # Optuna's name for what has not ended
_DIRECTIONS = {"min": "minimize", "max": "maximize"}
_SERVER = {"connect_timeout": 5, "tcp_user_timeout": 10_000, "application_name": "trainwright"}
_KEY = "tuning.storage"
_SCHEMES = ("postgresql", "postgresql+psycopg")


class Projector:
    """The writer of a study's storage; nothing is done where Optuna is not installed.

    A server is written to by a thread, so that the study never waits for it.

    Args:
        folder: The study's folder; its name is that of the study in the storage.
        metrics: The metrics with their modes.
        storage: `sqlite`, or the URL of a PostgreSQL server.

    Raises:
        MissingExtraError: The driver of the server is not installed.
    """

    def __init__(self, folder: Path, metrics: dict[str, Mode], storage: str = SQLITE) -> None:
        self._folder, self._metrics = folder, metrics
        self._url = f"sqlite:///{folder / FILE}" if storage == SQLITE else storage
        self._is_file = storage == SQLITE
        self._shown = FILE if self._is_file else redacted(storage)
        self._due = time.monotonic() + _SECONDS
        self._thread: threading.Thread | None = None
        self._is_created = False  # the study in the storage, as far as this process has seen to it
        if not self._is_file:
            require("optuna", "tuning")
            require("psycopg", "postgresql")
            remember_passwords(storage)

    def is_due(self, *, end: bool = False) -> bool:
        """Return whether the storage is to be written now: at the end, and every few seconds before."""
        if importlib.util.find_spec("optuna") is None or not (end or time.monotonic() >= self._due):
            return False
        self._due = time.monotonic() + _SECONDS
        return True

    def write(self, frozen: Sequence[Any], trials: Sequence[LoggedTrial], *, end: bool = False) -> None:
        """Add the trials that are new; a failure is a warning, and the next call adds them.

        Args:
            frozen: Optuna's frozen trials, all ended, from the first one on.
            trials: The same trials in the log.
            end: Wait for a server, for some seconds.
        """
        if not trials:
            return
        if self._is_file:
            self._try(frozen, trials)
            return
        if self._is_busy(end=end):
            return
        self._thread = threading.Thread(target=self._try, args=(frozen, trials), daemon=True)
        self._thread.start()
        if end:
            self._is_busy(end=True)

    def _is_busy(self, *, end: bool) -> bool:
        """Return whether the server has not yet taken what it was sent; at the end, wait for it."""
        if self._thread is None:
            return False
        self._thread.join(_PATIENCE if end else 0)
        if self._thread.is_alive() and end:
            log.warning("%s does not answer: `trainwright resume` of the study writes the rest", self._shown)
        return self._thread.is_alive()

    def _try(self, frozen: Sequence[Any], trials: Sequence[LoggedTrial]) -> None:
        try:
            try:
                self._write(frozen, trials)
            except self._sqlalchemy.exc.DatabaseError:
                if not self._is_file:
                    raise
                (self._folder / FILE).unlink()  # damaged, or of another version: it is only a copy
                self._is_created = False
                self._write(frozen, trials)
        except Exception as error:
            first = str(error).partition("\n")[0]
            log.warning("%s cannot be written: %s: %s", self._shown, type(error).__name__, first)

    def _write(self, frozen: Sequence[Any], trials: Sequence[LoggedTrial]) -> None:
        if self._is_file and not (self._folder / FILE).exists():
            self._create_file()
        if not self._is_created:
            if not self._is_file or self._study() is None:
                self._create(self._url)
            self._is_created = True
        tables = self._sqlalchemy.MetaData()
        tables.reflect(self._engine)
        number = self._study()
        with self._engine.begin() as connection:
            one = tables.tables["studies"]
            # After a kill, another process may still write this study: the lock makes one of them wait.
            connection.execute(one.select().where(one.c.study_id == number).with_for_update())
            made = tables.tables["trials"]
            of_study = connection.execute(made.select().where(made.c.study_id == number)).all()
            stored = {row.number: row for row in of_study}
            rows = defaultdict(list)
            for trial, logged in zip(frozen, trials, strict=True):
                known = stored.get(logged.number)
                if known is not None and known.state != _PAUSED:
                    continue
                columns = {"study_id": number, **_trial_row(trial, logged, self._folder.parent)}
                if known is None:
                    key = connection.execute(made.insert(), columns).inserted_primary_key[0]
                else:
                    key = known.trial_id
                    self._clear(connection, tables, key)
                    connection.execute(made.update().where(made.c.trial_id == key), columns)
                for table, row in _rows(trial, logged):
                    rows[table].append({"trial_id": key, **row})
            for table, several in rows.items():
                connection.execute(tables.tables[table].insert(), several)

    @staticmethod
    def _clear(connection: Any, tables: Any, trial: int) -> None:
        """Delete what belongs to a trial, but not the trial."""
        for name, table in tables.tables.items():
            if name != "trials" and "trial_id" in table.c:
                connection.execute(table.delete().where(table.c.trial_id == trial))

    def _study(self) -> int | None:
        """Return the number of the study in the storage; None if it is not there."""
        if not self._sqlalchemy.inspect(self._engine).has_table("studies"):
            return None
        query = self._sqlalchemy.text("SELECT study_id FROM studies WHERE study_name = :name")
        with self._engine.connect() as connection:
            number: int | None = connection.execute(query, {"name": self._folder.name}).scalar()
        return number

    def _create_file(self) -> None:
        """Make the file with its tables and the study, whole or not at all."""
        aside = (self._folder / FILE).with_suffix(".new")
        aside.unlink(missing_ok=True)
        self._create(f"sqlite:///{aside}")
        aside.replace(self._folder / FILE)

    def _create(self, url: str) -> None:
        """Add the study, and the tables if there are none."""
        optuna: Any = importlib.import_module("optuna")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = optuna.storages.RDBStorage(url, engine_kwargs=self._options)
        directions = [_DIRECTIONS[mode] for mode in self._metrics.values()]
        study = optuna.create_study(  # a server may have died when it had half of it
            storage=storage, study_name=self._folder.name, directions=directions, load_if_exists=True
        )
        study._storage.set_study_system_attr(study._study_id, "study:metric_names", list(self._metrics))
        storage.remove_session()
        storage.engine.dispose()

    @cached_property
    def _sqlalchemy(self) -> Any:
        """SQLAlchemy, which Optuna brings."""
        importlib.import_module("sqlalchemy.exc")
        return importlib.import_module("sqlalchemy")

    @cached_property
    def _engine(self) -> Any:
        return self._sqlalchemy.create_engine(self._url, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        """The options of the engine: it connects anew each time, as a server may have been started again."""
        more = {} if self._is_file else {"connect_args": _SERVER}
        return {"poolclass": self._sqlalchemy.pool.NullPool, **more}


def _trial_row(trial: Any, logged: LoggedTrial, runs: Path) -> dict[str, Any]:
    """Return the row of a trial: when the first attempt of its run began and the last one ended, in UTC.

    One that is paused has not ended; when it goes on, it is written again.
    """
    attempts = RunDir(runs / logged.run_id).attempts() if logged.run_id else []
    began = attempts[0].started if attempts else time.time()
    row = {"number": logged.number, "datetime_start": _utc(began)}
    if _is_paused(logged):
        return {**row, "state": _PAUSED, "datetime_complete": None}
    ended = (attempts[-1].ended or attempts[-1].started) if attempts else began
    return {**row, "state": trial.state.name, "datetime_complete": _utc(ended)}


def _is_paused(logged: LoggedTrial) -> bool:
    return logged.ending is not None and logged.ending.status == "paused"


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _rows(trial: Any, logged: LoggedTrial) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of what a trial has, with the names of their tables."""
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
    for objective, value in enumerate(() if _is_paused(logged) else trial.values or ()):
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


def check_storage(tuning: TuningConfig) -> None:
    """Check the URL of the storage; no library is imported, and nothing is connected.

    Raises:
        ConfigError: It is no URL of a PostgreSQL database, or its password was not kept.
    """
    url = tuning.storage
    if url == SQLITE:
        return
    parts = urlsplit(url)
    if lacks_password(url):
        what = "is without its password, which a study does not keep; give it again, as tuning.storage=URL"
        raise ConfigError([Problem(what, _KEY)])
    if parts.scheme not in _SCHEMES or not parts.path.strip("/"):
        what = (
            "expected sqlite (optuna.db in the study's folder), or "
            f"postgresql://USER:${{env:PASSWORD}}@HOST/DATABASE; got {redacted(url)!r}"
        )
        raise ConfigError([Problem(what, _KEY)])


def lacks_password(text: str) -> bool:
    """Return whether a text has a URL whose password was left out when it was stored."""
    return f"//{HIDDEN}@" in text


def storable(base: StudyConfig) -> str:
    """Return the text of a search's config, as its folder keeps it: without a password in clear text."""
    storage = base.resolved.flat().get(_KEY)
    if isinstance(storage, str) and is_secret(_KEY, storage):
        base = base.with_overrides({_KEY: without_literals(storage)})
    return base.resolved.dump()
