"""The predictions that wait for their labels, in a database that the replicas share."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainwright.errors import InputError
from trainwright.types import Array

FILE = "feedback.sqlite"
_VERSION = 1  # of the tables
_BUSY = 30.0  # seconds that another replica may write
_TABLES = """
CREATE TABLE IF NOT EXISTS requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, run TEXT NOT NULL,
    rows INTEGER NOT NULL, form TEXT NOT NULL, outputs BLOB NOT NULL,
    labels TEXT, targets BLOB
);
CREATE INDEX IF NOT EXISTS by_labels ON requests (labels IS NULL, number, rows);
CREATE TABLE IF NOT EXISTS early (id TEXT PRIMARY KEY, at REAL NOT NULL, rows INTEGER NOT NULL, labels TEXT);
CREATE TABLE IF NOT EXISTS judged (one INTEGER PRIMARY KEY CHECK (one = 1), at REAL NOT NULL);
"""


class Predicted(NamedTuple):
    """A request that was answered: its id, the run that answered, and the outputs, (rows, ...)."""

    id: str
    run: str
    outputs: Array


class Known(NamedTuple):
    """A request that is kept: the run that answered, its rows, and its labels as JSON, if they came."""

    run: str
    rows: int
    labels: str | None


class Store:
    """The database; it may be used from many threads.

    Args:
        folder: The folder that the replicas share.
        rows: The number of rows without labels that are kept, and of those with labels.

    Raises:
        InputError: The file in the folder is another one, or cannot be written.
    """

    def __init__(self, folder: Path, rows: int) -> None:
        self._most = rows
        self._lock = threading.Lock()
        self._unpruned = 0  # rows
        path = folder / FILE
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(path, _BUSY, isolation_level=None, check_same_thread=False)
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = NORMAL")
            (version,) = self._base.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                raise InputError(f"{path} is of another Trainwright: delete it, or give another --state")
            self._base.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
        except (sqlite3.Error, OSError) as error:
            raise InputError(
                f"{path} cannot be used ({error}): delete it if it is damaged, or give another --state"
            ) from None

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._base.close()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield self._base
            except BaseException:
                self._base.execute("ROLLBACK")
                raise
            self._base.execute("COMMIT")

    def _read(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._lock:
            return self._base.execute(query, values).fetchall()

    def add(self, predicted: Sequence[Predicted]) -> None:
        """Keep requests; one of an id that is known takes its place, unless that has its labels."""
        lines = [
            (one.id, one.run, len(one.outputs), _form(one.outputs), one.outputs.tobytes())
            for one in predicted
        ]
        with self._writing() as base:
            base.executemany(
                "INSERT INTO requests (id, run, rows, form, outputs) VALUES (?, ?, ?, ?, ?) ON CONFLICT (id) "
                "DO UPDATE SET run = excluded.run, rows = excluded.rows, form = excluded.form, "
                "outputs = excluded.outputs WHERE labels IS NULL",
                lines,
            )
        self._grown(sum(line[2] for line in lines))

    def _grown(self, rows: int) -> None:
        """Forget the oldest requests now and then."""
        self._unpruned += rows
        if self._unpruned <= self._most // 20:
            return
        self._unpruned = 0
        with self._writing() as base:
            for is_waiting in (1, 0):
                base.execute(
                    "DELETE FROM requests WHERE (labels IS NULL) = :is AND number <= "
                    "(SELECT MAX(number) FROM (SELECT number, SUM(rows) OVER (ORDER BY number DESC) AS above "
                    "FROM requests WHERE (labels IS NULL) = :is) WHERE above > :most)",
                    {"is": is_waiting, "most": self._most},
                )

    def known(self, ids: Sequence[str]) -> dict[str, Known]:
        """Return the requests of some ids that are kept."""
        query = "SELECT id, run, rows, labels FROM requests WHERE id IN (SELECT value FROM json_each(?))"
        return {one[0]: Known(*one[1:]) for one in self._read(query, [json.dumps(ids)])}

    def early(self, ids: Sequence[str]) -> dict[str, str]:
        """Return the labels that wait for requests of some ids, as JSON."""
        query = "SELECT id, labels FROM early WHERE id IN (SELECT value FROM json_each(?))"
        return dict(self._read(query, [json.dumps(ids)]))

    def label(self, labels: Sequence[tuple[str, str, bytes | None]]) -> None:
        """Keep the labels of requests that have none: id, JSON, and encoded targets (None: not encoded)."""
        with self._writing() as base:
            base.executemany(
                "UPDATE requests SET labels = ?, targets = ? WHERE id = ? AND labels IS NULL",
                [(text, targets, one) for one, text, targets in labels],
            )

    def add_early(self, labels: Sequence[tuple[str, str, int]], most: int) -> int:
        """Keep labels of requests that are not known yet (id, JSON, rows), while there are at most `most`.

        Returns:
            How many of them are kept: the first ones.
        """
        with self._writing() as base:
            (rows,) = base.execute("SELECT COALESCE(SUM(rows), 0) FROM early").fetchone()
            for count, (one, text, number) in enumerate(labels):
                rows += number
                if rows > most:
                    return count
                base.execute(
                    "INSERT OR REPLACE INTO early VALUES (?, ?, ?, ?)", (one, time.time(), number, text)
                )
        return len(labels)

    def due(self) -> list[tuple[str, str]]:
        """Return labels that came early whose requests are known now (id, JSON), and forget them."""
        if not self._read("SELECT 1 FROM early JOIN requests USING (id) LIMIT 1"):
            return []
        with self._writing() as base:
            return base.execute(
                "DELETE FROM early WHERE id IN (SELECT id FROM requests) RETURNING id, labels"
            ).fetchall()

    def expired(self, seconds: float) -> int:
        """Forget labels that have waited so long, and return the number of their rows."""
        oldest = time.time() - seconds
        if not self._read("SELECT 1 FROM early WHERE at < ? LIMIT 1", [oldest]):
            return 0
        with self._writing() as base:
            found = base.execute("DELETE FROM early WHERE at < ? RETURNING rows", [oldest]).fetchall()
        return sum(rows for (rows,) in found)

    def counts(self) -> dict[str, tuple[int, int, int]]:
        """Return by run: the rows that are kept, those with labels, and the largest number of a request."""
        query = (
            "SELECT run, SUM(rows), SUM(rows * (labels IS NOT NULL)), MAX(number) FROM requests GROUP BY run"
        )
        return {run: (rows, labeled, last) for run, rows, labeled, last in self._read(query)}

    def labeled(self, run: str, rows: int | None) -> tuple[Array, bytes]:
        """Return the outputs of a run's requests with encoded targets, and these targets.

        Args:
            run: The run.
            rows: How many of the last ones; None: all.

        Returns:
            The outputs, (rows, ...), and the bytes of the targets.
        """
        query = (
            "SELECT form, outputs, targets FROM (SELECT number, form, outputs, targets, SUM(rows) OVER "
            "(ORDER BY number DESC) - rows AS above FROM requests WHERE run = ? AND targets IS NOT NULL) "
            "WHERE above < ? ORDER BY number"
        )
        found = self._read(query, [run, 2**62 if rows is None else rows])
        if not found:
            return np.empty(0, np.float32), b""
        dtype, *shape = json.loads(found[-1][0])
        same = [one for one in found if one[0] == found[-1][0]]
        outputs = np.frombuffer(b"".join(one[1] for one in same), dtype).reshape(-1, *shape)
        return outputs, b"".join(one[2] for one in same)

    def takes_turn(self, seconds: float) -> bool:
        """Return whether the last turn of any replica is so long ago, and take it."""
        now = time.time()
        with self._writing() as base:
            done = base.execute(
                "INSERT INTO judged VALUES (1, ?) ON CONFLICT (one) DO UPDATE SET at = excluded.at "
                "WHERE at <= ?",
                (now, now - seconds),
            )
            return done.rowcount > 0


def _form(outputs: Array) -> str:
    return json.dumps([outputs.dtype.str, *outputs.shape[1:]])
