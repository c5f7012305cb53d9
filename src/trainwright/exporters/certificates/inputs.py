"""The inputs of artifacts: raw columns, images, tokens and other arrays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from trainwright.datasets.images.preparation import ImagePreparation
from trainwright.datasets.tables.preparation import TabularPreparation
from trainwright.datasets.tables.raw import RawPreparation
from trainwright.datasets.texts.preparation import TextPreparation
from trainwright.exporters.base import Input
from trainwright.inference.predictor import Predictor
from trainwright.types import ATTENTION_MASK, FEATURES, INPUT_IDS


def inputs_of(predictor: Predictor) -> Sequence[Input]:
    """Return the inputs of a model, where the size of images and the tokens of texts are made beside it.

    They are raw columns; an image in the size that the model takes, (height, width, channels) uint8; tokens;
    or the arrays that the model takes.
    """
    info, preparation = predictor.info, predictor.preparation
    specs = {name: info.inputs[name] for name in predictor.model.input_names or info.inputs}
    if isinstance(preparation, ImagePreparation):
        channels, height, width = specs[FEATURES].shape
        reads = {"raw": "image", "column": preparation.column, **preparation.reading}
        content = f"an image of {channels} colors, each from 0 to 255"
        return [Input(preparation.column, "uint8", (height, width, channels), content, reads)]
    if isinstance(preparation, TextPreparation):
        reads = {
            "raw": "text",
            "column": preparation.column,
            "max_length": preparation.max_length,
            "padding": preparation.tokenizer.padding,
            "of_words": preparation.of_words,
            "tokenizer": tokenizer_json(predictor) is not None,
        }
        contents = {INPUT_IDS: "tokens", ATTENTION_MASK: "1 for a token, 0 for padding"}
        return [
            Input(name, spec.dtype, spec.shape, contents[name], {**reads, "part": name})
            for name, spec in specs.items()
        ]
    if isinstance(preparation, TabularPreparation):
        dtypes = {"number": "float64", "text": "string", "time": "int64"}
        kinds = preparation.kinds
        return [
            Input(
                column.name,
                dtypes[column.reads],
                (1,),
                column.content,
                asdict(kinds[column.name]) if column.name in kinds else {},
            )
            for column in preparation.columns
        ]
    if isinstance(preparation, RawPreparation):
        columns = zip(preparation.feature_names, preparation.dtypes, strict=True)
        return [Input(name, _dtype_of(dtype), (1,), dtype) for name, dtype in columns]
    return [
        Input(name, spec.dtype, spec.shape, f"an array of {spec.dtype}", {"raw": "array"})
        for name, spec in specs.items()
    ]


def _dtype_of(dtype: str) -> str:
    """Return the dtype of an input for a column of a data frame."""
    if dtype.startswith("datetime"):
        return "int64"
    return "float64" if dtype.lower().startswith(("int", "uint", "float", "bool")) else "string"


def tokenizer_json(predictor: Predictor) -> str | None:
    """Return the content of the run's `tokenizer.json`; None where tokens are bytes, or there are none."""
    if INPUT_IDS not in predictor.info.inputs:
        return None
    kept = predictor.tokenizer.to_json().get("tokenizer")
    return None if kept is None else json.dumps(kept, ensure_ascii=False)
