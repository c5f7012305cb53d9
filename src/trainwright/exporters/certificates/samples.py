"""The rows on which an artifact is compared with its run: real ones of the test split, and edge rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainwright.datasets.base import DataBundle
from trainwright.datasets.samples.arrays import is_frame
from trainwright.datasets.tables.encoders.base import Encoder
from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.datasets.tables.raw import RawPreparation
from trainwright.datasets.tables.table import Table
from trainwright.datasets.texts.preparation import TextPreparation
from trainwright.errors import DataError, InputError
from trainwright.exporters.base import Input
from trainwright.inference.predictor import Predictor
from trainwright.types import FEATURES, SPLITS, Array, SplitName

log = logging.getLogger("trainwright")

NAT = np.iinfo(np.int64).min  # a missing time
_TEXTS = (
    "",
    " ",
    "a",
    "A word.",
    "\N{SNOWMAN} \N{GREEK SMALL LETTER BETA}",
    "one word after the other " * 100,
)
_UNSEEN = "\N{SNOWMAN} not a category"
_MOMENTS = ("1899-12-31T23:59:59.999999", "1970-01-01", "2000-02-29T12:30:00", "2100-03-01")


@dataclass(frozen=True)
class Sample:
    """Rows, and a name for each.

    `rows` are what the run's predictor takes: a `Table` whose columns are read as their kinds, or arrays.
    """

    rows: Any
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.names)

    def feeds(self, inputs: Sequence[Input]) -> dict[str, Array]:
        """Return the inputs of an artifact: columns (rows, 1), or arrays (rows, ...)."""
        if is_frame(self.rows):
            return {one.name: cells_of(self.rows[one.name].to_numpy(), one.dtype) for one in inputs}
        if not isinstance(self.rows, Table):
            return {one.name: np.asarray(self.rows[one.name]) for one in inputs}
        return {one.name: cells_of(self.rows.columns[one.name], one.dtype) for one in inputs}


def cells_of(values: Array, dtype: str) -> Array:
    """Return a column as an input, (rows, 1)."""
    if dtype == "string":
        cells = values.tolist()
        texts = [
            "" if one is None or (isinstance(one, float) and math.isnan(one)) else str(one) for one in cells
        ]
        return np.array(texts, dtype=object)[:, None]
    if dtype == "int64":
        return values.astype("datetime64[us]").astype(np.int64)[:, None]
    return values.astype(np.float64)[:, None]


def own_data(predictor: Predictor) -> DataBundle | None:
    """Return the data of a run; None, with a warning, where they were given as objects, or cannot be read."""
    try:
        return predictor.load_data()
    except (InputError, DataError) as error:
        reason = str(error).partition("\n")[0].partition("; ")[0]
        log.warning(
            "the exported model is compared on made-up rows alone, as the run's data are not there: %s",
            reason,
        )
        return None


def real_rows(bundle: DataBundle, predictor: Predictor, inputs: Sequence[Input]) -> Sample | None:
    """Return rows of the test split, else of the validation or training split; None: they are not kept."""
    split = next(name for name in reversed(SPLITS) if name in bundle.splits)
    if isinstance(predictor.preparation, TabularPreparation):
        table = bundle.examples.get(split)
        if table is None:
            return None
        return Sample(table, [f"row {i} of the {split} split" for i in range(len(table))])
    if isinstance(predictor.preparation, RawPreparation):
        return _rows_of_frame(bundle, split)
    if isinstance(predictor.preparation, TextPreparation) and inputs[0].dtype == "string":
        return None  # the texts themselves are not kept
    count = min(len(bundle.splits[split]), 1000)
    batch = bundle.splits[split].take(np.arange(count, dtype=np.int64))
    rows = {one.name: batch[one.name] for one in inputs}
    return Sample(rows, [f"row {i} of the {split} split" for i in range(count)])


def _rows_of_frame(bundle: DataBundle, split: SplitName) -> Sample:
    """Return the first rows of a split as a data frame, which a pipeline gets."""
    rows = bundle.splits[split].take(np.arange(min(len(bundle.splits[split]), 100), dtype=np.int64))
    frame = rows[FEATURES]
    return Sample(frame, [f"row {i} of the {split} split" for i in range(len(frame))])


def edge_rows(predictor: Predictor, inputs: Sequence[Input]) -> Sample:
    """Return rows that are made up: a usual one, and for each column missing, unseen and extreme values."""
    preparation = predictor.preparation
    if isinstance(preparation, TextPreparation) and inputs[0].dtype == "string":
        texts = {inputs[0].name: np.array(_TEXTS, dtype=object)}
        return Sample(Table(texts, source="the edge rows", is_typed=True), list(map(repr, _TEXTS)))
    if isinstance(preparation, RawPreparation):
        if (data := own_data(predictor)) is None:
            raise InputError(
                f"run {predictor.run.id} prepares its columns itself, so that its own rows are needed to "
                "compare what is exported"
            )
        return _rows_of_frame(data, "train")
    if isinstance(preparation, TabularPreparation):
        return _edges_of_columns(preparation, predictor.stored.data.ranges)
    rows = {one.name: _edges_of_arrays(one) for one in inputs}
    names = ["zeros", "ones", "minus ones", "large", "small"]
    return Sample(rows, names)


def _edges_of_arrays(one: Input) -> Array:
    values = np.array([0.0, 1.0, -1.0, 100.0, 1e-3])
    shaped = np.broadcast_to(values.reshape(-1, *(1 for _ in one.shape)), (len(values), *one.shape))
    return np.ascontiguousarray(shaped.astype(one.dtype))


def _edges_of_columns(preparation: TabularPreparation, ranges: Mapping[str, Sequence[Any]]) -> Sample:
    usual = {column.name: _value(column, column.example) for column in preparation.columns}
    rows, names = [usual], ["a usual row"]
    for column in preparation.columns:
        for name, value in _edges(column, ranges.get(column.name)):
            rows.append({**usual, column.name: value})
            names.append(f"{column.name}: {name}")
    if all(column.accepts_missing for column in preparation.columns):
        rows.append({column.name: _missing(column) for column in preparation.columns})
        names.append("all missing")
    columns = {
        column.name: _column(column, [row[column.name] for row in rows]) for column in preparation.columns
    }
    return Sample(Table(columns, source="the edge rows", is_typed=True), names)


def _edges(column: Encoder, span: Sequence[Any] | None) -> Iterator[tuple[str, Any]]:
    """Yield names and values of one column, apart from its usual value."""
    if column.accepts_missing:
        yield "missing", _missing(column)
    if column.reads == "text":
        yield "a value that no training row has", _UNSEEN
        for category in list(column.shown_categories)[:50]:
            yield f"{category!r}", category
        return
    if column.reads == "time":
        for text in _MOMENTS:
            yield text, np.datetime64(text, "us")
        return
    low, high = (0.0, 1.0) if span is None else (float(end) for end in span)
    beyond = 10 * (high - low)
    for value in dict.fromkeys([low, high, low - beyond, high + beyond, 0.0, -1.0, 1.0, (low + high) / 2]):
        yield f"{value:g}", value


def _value(column: Encoder, cell: str | float) -> Any:
    return np.datetime64(str(cell), "us") if column.reads == "time" else cell


def _missing(column: Encoder) -> Any:
    return {"text": None, "time": np.datetime64("NaT", "us")}.get(column.reads, np.nan)


def _column(column: Encoder, cells: Sequence[Any]) -> Array:
    dtypes: Mapping[str, Any] = {"text": object, "time": "datetime64[us]"}
    return np.array(cells, dtype=dtypes.get(column.reads, np.float64))
