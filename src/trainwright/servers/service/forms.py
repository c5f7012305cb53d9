"""The form of requests: rows of a table, images, texts or arrays, as the model takes them.

A form reads the body of a request, and says what predictors take, for the documentation and for mistakes.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from trainwright.datasets.images.preparation import ImagePreparation
from trainwright.datasets.tables.encoders.base import Encoder
from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.datasets.tables.raw import RawPreparation
from trainwright.datasets.tables.table import Table, nearest
from trainwright.datasets.texts.preparation import TextPreparation
from trainwright.errors import TrainwrightError
from trainwright.inference.predictor import Predictor
from trainwright.servers.service.errors import RequestError, invalid, malformed
from trainwright.types import FEATURES, Array

JSON = "application/json"
CSV = "text/csv"
ARROW = "application/vnd.apache.arrow.stream"
ARROW_FILE = "application/vnd.apache.arrow.file"
PARQUET = "application/vnd.apache.parquet"
Cell = int | float | str | bool | None
_MATRIX = re.compile(rb"\s*\[\s*\[")
_PLACE = re.compile(r"^(.*?) - at `\$(.*)`$", re.DOTALL)
_PATH = re.compile(r"^(?:\.(rows|columns))?(?:\[(\d+)\])?(?:\.(.*?))?(?:\[(\d+)\])?$", re.DOTALL)


class Rows(NamedTuple):
    """The rows of a request.

    Attributes:
        content: What the form made of them: a list, which is joined with those of other requests, or a table.
        number: How many there are.
        by_column: Whether the request gave columns, so that the answer has columns, too.
    """

    content: Any
    number: int
    by_column: bool = False

    @property
    def is_joinable(self) -> bool:
        """True if the rows can be predicted together with those of other requests."""
        return isinstance(self.content, list)


class Form(ABC):
    """The form of requests to one model."""

    noun = "rows"
    content_types: Sequence[str] = (JSON,)

    def read(self, body: bytes, content_type: str, charset: str | None) -> Rows:
        """Return the rows of a body.

        Raises:
            RequestError: It cannot be read, or holds no rows.
        """
        reader = self.readers().get(content_type or JSON)
        if reader is None:
            known = ", ".join(self.readers())
            raise RequestError(
                415,
                "unknown_content_type",
                f"content type {content_type[:80]!r} given; this model takes {known}",
            )
        try:
            rows = reader(body, charset)
        except RequestError:
            raise
        except RecursionError:
            raise malformed("the JSON is nested too deeply") from None
        if rows.number == 0:
            raise invalid(f"the request holds no {self.noun}")
        return rows

    @abstractmethod
    def readers(self) -> Mapping[str, Callable[[bytes, str | None], Rows]]:
        """Return the readers of bodies, by content type."""

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return what the predictor takes, of the contents of some requests."""
        return [one for part in parts for one in part]

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a body, with an example."""


def form_of(predictor: Predictor) -> Form:
    """Return the form of requests to a model."""
    preparation = predictor.preparation
    if isinstance(preparation, ImagePreparation):
        return ImageForm(predictor.info.inputs[FEATURES].shape)
    if isinstance(preparation, TextPreparation):
        return TextForm(of_words=preparation.of_words)
    if isinstance(preparation, TabularPreparation | RawPreparation):
        return TableForm(predictor, preparation)
    return ArrayForm(predictor)


def decoded(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    """Return what a JSON body holds.

    Raises:
        RequestError: It is no JSON, or holds something else; names row and column.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _misplaced(str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise malformed("the body is not UTF-8, as JSON must be") from None
        hint = "; NaN and Infinity are no JSON: write null" if re.search(rb"NaN|Infinity", body) else ""
        raise malformed(f"{_lower(str(error))}{hint}") from None
    except RecursionError:
        raise malformed("the JSON is nested too deeply") from None


def _lower(text: str) -> str:
    return text if text.startswith("JSON") else text[:1].lower() + text[1:]


def _misplaced(message: str) -> RequestError:
    """Return the error of a JSON body with something else in some place."""
    found = _PLACE.match(message)
    what, path = found.groups() if found else (message, "")
    place = _PATH.match(path)
    if place is None:
        return invalid(f"{_lower(what)} at {path[:100]}")
    _, first, column, second = place.groups()
    row = next((int(one) + 1 for one in (first, second) if one is not None), None)
    if lacking := re.match(r"Object missing required field `(.*)`", what, re.DOTALL):
        column, what = lacking[1], "there is no value; write null if it is missing"
    else:
        what = _in_words(what)
    where = ", ".join([*([f"row {row}"] if row else []), *([f"column {column!r}"] if column else [])])
    return invalid(f"{where}: {what}" if where else what, row, column)


def _in_words(what: str) -> str:
    """Return a message of msgspec in the words of JSON."""
    words = {"`bool | int | float | str | null`": "a number, text, a boolean or null"}
    for theirs, ours in words.items():
        what = what.replace(theirs, ours)
    return _lower(what)


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
                "instances": list[row],  # of TensorFlow Serving and Vertex AI
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
        found = decoded(body, self._body_decoder)
        for name in ("rows", "instances", "dataframe_records"):
            if (rows := getattr(found, name)) is not msgspec.UNSET:
                return _of_rows(rows)
        if found.inputs is not msgspec.UNSET:
            return self._of_matrix(found.inputs)
        if found.columns is not msgspec.UNSET:
            return self._of_columns(
                dict(zip(self.names, msgspec.structs.astuple(found.columns), strict=True))
            )
        if found.dataframe_split is not msgspec.UNSET:
            return self._of_split(found.dataframe_split)
        return _of_rows([decoded(body, self._row_decoder)])

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
        return Table({name: column_of(cells) for name, cells in columns.items()}, "the request")

    def _file(self, suffix: str) -> Callable[[bytes, str | None], Rows]:
        """Return the reader of bodies that are files, which are read as the training data were."""

        def read(body: bytes, charset: str | None) -> Rows:
            if charset is not None and charset.lower() not in ("utf-8", "utf8"):
                try:
                    body = body.decode(charset).encode()
                except (UnicodeDecodeError, LookupError):
                    raise malformed(f"the body is not text in {charset[:40]}") from None
            with tempfile.NamedTemporaryFile(suffix=suffix) as file:
                file.write(body)
                file.flush()
                try:
                    frame = self._predictor.files.read(file.name)
                except UnicodeDecodeError:
                    raise malformed("the body is not text in UTF-8: name its encoding as charset") from None
                except TrainwrightError as error:
                    raise malformed(str(error).replace(file.name, "the request")) from None
            return Rows(frame, len(frame), by_column=True)

        return read

    def _arrow(self, body: bytes, _: str | None) -> Rows:
        import pyarrow as pa

        try:
            opened = pa.ipc.open_file if body[:6] == b"ARROW1" else pa.ipc.open_stream
            return self._of_arrow(opened(pa.BufferReader(body)).read_all())
        except (pa.ArrowInvalid, OSError) as error:
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


def _of_rows(rows: Sequence[Any]) -> Rows:
    return Rows([msgspec.structs.astuple(row) for row in rows], len(rows))


def _example(encoder: Encoder | None) -> Any:
    return None if encoder is None else encoder.example


def _cell_schema(encoder: Encoder | None) -> dict[str, Any]:
    """Return the JSON schema of a cell."""
    if encoder is None:
        return {"type": ["number", "string", "boolean", "null"]}
    types = {"number": ["number"], "boolean": ["boolean"], "time": ["string", "number"], "text": ["string"]}
    found: dict[str, Any] = {
        "type": [*types[encoder.reads], *(["null"] if encoder.accepts_missing else [])],
        "description": encoder.content,
        "example": encoder.example,
    }
    return found


def column_of(cells: Sequence[Any]) -> Array:
    """Return the cells of a JSON column as (rows,); those of a mixture as texts, as in a file.

    Raises:
        RequestError: A number is too large.
    """
    kinds = set(map(type, cells))
    if kinds <= _NUMBERS and kinds != {type(None)}:
        try:
            return np.array(cells, np.float64)
        except OverflowError:
            raise invalid("a number is too large for float64") from None
    if kinds == {bool}:
        return np.array(cells, bool)
    array = np.empty(len(cells), dtype=object)
    array[:] = cells if kinds <= _TEXTS else [_text(cell) for cell in cells]
    return array


def _text(cell: Cell) -> str | None:
    return cell if cell is None or isinstance(cell, str) else msgspec.json.encode(cell).decode()


_NUMBERS = {int, float, type(None)}
_TEXTS = {str, type(None)}


class TextForm(Form):
    """Texts, or lists of words.

    Args:
        of_words: Whether a text is a list of words.
    """

    noun = "texts"

    def __init__(self, *, of_words: bool) -> None:
        self._of_words = of_words
        one: Any = list[str] if of_words else str
        body = msgspec.defstruct("Body", [("texts", list[one])])
        self._decoder = msgspec.json.Decoder(list[one] | one | body if not of_words else list[one] | body)

    def readers(self) -> Mapping[str, Callable[[bytes, str | None], Rows]]:
        """Return the readers of bodies, by content type."""
        plain = {} if self._of_words else {"text/plain": self._plain}
        return {JSON: self._json, **plain}

    def _json(self, body: bytes, _: str | None) -> Rows:
        found = decoded(body, self._decoder)
        texts = [found] if isinstance(found, str) else getattr(found, "texts", found)
        return Rows(texts, len(texts))

    def _plain(self, body: bytes, charset: str | None) -> Rows:
        try:
            return Rows([body.decode(charset or "utf-8")], 1)
        except (UnicodeDecodeError, LookupError):
            raise malformed(f"the body is not text in {(charset or 'UTF-8')[:40]}") from None

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a body."""
        one: dict[str, Any] = {"type": "string"}
        if self._of_words:
            one = {"type": "array", "items": one}
        texts = {"type": "array", "items": one, "minItems": 1}
        example = ["The", "first", "text"] if self._of_words else "The first text."
        return {
            "title": "Texts",
            "oneOf": [{"type": "object", "properties": {"texts": texts}, "required": ["texts"]}, texts],
            "example": {"texts": [example]},
        }


class ImageForm(Form):
    """Images: the content of image files.

    Args:
        shape: The shape of an image as the model takes it: (channels, height, width).
    """

    noun = "images"

    def __init__(self, shape: Sequence[int]) -> None:
        self._shape = shape
        body = msgspec.defstruct("Body", [("images", list[str])])
        self._decoder = msgspec.json.Decoder(list[str] | body)

    def readers(self) -> Mapping[str, Callable[[bytes, str | None], Rows]]:
        """Return the readers of bodies, by content type."""
        kinds = ("image/png", "image/jpeg", "image/webp", "image/bmp", "image/gif", "image/tiff")
        return {JSON: self._json, **dict.fromkeys((*kinds, "application/octet-stream"), self._file)}

    def _json(self, body: bytes, _: str | None) -> Rows:
        found = decoded(body, self._decoder)
        images = []
        for i, text in enumerate(getattr(found, "images", found)):
            head, comma, _ = text[:100].partition("base64,")
            try:
                content = text[len(head) + len("base64,") :] if comma else text
                images.append(base64.b64decode(content, validate=True))
            except (binascii.Error, ValueError):
                raise invalid(
                    f"image {i + 1}: this is not base64; send the content of an image file in base64", i + 1
                ) from None
        return Rows(images, len(images))

    def _file(self, body: bytes, _: str | None) -> Rows:
        return Rows([body], 1)

    def _example(self) -> str:
        """Return a gray PNG file of the size that the model takes, in base64."""
        from PIL import Image

        _, height, width = self._shape
        Image.new("L", (width, height), 128).save(sink := io.BytesIO(), "PNG")
        return base64.b64encode(sink.getvalue()).decode()

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a body."""
        images = {
            "type": "array",
            "items": {"type": "string", "format": "byte", "description": "an image file in base64"},
            "minItems": 1,
        }
        return {
            "title": "Images",
            "type": "object",
            "properties": {"images": images},
            "required": ["images"],
            "example": {"images": [self._example()]},
        }


class ArrayForm(Form):
    """Arrays, as the data set of the run provided them.

    Args:
        predictor: The model.
    """

    def __init__(self, predictor: Predictor) -> None:
        names = predictor.model.input_names or list(predictor.info.inputs)
        self.specs = {name: predictor.info.inputs[name] for name in names}

    def readers(self) -> Mapping[str, Callable[[bytes, str | None], Rows]]:
        """Return the readers of bodies, by content type."""
        return {JSON: self._json, "application/x-npy": self._npy, "application/x-npz": self._npz}

    def _json(self, body: bytes, _: str | None) -> Rows:
        found = decoded(body, _ANYTHING)
        if isinstance(found, dict) and len(found) == 1:
            (name,) = found
            is_wrapped = name in ("inputs", "instances", "rows") and name not in self.specs
            found = found[name] if is_wrapped else found

        return self._rows(found if isinstance(found, dict) else {next(iter(self.specs)): found})

    def _npy(self, body: bytes, _: str | None) -> Rows:
        return self._rows({next(iter(self.specs)): _numpy(body)})

    def _npz(self, body: bytes, _: str | None) -> Rows:
        return self._rows(_numpy(body))

    def _rows(self, given: Mapping[str, Any]) -> Rows:
        arrays: dict[str, Array] = {}
        for name, spec in self.specs.items():
            if name not in given:
                raise invalid(f"there is no {name!r}; {nearest(name, given)}", None, name)
            try:
                array = np.asarray(given[name])
                array = array if array.dtype.kind == np.dtype(spec.dtype).kind else array.astype(spec.dtype)
            except (ValueError, TypeError, OverflowError):
                raise invalid(f"{name}: expected numbers, in lists of equal lengths", None, name) from None
            if array.shape == tuple(spec.shape):
                array = array[None]
            if array.shape[1:] != tuple(spec.shape):
                raise invalid(
                    f"{name}: an array of shape {list(array.shape)} given; the model takes rows of shape "
                    f"{list(spec.shape)}",
                    None,
                    name,
                )
            arrays[name] = array
        counts = {name: len(array) for name, array in arrays.items()}
        if len(set(counts.values())) > 1:
            raise invalid(f"arrays of different numbers of rows given: {counts}")
        return Rows([arrays], next(iter(counts.values())))

    def joined(self, parts: Sequence[Any]) -> Any:
        """Return the arrays of some requests as one."""
        given = [arrays for part in parts for arrays in part]
        arrays = {name: np.concatenate([one[name] for one in given]) for name in self.specs}
        return arrays if len(arrays) > 1 else next(iter(arrays.values()))

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of a body."""
        arrays = {
            name: {"type": "array", "items": {}, "description": f"rows of {list(spec.shape)}, {spec.dtype}"}
            for name, spec in self.specs.items()
        }
        example = {name: np.zeros((1, *spec.shape)).tolist() for name, spec in self.specs.items()}
        if len(arrays) > 1:
            return {"type": "object", "properties": arrays, "required": [*arrays], "example": example}
        (one,), (value,) = arrays.values(), example.values()
        return {
            "type": "object",
            "properties": {"inputs": one},
            "required": ["inputs"],
            "example": {"inputs": value},
        }


def _numpy(body: bytes) -> Any:
    """Return the array, or the arrays by name, of a file of NumPy; never pickles."""
    try:
        found = np.load(io.BytesIO(body), allow_pickle=False)
        return dict(found) if hasattr(found, "files") else found
    except (ValueError, OSError, EOFError, KeyError) as error:
        raise malformed(f"the array cannot be read: {str(error)[:200]}") from None


_ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
