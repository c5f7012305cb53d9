"""Rows of a table: JSON, CSV, Arrow, Parquet."""

from __future__ import annotations

import codecs
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from trainwright.datasets.tables.encoders.base import Encoder
from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.datasets.tables.raw import RawPreparation
from trainwright.datasets.tables.table import Table, nearest
from trainwright.errors import DataError, TrainwrightError
from trainwright.inference.predictor import Predictor
from trainwright.servers.service.errors import RequestError, invalid, malformed
from trainwright.servers.service.forms.base import JSON, Form, Rows, decoded
from trainwright.types import Array

CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
ARROW_FILE = "application/vnd.apache.arrow.file"
PARQUET = "application/vnd.apache.parquet"
Cell = int | float | str | bool | None
_FEW = 256  # rows
_MOST_CELLS = 1 << 24  # of Arrow and Parquet, which can say in few bytes that there are many
_MOST_BYTES = 1 << 29  # of the same, unpacked
# How the names of encodings begin; those of Python that are no text, or slow, are not among them.
_CHARSETS = ("utf", "iso", "cp", "ascii", "koi8", "gb", "big5", "euc", "shift", "mac", "johab", "hp-roman")
_MATRIX = re.compile(rb"\s*\[\s*\[")


class TableForm(Form):
    """Rows of a table, as JSON, CSV, Arrow or Parquet.

    Args:
        predictor: The model.
        preparation: What it does with them.
    """

    def __init__(self, predictor: Predictor, preparation: TabularPreparation | RawPreparation) -> None:
        self._predictor = predictor
        self._preparation = preparation
        steps = preparation.steps
        self.names: list[str] = list(preparation.column_names if steps is None else steps.names)
        fields = [f"c{i}" for i in range(len(self.names))]
        rename = dict(zip(fields, self.names, strict=True))
        row: Any = msgspec.defstruct("Row", [(one, Cell) for one in fields], rename=rename, gc=False)
        columns = msgspec.defstruct("Columns", [(one, list[Cell]) for one in fields], rename=rename)
        split = msgspec.defstruct("Split", [("columns", list[str]), ("data", list[list[Cell]])])
        optional = [
            (name, form | msgspec.UnsetType, msgspec.UNSET)
            for name, form in {
                "rows": list[row],
                "inputs": list[list[Cell]],
                "columns": columns,
                "instances": list[row | list[Cell]],  # of TensorFlow Serving and Vertex AI
                "dataframe_records": list[row],  # of MLflow
                "dataframe_split": split,
            }.items()
        ]
        self._row = row
        self._rows_decoder = msgspec.json.Decoder(list[row])
        self._matrix_decoder = msgspec.json.Decoder(list[list[Cell]])
        self._row_decoder = msgspec.json.Decoder(row)
        self._body_decoder = msgspec.json.Decoder(msgspec.defstruct("Body", optional))

    def readers(self) -> Mapping[str, Callable[[bytes, str | None], Rows]]:
        """Return the readers of bodies, by content type."""
        return {
            JSON: self._json,
            CSV: self._file(".csv"),
            "application/x-ndjson": self._file(".jsonl"),
            PARQUET: self._file(".parquet"),
            ARROW: self._arrow,
            ARROW_FILE: self._arrow,
        }

    def _json(self, body: bytes, _: str | None) -> Rows:
        body = body.removeprefix(b"\xef\xbb\xbf")
        if _MATRIX.match(body):
            return self._of_matrix(decoded(body, self._matrix_decoder))
        if body.lstrip()[:1] != b"{":
            return _of_rows(decoded(body, self._rows_decoder))
        return self._of_body(body)

    def _of_body(self, body: bytes) -> Rows:
        """Return the rows of an object: under one of the names that are known, or a row itself."""
        found = decoded(body, self._body_decoder)
        for name in ("rows", "instances", "dataframe_records"):
            if (rows := getattr(found, name)) is not msgspec.UNSET:
                if rows and all(isinstance(one, list) for one in rows):
                    return self._of_matrix(rows)
                if wrong := [i + 1 for i, one in enumerate(rows) if isinstance(one, list)]:
                    raise invalid(f"row {wrong[0]} is a list, and others are objects", wrong[0])
                return _of_rows(rows)
        if found.inputs is not msgspec.UNSET:
            return self._of_matrix(found.inputs)
        if found.columns is not msgspec.UNSET:
            return self._of_columns(
                dict(zip(self.names, msgspec.structs.astuple(found.columns), strict=True))
            )
        if found.dataframe_split is not msgspec.UNSET:
            return self._of_split(found.dataframe_split)
        try:
            return _of_rows([decoded(body, self._row_decoder)])
        except RequestError:
            given = decoded(body, _OBJECT)
            if given and not given.keys() & {*self.names}:
                shown = ", ".join([*map(repr, self.names[:8]), *(["..."] if len(self.names) > 8 else [])])
                raise invalid(
                    f"the object has {min(given)[:40]!r}: give `rows`, `columns` or `inputs`, or one row "
                    f"with the columns {shown}"
                ) from None
            raise

    def _of_matrix(self, rows: Sequence[Sequence[Any]]) -> Rows:
        """Return rows whose cells are in the order of the columns."""
        for i, cells in enumerate(rows):
            if len(cells) != len(self.names):
                raise invalid(
                    f"row {i + 1}: {len(cells)} cells given; there are {len(self.names)} columns", i + 1
                )
        return Rows([tuple(cells) for cells in rows], len(rows))

    def _of_split(self, split: Any) -> Rows:
        names = split.columns
        if len(set(names)) < len(names):
            raise invalid("dataframe_split.columns names a column twice")
        if wrong := [i + 1 for i, cells in enumerate(split.data) if len(cells) != len(names)]:
            raise invalid(f"row {wrong[0]} has not as many cells as there are columns", wrong[0])
        cells = zip(*split.data, strict=True) if split.data else [[] for _ in names]
        return self._of_columns(dict(zip(names, cells, strict=True)))

    def _of_columns(self, columns: Mapping[str, Sequence[Any]]) -> Rows:
        counts = {name: len(cells) for name, cells in columns.items()}
        if len(set(counts.values())) > 1:
            shown = ", ".join(f"{name!r} has {count}" for name, count in [*counts.items()][:3])
            raise invalid(f"the columns have different numbers of rows: {shown}")
        for name in self.names:
            if name not in counts:
                raise invalid(f"there is no column {name!r}; {nearest(name, counts)}", None, name)
        count = counts[self.names[0]] if self.names else 0
        return Rows(self._table({name: columns[name] for name in self.names}), count, by_column=True)

    @staticmethod
    def _table(columns: Mapping[str, Sequence[Any]]) -> Table:
        return Table({name: column_of(cells, name) for name, cells in columns.items()}, "the request")

    def _file(self, suffix: str) -> Callable[[bytes, str | None], Rows]:
        """Return the reader of bodies that are files, which are read as the training data were."""

        def read(body: bytes, charset: str | None) -> Rows:
            if charset is not None and charset.lower() not in ("utf-8", "utf8"):
                body = _in_utf8(body, charset)
            with tempfile.NamedTemporaryFile(suffix=suffix) as file:
                file.write(body)
                file.flush()
                if suffix == ".parquet":
                    _check_parquet(file.name)
                try:
                    frame = self._predictor.files.read(file.name)
                except UnicodeDecodeError:
                    raise malformed("the body is not text in UTF-8: name its encoding as charset") from None
                except TrainwrightError as error:
                    raise malformed(str(error).replace(file.name, "the request")) from None
            return Rows(frame[[name for name in self.names if name in frame]], len(frame), by_column=True)

        return read

    def _arrow(self, body: bytes, _: str | None) -> Rows:
        import pyarrow as pa

        try:
            opened = pa.ipc.open_file if body[:6] == b"ARROW1" else pa.ipc.open_stream
            table = opened(pa.BufferReader(body)).read_all()
            _check_cells(table.num_rows, table.num_columns)
            table.validate(full=True)  # offsets and indices may lead out of the body
            return self._of_arrow(table)
        except (pa.ArrowException, OSError, UnicodeError) as error:
            raise malformed(f"the Arrow data cannot be read: {str(error)[:200]}") from None

    def _of_arrow(self, table: Any) -> Rows:
        """Return the rows of an Arrow table; columns that the model does not take are left out."""
        given = table.column_names
        if len(set(given)) < len(given):
            raise invalid("two columns have the same name")
        for name in self.names:
            if name not in given:
                raise invalid(f"there is no column {name!r}; {nearest(name, given)}", None, name)
        from trainwright.datasets.tables.arrow import as_pandas

        frame = as_pandas(table.select(self.names))
        return Rows(frame, len(frame), by_column=True)

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return the rows of some requests as one table."""
        rows = [row for part in parts for row in part]
        return self._table(dict(zip(self.names, zip(*rows, strict=True), strict=True)))

    def quick(self, parts: Sequence[Any]) -> Any:
        """Return the rows of some requests as mappings; of many rows a table is faster.

        Raises:
            DataError: A column has cells of other kinds in one request than in another, which are not read
                as they would be alone.
        """
        rows = [row for part in parts for row in part]
        if len(parts) > 1 and any(map(_is_mixed, zip(*rows, strict=True))):
            raise DataError("numbers in a column of one request, and texts in that of another")
        if len(rows) > _FEW:
            return self.joined(parts)
        return [dict(zip(self.names, row, strict=True)) for row in rows]

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a body: rows, or columns."""
        encoders: Mapping[str, Encoder] = {}
        if isinstance(self._preparation, TabularPreparation) and self._preparation.steps is None:
            encoders = {column.name: column for column in self._preparation.columns}
        cells = {name: _cell_schema(encoders.get(name)) for name in self.names}
        row = {
            "type": "object",
            "title": "Row",
            "properties": cells,
            "required": self.names,
            "example": {name: _example(encoders.get(name)) for name in self.names},
        }
        rows = {"type": "array", "items": row, "minItems": 1}
        columns = {
            "type": "object",
            "title": "Columns",
            "properties": {name: {"type": "array", "items": cell} for name, cell in cells.items()},
            "required": self.names,
        }
        example = {"rows": [row["example"]]}
        return {
            "title": "Rows",
            "oneOf": [
                {"type": "object", "properties": {"rows": rows}, "required": ["rows"]},
                {"type": "object", "properties": {"columns": columns}, "required": ["columns"]},
                rows,
                row,
            ],
            "example": example,
        }


def _in_utf8(body: bytes, charset: str) -> bytes:
    """Return a text in UTF-8.

    Raises:
        RequestError: There is no such encoding, or the body is not in it.
    """
    try:
        if not codecs.lookup(charset).name.startswith(_CHARSETS):
            raise LookupError
        return body.decode(charset).encode()
    except (UnicodeError, LookupError, ValueError):
        raise malformed(f"the body is not text in {charset[:40]!r}") from None


def _check_cells(rows: int, columns: int) -> None:
    """Raise a RequestError if there are more cells than a request may have."""
    if rows * max(1, columns) > _MOST_CELLS:
        raise RequestError(
            413,
            "too_many_rows",
            f"{rows:,} rows of {columns} columns given; a request has at most {_MOST_CELLS:,} cells",
        )


def _check_parquet(path: str) -> None:
    """Refuse a Parquet file that unpacks to more than a request may hold.

    Raises:
        RequestError: It does, or cannot be read.
    """
    import pyarrow as pa
    from pyarrow import compute, parquet

    try:
        described = parquet.read_metadata(path)
        _check_cells(described.num_rows, described.num_columns)
        groups = [described.row_group(i) for i in range(described.num_row_groups)]
        size = sum(group.total_byte_size for group in groups)
        if size <= _MOST_BYTES:  # a text that is kept once may stand in each row
            for column in parquet.read_table(path, read_dictionary=described.schema.names).columns:
                if pa.types.is_dictionary(column.type):
                    size += sum(
                        compute.sum(compute.binary_length(part.dictionary).take(part.indices)).as_py() or 0
                        for part in column.chunks
                    )
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise malformed(f"the Parquet file cannot be read: {str(error)[:200]}") from None
    if size > _MOST_BYTES:
        raise RequestError(
            413, "body_too_large", f"the Parquet file unpacks to {size:,} bytes; {_MOST_BYTES:,} are allowed"
        )


def _of_rows(rows: Sequence[Any]) -> Rows:
    return Rows([msgspec.structs.astuple(row) for row in rows], len(rows))


def _example(encoder: Encoder | None) -> Any:
    return None if encoder is None else encoder.example


def _cell_schema(encoder: Encoder | None) -> dict[str, Any]:
    """Return the JSON schema of a cell."""
    if encoder is None:
        return {"type": ["number", "string", "boolean", "null"]}
    types = {
        "number": ["number", "boolean"],  # those of columns of booleans take numbers, too
        "boolean": ["boolean"],
        "time": ["string"],
        "text": ["string"],
    }
    found: dict[str, Any] = {
        "type": [*types[encoder.reads], *(["null"] if encoder.accepts_missing else [])],
        "description": encoder.content,
        "example": encoder.example,
    }
    return found


def _is_mixed(cells: Sequence[Any]) -> bool:
    """Return whether cells are of several kinds, and so read otherwise than those of a part."""
    kinds = set(map(type, cells))
    return not (kinds <= _NUMBERS or kinds <= _TEXTS or kinds <= _BOOLEANS)


def column_of(cells: Sequence[Any], name: str | None = None) -> Array:
    """Return the cells of a JSON column as (rows,); those of a mixture as texts, as in a file.

    Raises:
        RequestError: A number is too large.
    """
    kinds = set(map(type, cells))
    if kinds <= _NUMBERS and kinds != {type(None)}:
        try:
            return np.array(cells, np.float64)
        except OverflowError:
            row = next(
                i + 1 for i, cell in enumerate(cells) if isinstance(cell, int) and abs(cell) > _LARGEST
            )
            where = f"row {row}, column {name!r}: " if name is not None else ""
            raise invalid(f"{where}a number is too large for float64", row, name) from None
    if kinds == {bool}:
        return np.array(cells, bool)
    array = np.empty(len(cells), dtype=object)
    array[:] = cells if kinds <= _TEXTS else [_text(cell) for cell in cells]
    return array


def _text(cell: Cell) -> str | None:
    return cell if cell is None or isinstance(cell, str) else msgspec.json.encode(cell).decode()


_OBJECT = msgspec.json.Decoder(dict[str, Any])
_LARGEST = int(np.finfo(np.float64).max)
_NUMBERS = {int, float, type(None)}
_TEXTS = {str, type(None)}
_BOOLEANS = {bool, type(None)}
