"""The rows on which an artifact is compared with its run: real ones of the test split, and edge rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trainwright.datasets.base import DataBundle
from trainwright.datasets.images.preparation import ImagePreparation
from trainwright.datasets.samples.arrays import is_frame
from trainwright.datasets.tables.encoders.base import Encoder
from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.datasets.tables.raw import RawPreparation
from trainwright.datasets.tables.table import Table
from trainwright.datasets.texts.preparation import TextPreparation
from trainwright.errors import DataError, InputError
from trainwright.exporters.base import Input
from trainwright.exporters.certificates.inputs import tokenizer_json
from trainwright.exporters.certificates.raw import raw_array
from trainwright.inference.predictor import Predictor
from trainwright.types import ATTENTION_MASK, FEATURES, INPUT_IDS, SPLITS, Array, SplitName

log = logging.getLogger("trainwright")

_UNSEEN = "\N{SNOWMAN} not a category"
_TEXTS = {
    "an empty text": "",
    "one word": "word",
    "a long text": "The quick brown fox jumps over the lazy dog. " * 500,
    "unseen characters": "\N{SNOWMAN} \u6f22\u5b57 \U0001f980 e\u0301 \u0000 \u200b",
    "blanks and lines": " \t two  words\r\n\n ",
    "capitals": "AN ANSWER, IN CAPITALS: 42!",
}
_MOMENTS = ("1899-12-31T23:59:59.999999", "1970-01-01", "2000-02-29T12:30:00", "2100-03-01")


@dataclass(frozen=True)
class Sample:
    """Rows, and a name for each.

    `rows` are what the run's predictor takes: a `Table` whose columns are read as their kinds, a list of
    images, texts or lists of words, or arrays. `tokenizer` is the content of a `tokenizer.json`.
    """

    rows: Any
    names: Sequence[str]
    tokenizer: str | None = None

    def __len__(self) -> int:
        return len(self.names)

    def feeds(self, inputs: Sequence[Input]) -> dict[str, Array]:
        """Return the inputs of an artifact: columns (rows, 1), or arrays (rows, ...)."""
        if isinstance(self.rows, list) and inputs[0].dtype == "string":  # texts as they are
            return {inputs[0].name: np.array(self.rows, dtype=object)[:, None]}
        if isinstance(self.rows, list):
            return {one.name: raw_array(one._asdict(), self.rows, self.tokenizer) for one in inputs}
        if is_frame(self.rows):
            return {one.name: cells_of(self.rows[one.name].to_numpy(), one.dtype) for one in inputs}
        if not isinstance(self.rows, Table):
            return {one.name: np.asarray(self.rows[one.name]) for one in inputs}
        return {one.name: cells_of(self.rows.columns[one.name], one.dtype) for one in inputs}

    def take(self, ids: Sequence[int]) -> Sample:
        """Return some of the rows."""
        rows, positions = self.rows, np.array(ids, dtype=np.int64)
        if isinstance(rows, list):
            taken: Any = [rows[i] for i in ids]
        else:
            taken = (
                rows.take(positions) if hasattr(rows, "take") else {n: v[positions] for n, v in rows.items()}
            )
        return replace(self, rows=taken, names=[self.names[i] for i in ids])


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
            "the exported model is compared on synthetic rows alone, as the run's data are not there: %s",
            reason,
        )
        return None


def real_rows(
    bundle: DataBundle,
    predictor: Predictor,
    inputs: Sequence[Input],
    most: int = 1000,
    split: SplitName | None = None,
) -> Sample | None:
    """Return rows of the test split, else of the validation or training split; None: they are not kept.

    Args:
        bundle: The run's data.
        predictor: The model of a run.
        inputs: The inputs of the artifact.
        most: The number of rows, at most.
        split: Another split.
    """
    last: SplitName = next(name for name in reversed(SPLITS) if name in bundle.splits)
    chosen = last if split is None else split
    if isinstance(predictor.preparation, RawPreparation):
        return _rows_of_frame(bundle, chosen, 100 if split is None else most)
    kept = bundle.examples.get(chosen)
    if predictor.preparation is not None and kept is None:
        return None
    count = min(len(bundle.splits[chosen] if kept is None else kept), most)
    ids = np.arange(count, dtype=np.int64)
    if kept is None:
        batch = bundle.splits[chosen].take(ids)
        rows: Any = {one.name: batch[one.name] for one in inputs}
    else:
        rows = kept.take(ids) if hasattr(kept, "take") else kept[:count]
    return Sample(rows, [f"row {i} of the {chosen} split" for i in range(count)], tokenizer_json(predictor))


def _rows_of_frame(bundle: DataBundle, split: SplitName, most: int) -> Sample:
    """Return the first rows of a split as a data frame, which a pipeline gets."""
    rows = bundle.splits[split].take(np.arange(min(len(bundle.splits[split]), most), dtype=np.int64))
    frame = rows[FEATURES]
    return Sample(frame, [f"row {i} of the {split} split" for i in range(len(frame))])


def edge_rows(predictor: Predictor, inputs: Sequence[Input], *, within: bool = False) -> Sample:
    """Return synthetic rows: a usual one, and for each column missing, unseen and extreme values.

    Args:
        predictor: The model of a run.
        inputs: The inputs of the artifact.
        within: Leave out numbers and times beyond those of the training rows.
    """
    preparation = predictor.preparation
    if isinstance(preparation, RawPreparation):
        return _edges_of_frame(inputs)
    if isinstance(preparation, TabularPreparation):
        return _edges_of_columns(preparation, predictor.stored.data.ranges, within=within)
    if isinstance(preparation, TextPreparation):
        texts = dict(_TEXTS)
        rows: Any = [text.split() for text in texts.values()] if preparation.of_words else [*texts.values()]
        return Sample(rows, [*texts], tokenizer_json(predictor))
    if isinstance(preparation, ImagePreparation):
        images = _edges_of_images(inputs[0].shape)
        return Sample([*images.values()], [*images])
    names = ["zeros", "ones", "minus ones", "large", "small"]
    vocabulary = predictor.info.vocab_size or predictor.info.outputs
    made = Sample({one.name: _edges_of_arrays(one, vocabulary) for one in inputs}, names)
    return made.take([i for i, name in enumerate(names) if name != "large"]) if within else made


def _edges_of_images(shape: Sequence[int]) -> dict[str, Array]:
    """Return images (height, width, channels) uint8, also larger ones and of another form than (shape)."""
    draws = np.random.default_rng(0)
    height, width, channels = shape
    ramp = np.arange(height * width * channels).reshape(shape) % 256
    return {
        "a black image": np.zeros(shape, np.uint8),
        "a white image": np.full(shape, 255, np.uint8),
        "a ramp": ramp.astype(np.uint8),
        "noise": draws.integers(0, 256, shape, dtype=np.uint8),
        "noise, wide": draws.integers(0, 256, (height, 2 * width + 3, channels), dtype=np.uint8),
        "noise, small and high": draws.integers(
            0, 256, (height // 2 + 1, width // 3 + 1, channels), dtype=np.uint8
        ),
    }


def _edges_of_frame(inputs: Sequence[Input]) -> Sample:
    """Return synthetic rows of a data frame, for a pipeline that prepares its columns itself."""
    import pandas as pd

    values: Mapping[str, Sequence[Any]] = {
        "string": ["a", "A word.", _UNSEEN, "one word and more", "b"],
        "bool": [True, False, True, False, True],
        "int64": [0, 1, -1, 100, 7],
    }
    columns = {one.name: values.get(one.dtype, [0.0, 1.0, -1.0, 100.0, np.nan]) for one in inputs}
    names = ["first values", "a word and ones", "unseen texts", "large values", "missing numbers"]
    return Sample(pd.DataFrame(columns), names)


def _edges_of_arrays(one: Input, vocabulary: int) -> Array:
    """Return (5, ...) values; of tokens the first and last ones."""
    values = np.array([0.0, 1.0, -1.0, 100.0, 1e-3])
    if one.name == INPUT_IDS:
        values = np.array([0, 1, vocabulary - 1, vocabulary // 2, 2])
    elif one.name == ATTENTION_MASK:
        values = np.ones(5)
    elif one.dtype.startswith(("int", "uint")):
        values = np.array([0, 1, 1, 0, 2])  # of indices, which may not be large
    shaped = np.broadcast_to(values.reshape(-1, *(1 for _ in one.shape)), (len(values), *one.shape))
    return np.ascontiguousarray(shaped.astype(one.dtype))


def _edges_of_columns(
    preparation: TabularPreparation, ranges: Mapping[str, Sequence[Any]], *, within: bool
) -> Sample:
    usual = {column.name: _value(column, column.example) for column in preparation.columns}
    rows, names = [usual], ["a usual row"]
    for column in preparation.columns:
        for name, value in _edges(column, ranges.get(column.name), within=within):
            rows.append({**usual, column.name: value})
            names.append(f"{column.name}: {name}")
    if all(column.accepts_missing for column in preparation.columns):
        rows.append({column.name: _missing(column) for column in preparation.columns})
        names.append("all missing")
    columns = {
        column.name: _column(column, [row[column.name] for row in rows]) for column in preparation.columns
    }
    return Sample(Table(columns, source="the edge rows", is_typed=True), names)


def _edges(column: Encoder, span: Sequence[Any] | None, *, within: bool) -> Iterator[tuple[str, Any]]:
    """Yield names and values of one column, apart from its usual value."""
    if column.accepts_missing:
        yield "missing", _missing(column)
    if column.reads == "text":
        yield "a value that no training row has", _UNSEEN
        for category in list(column.shown_categories)[:50]:
            yield f"{category!r}", category
        return
    if column.reads == "time":
        for text in [*map(str, span)] if within and span is not None else _MOMENTS:
            yield text, np.datetime64(text, "us")
        return
    low, high = (0.0, 1.0) if span is None else (float(end) for end in span)
    beyond = 10 * (high - low)
    for value in dict.fromkeys([low, high, low - beyond, high + beyond, 0.0, -1.0, 1.0, (low + high) / 2]):
        if not within or low <= value <= high:
            yield f"{value:g}", value


def _value(column: Encoder, cell: str | float) -> Any:
    return np.datetime64(str(cell), "us") if column.reads == "time" else cell


def _missing(column: Encoder) -> Any:
    return {"text": None, "time": np.datetime64("NaT", "us")}.get(column.reads, np.nan)


def _column(column: Encoder, cells: Sequence[Any]) -> Array:
    dtypes: Mapping[str, Any] = {"text": object, "time": "datetime64[us]"}
    return np.array(cells, dtype=dtypes.get(column.reads, np.float64))
