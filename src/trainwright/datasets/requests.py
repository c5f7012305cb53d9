"""The log of a service: rows that it predicted, with the labels that came later."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from pydantic import BaseModel, Field, field_validator

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.files import existing_file, files_below, paths_by_split
from trainwright.datasets.tables.arrow import cells_of
from trainwright.datasets.tables.cell_columns import column_of_cells
from trainwright.datasets.tables.chunks import TableChunks
from trainwright.datasets.tables.table import Table, as_texts, kind_of
from trainwright.errors import DataError
from trainwright.require import require
from trainwright.types import Array, Ids

if TYPE_CHECKING:
    from trainwright.datasets.base import DataBundle, LoadRequest

_TIME, _ID, _ROW = "_time", "_request_id", "_row"
Labels = Mapping[str, Sequence[Any]]  # by the name of the column


class RequestsParams(Section):
    """The part of the log that is read, which stays as it is while the service goes on writing."""

    since: str | None = Field(
        None, description="requests from this time on: 2026-11-01 or 2026-11-01T12:00, in UTC"
    )
    until: str | None = Field(
        None, description="requests before this time, with the labels that came before it"
    )

    @field_validator("since", "until")
    @classmethod
    def _is_time(cls, value: str | None) -> str | None:
        try:
            _moment(value)
        except ValueError:
            raise ValueError(f"{value!r} is no time; write 2026-11-01 or 2026-11-01T12:00") from None
        return value


class _Files(NamedTuple):
    rows: list[str]
    labels: list[str]


class RequestsDataset:
    """The folder that `serve --log` has written: one to split, or one per split.

    Its rows are those of requests whose labels have come (`POST /feedback`), in the order of time, request
    and row. Columns are those of the rows, and the labels.
    """

    names: ClassVar[Sequence[str]] = ("requests",)
    Params: ClassVar[type[BaseModel]] = RequestsParams
    has_tokens: ClassVar[bool] = False

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, RequestsParams)
        self._config = config
        self._params = params
        self._arrow: Any = require("pyarrow", "tabular")
        self._parquet: Any = require("pyarrow.parquet", "tabular")

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        from trainwright.datasets.tables.tabular import load_files  # late: a config is checked without it

        # A log has no columns that its model did not take, so that they need not be left out.
        names = {name for path in paths_by_split(self._config).values() for name in self._names(path)}
        exclude = [name for name in self._config.exclude if name in names]
        return load_files(self._config.model_copy(update={"exclude": exclude}), self.read, request)

    def sources(self) -> list[str]:
        """Return the files that are read; see `KnownSources`."""
        files = [_files(path) for path in paths_by_split(self._config).values()]
        return [name for one in files for name in (*one.rows, *one.labels)]

    def read(self, path: str, text: Collection[str] = ()) -> Table:
        """Return the rows whose labels have come.

        Raises:
            DataError: There are none, or a file cannot be read.
        """
        files = _files(path)
        columns = self._columns(path, files.rows)
        times = columns.pop(_TIME).astype("datetime64[us]")
        ids, rows = columns.pop(_ID), columns.pop(_ROW).astype(np.int64)
        labels, remarks = self._labels(path, files.labels)
        order = np.lexsort((rows, ids.astype(str), times))
        order = order[self._is_wanted(times[order])]
        order, repeated = _last_of_each(ids[order], times[order], rows[order], order)
        at, cells, wrong = _with_labels(ids[order], rows[order], labels)
        if not len(at):
            raise DataError(
                f"{path}: no request has its labels; a service takes them at POST /feedback, by request id"
            )
        known = {*ids}
        lost = sum(one not in known for one in labels)
        for count, what in (
            (repeated, "requests have the id of a later one, and are left out"),
            (wrong, "requests have another number of labels than rows, and are left out"),
            (lost, "labels are of requests that are not in this log"),
        ):
            remarks += [f"{path}: {count:,} {what}"] if count else []
        found = {
            name: values[order[at]]
            for name, values in columns.items()
            if not name.startswith("_") and name not in cells
        }
        found |= {name: _column(one, name, path) for name, one in cells.items()}
        self._check_named(found, path)
        declared = {
            name for name, column in self._config.columns.items() if column.type in ("category", "text")
        }
        found = {name: as_texts(one) if name in {*text, *declared} else one for name, one in found.items()}
        guessed = {name for name, one in found.items() if kind_of(one) == "text"} - {*text, *declared}
        return Table(found, path, guessed=frozenset(guessed), remarks=remarks)

    def _check_named(self, columns: Collection[str], path: str) -> None:
        """Check that the columns are there that the config names for other ends than features.

        Raises:
            DataError: One is not; says what to do.
        """
        config, split = self._config, self._config.split
        named = {"data.split.group": split.group, "data.split.time": split.time, "data.weight": config.weight}
        lacking = [(name, key) for key, name in named.items() if name is not None]
        for name, key in [*lacking, *((one, "data.split.key") for one in split.keys)]:
            if name not in columns:
                raise DataError(
                    f"{path} has no column {name!r} ({key}): a service logs the columns that its model "
                    f"takes, and no others\nAdd {key}=null to the command to train without it, or join "
                    f"{name!r} to the log by _request_id and _row, and train on that table"
                )

    def chunks(self, path: str, text: Collection[str] = ()) -> TableChunks:
        """Return the same rows, to be taken chunk by chunk."""
        return TableChunks(self.read(path, text))

    def sample(self) -> Table:
        """Return the training rows."""
        return self.read(paths_by_split(self._config)["train"])

    def _names(self, path: str) -> set[str]:
        """Return the names of the columns of a log."""
        return {
            name for file in _files(path).rows for name in self._arrow_table(file, empty=True).column_names
        }

    def _arrow_table(self, name: str, *, empty: bool = False) -> Any:
        """Return a file of the log, or its columns alone."""
        try:
            with existing_file(name).open("rb") as stream:
                file = self._parquet.ParquetFile(stream)
                table = file.schema_arrow.empty_table() if empty else file.read()
        except (self._arrow.ArrowException, OSError) as error:
            first = str(error).splitlines()[0]
            raise DataError(f"{name} cannot be read as Parquet (is it complete?): {first}") from error
        if missing := {_TIME, _ID, _ROW} - {*table.column_names}:
            raise DataError(f"{name} has no column {min(missing)!r}: it is no log of requests")
        return table

    def _is_wanted(self, times: Array) -> Array:
        since, until = (_moment(one) for one in (self._params.since, self._params.until))
        wanted = np.ones(len(times), bool)
        if since is not None:
            wanted &= times >= np.datetime64(since.replace(tzinfo=None), "us")
        if until is not None:
            wanted &= times < np.datetime64(until.replace(tzinfo=None), "us")
        return wanted

    def _columns(self, path: str, files: Sequence[str]) -> dict[str, Array]:
        """Return all columns of the log; a row of a file without a column has no value there."""
        tables = [self._arrow_table(name) for name in files]
        names = dict.fromkeys(name for table in tables for name in table.column_names)
        return {name: self._column(tables, name, path) for name in names}

    def _column(self, tables: Sequence[Any], name: str, path: str) -> Array:
        arrow = self._arrow
        parts = [one.column(name) if name in one.column_names else arrow.nulls(len(one)) for one in tables]
        kinds = {part.type for part in parts} - {arrow.null()}
        if len(kinds) > 1:  # such as numbers, and the texts of another client
            return column_of_cells([cell for part in parts for cell in part.to_pylist()], name, path)
        kind = kinds.pop() if kinds else arrow.float64()
        pieces = [chunk for part in parts for chunk in getattr(part.cast(kind), "chunks", [part.cast(kind)])]
        return cells_of(arrow.chunked_array(pieces, kind), name, path)

    def _labels(self, path: str, files: Sequence[str]) -> tuple[dict[str, Labels], list[str]]:
        """Return the labels by request: of several, those that came last."""
        until = _moment(self._params.until)
        latest: dict[str, tuple[float, Labels]] = {}
        differing: set[str] = set()
        for name in files:
            for at, one, labels in _lines(name):
                if until is not None and at >= until.timestamp():
                    continue
                known = latest.get(one)
                if known is not None and known[1] != labels:
                    differing.add(one)
                if known is None or at >= known[0]:
                    latest[one] = at, labels
        remarks = []
        if differing:
            remarks.append(f"{path}: {len(differing):,} requests got other labels later, which count")
        return {one: labels for one, (_, labels) in latest.items()}, remarks


def _files(path: str) -> _Files:
    """Return the files of a log.

    Raises:
        DataError: The path is no folder, or holds no log.
    """
    below = files_below(path, "*")
    if below is None:
        raise DataError(f"{path} is no folder; data.type: requests reads the folder of serve --log")
    shown = [name for name in below if not PurePath(name).name.startswith((".", "_"))]
    rows = [name for name in shown if name.endswith(".parquet")]
    if not rows:
        raise DataError(f"{path} holds no log of requests: no file in it ends in .parquet")
    return _Files(rows, [name for name in shown if name.endswith(".jsonl")])


def _lines(name: str) -> Iterator[tuple[float, str, Labels]]:
    """Yield the time, the request and the labels of each line of a file.

    Raises:
        DataError: A line holds something else. A last line that is being written is left out.
    """
    with existing_file(name).open("rb") as stream:
        for number, line in enumerate(stream, 1):
            if not line.endswith(b"\n"):
                return
            try:
                one = json.loads(line)
                at, request, labels = float(one["at"]), str(one["id"]), one["labels"]
                counts = {len(cells) for cells in labels.values() if isinstance(cells, list)}
                if len(counts) != 1:
                    raise ValueError("no list of labels, or lists of different lengths")
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                raise DataError(f"{name}: line {number} holds no labels of a request: {error}") from None
            yield at, request, labels


def _last_of_each(ids: Array, times: Array, rows: Array, order: Ids) -> tuple[Ids, int]:
    """Return the rows of the last request of each id, and the number of others; rows are in order of time."""
    last = dict(zip(ids.tolist(), times.tolist(), strict=True))
    seen: set[tuple[str, int]] = set()
    kept, others = [], set()
    for i, (one, time, row) in enumerate(zip(ids.tolist(), times.tolist(), rows.tolist(), strict=True)):
        if time != last[one] or (one, row) in seen:
            others.add((one, time, (one, row) in seen))
            continue
        seen.add((one, row))
        kept.append(i)
    return order[np.array(kept, np.int64)], len(others)


def _with_labels(
    ids: Array, rows: Array, labels: Mapping[str, Labels]
) -> tuple[Ids, dict[str, list[Any]], int]:
    """Return the positions of rows with labels, these by column, and how many requests' do not fit."""
    counts, wrong = Counter(ids.tolist()), set()
    names = dict.fromkeys(name for one in labels.values() for name in one)
    cells: dict[str, list[Any]] = {name: [] for name in names}
    kept = []
    for i, (one, row) in enumerate(zip(ids.tolist(), rows.tolist(), strict=True)):
        if (given := labels.get(one)) is None:
            continue
        if any(len(values) != counts[one] for values in given.values()):
            wrong.add(one)
            continue
        kept.append(i)
        for name in names:
            cells[name].append(given[name][row - 1] if name in given else None)
    return np.array(kept, np.int64), cells, len(wrong)


def _column(cells: Sequence[Any], name: str, path: str) -> Array:
    """Return labels as a column; those that are lists of labels stay so."""
    if not any(isinstance(cell, list) for cell in cells):
        return column_of_cells(cells, name, path)
    values = np.empty(len(cells), object)
    values[:] = cells
    return values


def _moment(given: str | None) -> datetime | None:
    if given is None:
        return None
    moment = datetime.fromisoformat(given)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
