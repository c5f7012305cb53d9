"""Records of what a service has answered: for windows of drift, and for a log that becomes training rows.

Answers are put into a queue, and a thread takes them from there, many at a time: no request waits for it.
Where it cannot keep up, answers are dropped, and counted.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from trainwright.datasets.tables.table import Table
from trainwright.inference.bad_rows import take
from trainwright.servers.service.metrics import Metrics
from trainwright.servers.service.served import Answer, ServedModel

log = logging.getLogger("trainwright")
LONGEST = 128  # characters of the name of a request
_WAITING = 20_000  # rows in the queue of records
_SECONDS = 0.5  # between two looks into it
_PART_ROWS = 50_000  # of a file of the log
_PART_SECONDS = 10.0  # that rows of the log wait to be written


class Record(NamedTuple):
    """A request that was answered.

    Attributes:
        identifier: The name of the request.
        model: The model that answered.
        content: Its rows, as the form of the model joins them.
        answer: The answer.
        at: The time, in seconds since 1970.
        seconds: How long it took.
    """

    identifier: str
    model: ServedModel
    content: Any
    answer: Answer
    at: float
    seconds: float

    def without_errors(self) -> Record:
        """Return the rows that were predicted."""
        columns, errors, outputs = self.answer
        ids = np.array([row for row in range(_count(self.answer)) if row not in errors], np.int64)
        if isinstance(self.content, list) and len(self.content) < _count(self.answer):  # arrays, by name
            content: Any = [take(one, ids) for one in self.content]
        else:
            content = take(self.content, ids)
        kept = {name: [cells[i] for i in ids.tolist()] for name, cells in columns.items()}
        return self._replace(content=content, answer=Answer(kept, {}, outputs[ids]))


class Sink(Protocol):
    """A receiver of records; `noun` is what it keeps, in words."""

    noun: str

    def take(self, model: ServedModel, rows: Any, records: Sequence[Record]) -> None:
        """Take records of one model, and their rows joined, as the predictor takes them."""

    def tick(self) -> None:
        """Do what is due by the clock."""

    def close(self) -> None:
        """Write what is left."""


class Recorder:
    """A queue of records, and the thread that empties it.

    Args:
        sinks: What gets the records.
        metrics: Gets the number of rows that were dropped.
    """

    def __init__(self, sinks: Sequence[Sink], metrics: Metrics) -> None:
        self._sinks = sinks
        self._metrics = metrics
        self._records: deque[Record] = deque()
        self._waiting = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="records", daemon=True)

    def start(self) -> None:
        """Start the thread, where there is something to record for."""
        if self._sinks:
            self._thread.start()

    def close(self) -> None:
        """Record what waits, and stop the thread."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def add(self, record: Record) -> None:
        """Put a record into the queue."""
        rows = _count(record.answer)
        if not self._sinks or not rows:
            return
        with self._lock:
            if self._waiting and self._waiting + rows > _WAITING:
                self._metrics.unrecorded.inc(rows)
                return
            self._waiting += rows
            self._records.append(record)

    def _run(self) -> None:
        while not self._stop.wait(_SECONDS):
            self._empty()
        self._empty()
        for sink in self._sinks:
            self._guard(sink, sink.close)

    def _empty(self) -> None:
        """Give what waits to the sinks."""
        with self._lock:
            records, self._records, self._waiting = self._records, deque(), 0
        for model, group in groupby(records, lambda record: record.model):
            self._give(model, list(group))
        for sink in self._sinks:
            self._guard(sink, sink.tick)

    def _guard(self, sink: Sink, do: Callable[[], None], rows: int = 0) -> None:
        """Call what may fail: the thread goes on, and the next records may be kept."""
        try:
            do()
        except Exception as error:  # the thread must not end
            self._metrics.unrecorded.inc(rows)
            why = getattr(error, "strerror", None) or type(error).__name__
            log.warning("%s cannot be kept: %s", sink.noun, why)

    def _give(self, model: ServedModel, records: Sequence[Record]) -> None:
        joinable = [one for one in records if _is_joinable(one)]
        groups = [joinable] if joinable else []
        groups += [[one] for one in records if not _is_joinable(one)]
        for group in groups:
            for sink in self._sinks:
                self._guard(
                    sink, partial(_hand, sink, model, group), sum(_count(one.answer) for one in group)
                )


def _hand(sink: Sink, model: ServedModel, records: Sequence[Record]) -> None:
    """Give records of one model to a sink, without the rows that could not be predicted."""
    if records[0].answer.errors:
        records = [records[0].without_errors()]
        if not _count(records[0].answer):
            return
    is_joined = isinstance(records[0].content, list)
    rows = model.form.joined([one.content for one in records]) if is_joined else records[0].content
    sink.take(model, rows, records)


def _is_joinable(record: Record) -> bool:
    return isinstance(record.content, list) and not record.answer.errors


def _count(answer: Answer) -> int:
    return len(next(iter(answer.columns.values()), []))


def joined_answers(records: Sequence[Record]) -> dict[str, list[Any]]:
    """Return the columns of the predictions of some records."""
    return {
        name: [cell for one in records for cell in one.answer.columns[name]]
        for name in records[0].answer.columns
    }


class RequestLog:
    """A log of rows and predictions as Parquet files, which `data.type: requests` reads.

    Beside the columns of the rows there are `_time` (UTC), `_request_id`, `_seconds` (of the request), `_row`
    (from 1), `_run`, and those of the predictions, `_prediction` and so on.

    Args:
        folder: Where they are written.
        sample: The share of the requests that are logged; chosen by the names of the requests.
        without: Columns that are left out.
        metrics: Gets the number of rows that could not be written.
    """

    noun = "the log of requests"

    def __init__(self, folder: Path, sample: float, without: Sequence[str], metrics: Metrics) -> None:
        self._folder = folder
        self._metrics = metrics
        # Not the number of the process, which is the same in every container.
        self._own = uuid.uuid4().hex[:8]
        self._sample = sample
        self._without = {*without}
        self._parts: dict[Any, list[Any]] = {}  # tables, by schema: requests may differ in it
        self._rows = 0
        self._since = time.monotonic()
        self._number = 0
        folder.mkdir(parents=True, exist_ok=True)

    def take(self, model: ServedModel, rows: Any, records: Sequence[Record]) -> None:
        """Take records; they are written together with others."""
        import pyarrow as pa

        counts = [_count(one.answer) for one in records]
        is_logged = np.repeat([self._is_chosen(one.identifier) for one in records], counts)
        if not is_logged.any():
            return
        columns = {name: cells for name, cells in _columns(rows).items() if name not in self._without}
        columns["_time"] = np.repeat([np.datetime64(int(one.at * 1e6), "us") for one in records], counts)
        columns["_request_id"] = np.repeat(np.array([one.identifier for one in records], object), counts)
        columns["_seconds"] = np.repeat(np.array([one.seconds for one in records], np.float32), counts)
        columns["_row"] = np.concatenate([np.arange(1, count + 1) for count in counts])
        columns["_run"] = np.full(sum(counts), model.predictor.run_id, object)
        columns |= {f"_{name}": cells for name, cells in joined_answers(records).items()}
        table = pa.table({name: _arrow(cells) for name, cells in columns.items()})
        self._parts.setdefault(table.schema, []).append(table.filter(pa.array(is_logged)))
        self._rows += int(is_logged.sum())

    def _is_chosen(self, identifier: str) -> bool:
        digest = hashlib.sha256(b"log " + identifier.encode(errors="replace")).digest()
        return int.from_bytes(digest[:8]) < self._sample * 2**64

    def tick(self) -> None:
        """Write what has waited long enough."""
        if self._rows >= _PART_ROWS or time.monotonic() - self._since >= _PART_SECONDS:
            self._write()

    def close(self) -> None:
        """Write what is left."""
        self._write()

    def _write(self) -> None:
        import pyarrow as pa

        self._since = time.monotonic()
        if not self._parts:
            return
        for schema in [*self._parts]:
            self._write_table(pa.concat_tables(self._parts[schema]), schema)

    def _write_table(self, table: Any, schema: Any) -> None:
        from pyarrow import parquet

        moment = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
        self._number += 1
        path = self._folder / f"requests-{moment}-{self._own}-{self._number}.parquet"
        hidden = path.with_name(f".{path.name}.tmp")
        try:
            parquet.write_table(table, hidden)
            hidden.rename(path)
        except OSError:  # such as a full disk: the rows wait for another attempt
            hidden.unlink(missing_ok=True)
            if self._rows <= 2 * _PART_ROWS:
                raise
            self._metrics.unrecorded.inc(len(table))
        del self._parts[schema]
        self._rows -= len(table)


def _columns(rows: Any) -> Mapping[str, Any]:
    """Return the columns of rows; those of images, texts and arrays are not kept."""
    if isinstance(rows, Table):
        return dict(rows.columns)
    if hasattr(rows, "columns"):
        return {str(name): rows[name].to_numpy() for name in rows.columns}
    if isinstance(rows, list) and all(isinstance(one, str) for one in rows):
        return {"text": np.array(rows, object)}
    return {}


def _arrow(cells: Any) -> Any:
    import pyarrow as pa

    return pa.array(cells, from_pandas=True)
