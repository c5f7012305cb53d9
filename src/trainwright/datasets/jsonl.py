"""JSON Lines: a JSON object on each line, whose keys are the columns."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel

from trainwright.config.fields import Section
from trainwright.config.schema import DataConfig
from trainwright.datasets.samples.compression import unpacked
from trainwright.datasets.samples.files import paths_by_split
from trainwright.datasets.tables.cell_columns import column_of_cells, table_of_cells
from trainwright.datasets.tables.chunks import ROW_ERROR
from trainwright.datasets.tables.sources import TableFile, table_files
from trainwright.datasets.tables.table import Table, as_texts, kind_of, missing
from trainwright.errors import DataError
from trainwright.types import Array

if TYPE_CHECKING:
    from trainwright.datasets.base import DataBundle, LoadRequest

Row = Mapping[str, Any]
_CHUNK = 1 << 16  # rows that are looked at together


class JsonlParams(Section):
    """This format has no options."""


class JsonlDataset:
    """JSON Lines: one file (or folder, or pattern) to split, or one per split. Files may be compressed."""

    names: ClassVar[Sequence[str]] = ("jsonl",)
    Params: ClassVar[type[BaseModel]] = JsonlParams
    has_tokens: ClassVar[bool] = False

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, JsonlParams)
        self._config = config

    def load(self, request: LoadRequest) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        from trainwright.datasets.tables.tabular import load_files  # late: a config is checked without it

        return load_files(self._config, self.read, request)

    def sources(self) -> list[str]:
        """Return the files that are read; see `KnownSources`."""
        paths = paths_by_split(self._config).values()
        return [one.name for path in paths for one in table_files(path, "jsonl")]

    def read(self, path: str, text: Collection[str] = ()) -> Table:
        """Return all rows.

        Raises:
            DataError: A line is no JSON object; names it.
        """
        files = table_files(path, "jsonl")
        rows = list(_rows(files))
        names = list(dict.fromkeys(name for row in rows for name in row))
        if not names:
            raise DataError(f'{path} is empty; each line must be a JSON object, such as {{"a": 1}}')
        declared = {
            name for name, column in self._config.columns.items() if column.type in ("category", "text")
        }
        cells = [[row.get(name) for row in rows] for name in names]
        return table_of_cells(names, cells, path, {*text, *declared}, 1 if len(files) == 1 else None)

    def sample(self) -> Table:
        """Return the training rows."""
        return self.read(paths_by_split(self._config)["train"])

    def chunks(self, path: str, text: Collection[str] = ()) -> JsonlChunks:
        """Return the same rows, to be read chunk by chunk.

        Raises:
            DataError: As in `read`.
        """
        return JsonlChunks(path, table_files(path, "jsonl", mapped=True), text)


class JsonlChunks:
    """The rows of JSON Lines; see `RowChunks`. They are read twice: first to find what each column holds."""

    def __init__(self, path: str, files: Sequence[TableFile], text: Collection[str]) -> None:
        self._path = path
        self._files = files
        self._text = text
        self._mends = False  # keeps lines that cannot be read
        self._nested = False  # keeps lists and mappings

    def mend(self) -> None:
        """Keep lines that are no JSON object, and cells that are nested, and say so in a column `ROW_ERROR`.

        Without that they are an error.
        """
        self._mends = True

    def keep_nested(self) -> None:
        """Give lists and mappings as texts; without that, they are an error."""
        self._nested = True

    @cached_property
    def _kinds(self) -> dict[str, set[str]]:
        """The kinds of the cells of each column."""
        found: dict[str, set[str]] = {}
        for rows in _grouped(_rows(self._files, mends=self._mends), _CHUNK):
            names = dict.fromkeys(name for row in rows for name in row if name != ROW_ERROR)
            for name in names:
                values = column_of_cells(self._cells(rows, name, {}), name, self._path)
                found.setdefault(name, set()).update(_kinds(values))
            for name in found.keys() - names.keys():
                found[name].add("missing")
        if not found:
            raise DataError(f'{self._path} is empty; each line must be a JSON object, such as {{"a": 1}}')
        return found

    @property
    def names(self) -> Sequence[str]:
        """The names of the columns."""
        return list(self._kinds)

    def tables(self, columns: Collection[str], rows: int) -> Iterator[Table]:
        """Yield the rows in chunks; see `RowChunks.tables`."""
        wanted = [name for name in self.names if name in columns]
        unread = [name for name in self.names if name not in columns]
        start = 0
        for some in _grouped(_rows(self._files, mends=self._mends), rows):
            errors = {i: row[ROW_ERROR] for i, row in enumerate(some) if ROW_ERROR in row}
            values = {name: self._column(self._cells(some, name, errors), name) for name in wanted}
            if errors:
                values[ROW_ERROR] = np.array([errors.get(i) for i in range(len(some))], dtype=object)
            yield Table(values, self._path, np.arange(start, start + len(some)), unread=unread)
            start += len(some)

    def _cells(self, rows: Sequence[Row], name: str, errors: dict[int, str]) -> list[Any]:
        """Return the cells of a column; nested ones empty, and named in `errors`, where lines are kept."""
        cells = [row.get(name) for row in rows]
        if self._nested:
            return [json.dumps(cell) if isinstance(cell, list | dict) else cell for cell in cells]
        for i, cell in enumerate(cells) if self._mends else ():
            if isinstance(cell, list | dict):
                cells[i] = None
                kind = "list" if isinstance(cell, list) else "mapping"
                errors.setdefault(i, f"column {name!r} holds a {kind}")
        return cells

    def cells(self, columns: Sequence[str], rows: int) -> None:
        """Return nothing: the cells have types."""

    def _column(self, cells: Sequence[Any], name: str) -> Array:
        values = column_of_cells(cells, name, self._path)
        kinds = self._kinds[name]
        if kinds <= {"number", "boolean", "missing"} and kind_of(values) == "text":
            return np.full(len(values), np.nan)  # no cell of this chunk has a value
        if kind_of(values) in ("number", "boolean") and "missing" in kinds:
            values = values.astype(np.float64)
        return as_texts(values) if name in self._text or "text" in kinds else values


def _kinds(values: Array) -> set[str]:
    absent = missing(values)
    return ({"missing"} if absent.any() else set()) | ({kind_of(values)} if not absent.all() else set())


def _grouped(rows: Iterator[Row], count: int) -> Iterator[list[Row]]:
    group: list[Row] = []
    for row in rows:
        group.append(row)
        if len(group) == count:
            yield group
            group = []
    if group:
        yield group


def _rows(files: Sequence[TableFile], *, mends: bool = False) -> Iterator[Row]:
    """Yield the rows of files; a line that is no JSON object as what is wrong with it, if it is to be kept.

    Raises:
        DataError: A line is no JSON object, and not to be kept.
    """
    for one in files:
        with unpacked(one.name, one.file) as stream:
            for number, line in enumerate(stream, 1):
                if not (text := line.removeprefix(b"\xef\xbb\xbf").strip()):
                    continue
                row = _object(text)
                if isinstance(row, dict):
                    yield {**row, **one.partition}
                elif mends:
                    yield {ROW_ERROR: f"line {number} {row}"}
                else:
                    raise DataError(
                        f'{one.name}: line {number} {row}; each line must be one object, such as {{"a": 1}}'
                    )


def _object(text: bytes) -> dict[str, Any] | str:
    """Return the object of a line, or what is wrong with it."""
    try:
        row = json.loads(text)
    except RecursionError:
        return "is not JSON: it is nested too deeply"
    except ValueError as error:
        too_long = "int_max_str_digits" in str(error)
        return f"is not JSON: {'a number has thousands of digits' if too_long else error}"
    return row if isinstance(row, dict) else "is no object"
