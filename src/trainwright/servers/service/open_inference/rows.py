"""Tensors as the rows that a model takes, and predictions as tensors."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.datasets.tables.table import nearest
from trainwright.plugins import task_for
from trainwright.servers.service.errors import RequestError, invalid
from trainwright.servers.service.forms.arrays import ArrayForm
from trainwright.servers.service.forms.base import Rows
from trainwright.servers.service.forms.images import ImageForm
from trainwright.servers.service.forms.tables import Cell, TableForm
from trainwright.servers.service.forms.texts import TextForm
from trainwright.servers.service.open_inference.tensors import BYTES, Tensor, wrong
from trainwright.servers.service.served import ServedModel, plain
from trainwright.types import Array

# Contents of elements, as clients of MLServer name them.
_JSON, _BASE64, _TEXT = "pd_json", "base64", "str"
_SHAPE_OF_MASKS, _TOKENS = (2, 2), 2  # of examples
_JSON_CELL: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Cell)


def rows_of(model: ServedModel, inputs: Sequence[Tensor]) -> Rows:
    """Return the rows that the tensors of a request hold.

    Raises:
        RequestError: They are not what the model takes.
    """
    form = model.form
    if task_for(model.predictor.info).generates_text:
        raise RequestError(400, "writes_texts", "this model writes texts: ask /generate or /v1/completions")
    given = {one.name: one for one in inputs}
    if len(given) < len(inputs):
        raise invalid("two inputs have the same name")
    if not given:
        raise invalid("the request has no inputs")
    if isinstance(form, TableForm):
        rows = _of_table(form.names, given)
    elif isinstance(form, TextForm):
        rows = _of_texts(_only(given), of_words=form.of_words)
    elif isinstance(form, ImageForm):
        rows = _of_images(_only(given))
    else:
        assert isinstance(form, ArrayForm), "there is no other form"
        rows = _of_arrays(form, given)
    if rows.number == 0:
        raise invalid(f"the request holds no {form.noun}")
    return rows


def _only(given: Mapping[str, Tensor]) -> Tensor:
    if len(given) > 1:
        raise invalid(f"{len(given)} inputs given; this model takes one")
    return next(iter(given.values()))


def _of_table(names: Sequence[str], given: Mapping[str, Tensor]) -> Rows:
    """Return the rows of a table, given a tensor for each column, or one of all columns in their order."""
    if len(given) == 1 and (matrix := _only(given)).name not in names:
        if matrix.values.ndim != 2 or matrix.values.shape[1] != len(names):
            shown = ", ".join([*map(repr, names[:3]), *(["..."] if len(names) > 3 else [])])
            raise wrong(
                matrix.name,
                f"shape {[*matrix.values.shape]} given; give an input for each of the {len(names)} columns "
                f"({shown}), or one of shape [rows, {len(names)}] with all of them in their order",
            )
        cells = [_cells(matrix, i) for i in range(len(names))]
    else:
        for name in names:
            if name not in given:
                raise invalid(f"there is no input {name[:100]!r}; {nearest(name, given)}", None, name)
        cells = [_cells(_column(given[name])) for name in names]
    counts = {name: len(column) for name, column in zip(names, cells, strict=True)}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name!r} has {count}" for name, count in [*counts.items()][:3])
        raise invalid(f"the inputs have different numbers of rows: {shown}")
    rows = list(zip(*cells, strict=True))
    return Rows(rows, len(rows))


def _column(tensor: Tensor) -> Tensor:
    """Return a tensor of shape [rows] or [rows, 1] as one of [rows].

    Raises:
        RequestError: It has another shape.
    """
    if tensor.values.ndim > 2 or tensor.values.shape[1:] not in ((), (1,)):
        raise wrong(tensor.name, f"shape {[*tensor.values.shape]} given; give [rows] or [rows, 1]")
    return tensor._replace(values=tensor.values.reshape(-1))


def _cells(tensor: Tensor, column: int | None = None) -> list[Cell]:
    """Return the cells of a column; None where a value is missing.

    Raises:
        RequestError: An element is no text in UTF-8.
    """
    values = tensor.values if column is None else tensor.values[:, column]
    if tensor.datatype == BYTES:
        return [_cell(tensor, row, value) for row, value in enumerate(values)]
    cells: list[Cell] = values.tolist()
    if values.dtype.kind == "f":
        for row in np.flatnonzero(np.isnan(values)):
            cells[row] = None
    return cells


def _cell(tensor: Tensor, row: int, value: str | bytes | None) -> Cell:
    """Return an element of BYTES as a cell: empty texts are missing, as in a file."""
    text = _text(tensor.name, row, value)
    if tensor.content_type != _JSON or not text:
        return text or None
    try:
        cell: Cell = _JSON_CELL.decode(text)
    except (msgspec.DecodeError, RecursionError):
        message = f"row {row + 1}, column {tensor.name[:100]!r}: this is no JSON of a single value"
        raise invalid(message, row + 1, tensor.name) from None
    return cell


def _text(name: str, row: int, value: str | bytes | None) -> str | None:
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        message = f"row {row + 1}, input {name[:100]!r}: the element is no text in UTF-8"
        raise invalid(message, row + 1, name) from None


def _of_texts(tensor: Tensor, *, of_words: bool) -> Rows:
    if tensor.datatype != BYTES:
        raise wrong(tensor.name, f"{tensor.datatype} given; texts are {BYTES}")
    if of_words:
        if tensor.values.ndim != 2:
            raise wrong(tensor.name, f"shape {[*tensor.values.shape]} given; give [rows, words]")
        words = [[_text(tensor.name, row, one) for one in cells] for row, cells in enumerate(tensor.values)]
        return Rows([[word for word in row if word] for row in words], len(words))
    texts = [_text(tensor.name, row, value) for row, value in enumerate(_column(tensor).values)]
    for row, text in enumerate(texts):
        if text is None:
            raise invalid(f"row {row + 1}: there is no text", row + 1)
    return Rows(texts, len(texts))


def _of_images(tensor: Tensor) -> Rows:
    """Return images: contents of files, or pixels."""
    if tensor.datatype == "UINT8" and tensor.values.ndim in (3, 4):
        return Rows(list(tensor.values), len(tensor.values))
    if tensor.datatype != BYTES:
        raise wrong(
            tensor.name,
            f"{tensor.datatype} of shape {[*tensor.values.shape]} given; images are {BYTES}, the contents of "
            "files, or UINT8 [rows, height, width, channels]",
        )
    contents = [_content(tensor.content_type, row, value) for row, value in enumerate(_column(tensor).values)]
    return Rows(contents, len(contents))


def _content(content_type: str, row: int, value: str | bytes | None) -> bytes:
    """Return the content of an image file; JSON, which has no bytes, holds it in base64."""
    if isinstance(value, bytes) and content_type != _BASE64:
        return value
    try:
        return base64.b64decode(value or b"", validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"row {row + 1}: this is no content of an image file in base64", row + 1) from None


def _of_arrays(form: ArrayForm, given: Mapping[str, Tensor]) -> Rows:
    for name, tensor in given.items():
        if tensor.datatype == BYTES:
            raise wrong(name, f"{BYTES} given; this model takes numbers")
    if len(form.specs) == 1 and len(given) == 1:
        given = dict.fromkeys(form.specs, _only(given))
    return form.rows({name: tensor.values for name, tensor in given.items()})


def inputs_of(model: ServedModel) -> list[tuple[str, str, list[int]]]:
    """Return name, datatype and shape of the tensors that a model takes; -1 is any size."""
    form, preparation = model.form, model.predictor.preparation
    if task_for(model.predictor.info).generates_text:
        return []
    if isinstance(form, ArrayForm):
        return [
            (name, datatype_of(np.dtype(spec.dtype)), [-1, *spec.shape]) for name, spec in form.specs.items()
        ]
    if not isinstance(form, TableForm):
        is_list = isinstance(form, TextForm) and form.of_words
        name = form.noun if preparation is None else preparation.column_names[0]
        return [(name, BYTES, [-1, -1] if is_list else [-1])]
    assert preparation is not None, "a table has one"
    steps = getattr(preparation, "steps", None)
    if isinstance(preparation, TabularPreparation) and steps is None:
        texts = {column.name for column in preparation.columns if column.reads in ("text", "time")}
    else:
        texts = set((steps or preparation).text_columns)
    return [(name, BYTES if name in texts else "FP64", [-1]) for name in form.names]


def outputs_of(model: ServedModel) -> list[tuple[str, str, list[int]]]:
    """Return name, datatype and shape of the tensors that a model answers with."""
    predictor = model.predictor
    task, outputs = task_for(predictor.info), predictor.info.outputs
    if task.gives_masks:
        shape: tuple[int, ...] = (1, outputs, *_SHAPE_OF_MASKS)
    elif task.has_inner_labels:
        shape = (1, _TOKENS, outputs)
    elif task.sums:
        return []
    else:
        shape = (1,) if outputs == 1 else (1, outputs)
    columns = plain(predictor.table(np.full(shape, 0.5, np.float32)))
    return [(one.name, one.datatype, [-1] * one.values.ndim) for one in tensors_of(columns)]


def datatype_of(dtype: np.dtype[Any]) -> str:
    """Return the datatype of an array of numbers."""
    if dtype.kind == "b":
        return "BOOL"
    return f"{ {'f': 'FP', 'u': 'UINT'}.get(dtype.kind, 'INT') }{8 * dtype.itemsize}"


def tensors_of(columns: Mapping[str, list[Any]]) -> Iterator[Tensor]:
    """Yield the columns of predictions as tensors: numbers, or texts.

    Lists in cells become an array of more axes where all are numbers and equally long, or else JSON.
    """
    for name, cells in columns.items():
        if any(isinstance(cell, list) for cell in cells):
            array = _array(cells)
            if array is None:
                texts = [msgspec.json.encode(cell).decode() for cell in cells]
                yield Tensor(name, BYTES, _objects(texts), _JSON)
            else:
                yield Tensor(name, datatype_of(array.dtype), array)
        elif all(isinstance(cell, bool | int | float) for cell in cells):
            array = np.array(cells)  # in double precision: some models answer in it
            yield Tensor(name, datatype_of(array.dtype), array)
        else:
            texts = [one if isinstance(one, str) else msgspec.json.encode(one).decode() for one in cells]
            yield Tensor(name, BYTES, _objects(texts), _TEXT)


def _array(cells: Sequence[Any]) -> Array | None:
    try:
        array = np.array(cells)
    except ValueError:
        return None
    return array if array.dtype.kind in "biuf" else None


def _objects(values: Sequence[Any]) -> Array:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found
