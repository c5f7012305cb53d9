"""Texts in a column of a CSV or Parquet file, for models that read tokens.

Another column is the target (`data.target`); there may be one of weights, and those that rows are divided by.
Each text becomes `input_ids` and `attention_mask`, of `max_length` tokens: a longer text is cut, a shorter
one is padded at its end. So the shape of a sample does not depend on the others of its batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from pydantic import BaseModel, Field

from trainyard.announce import announced
from trainyard.config.fields import Section
from trainyard.config.schema import DataConfig
from trainyard.datasets.base import DataBundle
from trainyard.datasets.rows import checks, objects, tokenizers
from trainyard.datasets.rows.arrays import Arrays
from trainyard.datasets.rows.cache import data_cache
from trainyard.datasets.rows.frames import read_table
from trainyard.datasets.rows.table import Table
from trainyard.datasets.rows.tabular import named_columns, paths_by_split
from trainyard.datasets.rows.target import Target, rows_with_target
from trainyard.datasets.rows.text_preparation import TextPreparation, texts_of
from trainyard.datasets.rows.tokenizers import Choice, Tokenizer
from trainyard.datasets.rows.weights import encode as encode_weights
from trainyard.digest import sha256_json
from trainyard.errors import DataError
from trainyard.types import Array, Ids, SplitName

_FORMAT = 1  # of the file of tokens; a change of how tokens are made raises it, too
_BYTES_PER_CHARACTER = 4  # of the file of tokens, at most, for usual text
_ROW = "row"  # the array that stands for the texts until they are tokens


class TextTableParams(Section):
    """Tables with a column of texts."""

    text: str = Field("text", min_length=1, description="the column of texts")
    max_length: int = Field(
        256, gt=0, description="tokens of a sample: longer texts are cut, shorter ones padded"
    )
    tokenizer: str = Field(
        "bytes",
        description="bytes; bpe, which is trained on the training texts; or the path of a tokenizer.json",
    )
    vocab_size: int | None = Field(
        None, gt=256, le=1 << 24, description="bpe: the number of tokens; default: 8192"
    )


class TextTableDataset:
    """A CSV or Parquet file with a column of texts, to be split; or one for each split."""

    names: ClassVar[Sequence[str]] = ("text_table",)
    Params: ClassVar[type[BaseModel]] = TextTableParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        assert isinstance(params, TextTableParams)
        self._config = config
        self._params = params

    def load(self) -> DataBundle:
        """Load the data; see `Dataset.load`."""
        config, params = self._config, self._params
        plain = config.model_copy(
            update={
                "weight": None,
                "sampling": None,
                "split": config.split.model_copy(update={"group": None, "time": None}),
            }
        )
        objects.refuse_column_settings(plain, "texts are", "Leave it out")
        for key in ("columns", "missing_values"):
            if getattr(config, key):
                raise DataError(f"data.{key} is for tables of features, not for texts; leave it out")
        choice = tokenizers.chosen(params.tokenizer, params.vocab_size, end_of_text=False)
        tables, warnings = self._tables()
        texts = [text for table in tables.values() for text in self._texts(table)]
        divided = self._divided(tables)
        rows = {name: split.take(np.arange(len(split)))[_ROW] for name, split in divided.splits.items()}
        with announced(f"making tokens of {len(texts):,} texts"):
            tokenizer, samples = _tokens(texts, rows["train"], choice, params.max_length)
        info = divided.info
        target = Target(info.target, info.task, info.classes, names=tuple(info.target_names))
        preparation = TextPreparation(params.text, tokenizer, params.max_length, target)
        splits = {}
        for name, split in divided.splits.items():
            arrays = preparation.padded((samples[row] for row in rows[name].tolist()), len(split))
            assert isinstance(split, Arrays), "`from_arrays` made it"
            others = {key: array for key, array in split.arrays.items() if key != _ROW}
            splits[name] = Arrays({**arrays, **others})
        return replace(
            divided,
            info=replace(info, inputs=preparation.inputs, vocab_size=tokenizer.vocab_size),
            splits=dict(splits),
            preparation=preparation,
            warnings=[*warnings, *divided.warnings, *checks.repeated_rows(splits, sources=tables)],
            columns=_in_words(samples, params.max_length),
        )

    def _tables(self) -> tuple[dict[SplitName, Table], list[str]]:
        """Return the rows of each source, and what a user should know of them."""
        config, text = self._config, self._params.text
        tables: dict[SplitName, Table] = {}
        warnings: list[str] = []
        for name, path in paths_by_split(config).items():
            with announced(f"reading {path}"):
                table = read_table(path, text=[text])
            warnings += table.remarks
            if config.missing_target == "drop":
                for target in config.targets:
                    table, dropped = rows_with_target(table, target)
                    warnings += [dropped] if dropped else []
            tables[name] = table
        return tables, warnings

    def _texts(self, table: Table) -> list[str]:
        name = self._params.text
        return texts_of(table.column(name, "data.text").tolist(), f"{table.source}: column {name!r}")

    def _divided(self, tables: Mapping[SplitName, Table]) -> DataBundle:
        """Return the data with an array of row numbers in place of the texts.

        The rows of all sources are counted one after the other.
        """
        config, start = self._config, 0
        pairs: dict[SplitName, objects.Pair] = {}
        weights: dict[SplitName, Array] = {}
        for name, table in tables.items():
            pairs[name] = ({_ROW: np.arange(start, start + len(table))}, self._targets(table))
            start += len(table)
            if config.weight is not None:
                weights[name] = encode_weights(table, config.weight)
        train = tables["train"]
        columns = named_columns(train, config)
        return objects.from_arrays(pairs, config, sample_weights=weights, columns=columns)

    def _targets(self, table: Table) -> Array:
        """Return the targets, (rows,), or (rows, columns) of several."""
        names = self._config.targets
        if len(names) == 1:
            return table.column(names[0], "data.target")
        return np.stack([table.column(name, "data.target").astype(np.float32) for name in names], axis=1)


def _tokens(
    texts: Sequence[str], train: Ids, choice: Choice, max_length: int
) -> tuple[Tokenizer, Sequence[Ids]]:
    """Return the tokenizer, and the tokens of each text; from the cache, if they were made before.

    Args:
        texts: The texts.
        train: (rows,) the positions of those that a tokenizer may learn from.
        choice: The tokenizer that the config asks for.
        max_length: The number of tokens of a text at most.
    """
    if choice.kind == tokenizers.BYTES:
        made = choice.made()
        return made, list(made.samples(texts, max_length))
    content = [sha256_json(list(texts)), train.tolist(), max_length]
    file = data_cache().made(
        f"samples {sha256_json([_FORMAT, content, choice.identity()])}",
        "the tokens of the texts",
        _BYTES_PER_CHARACTER * sum(map(len, texts)),
        lambda path: _write(path, texts, train, choice, max_length),
    )
    return _read(file)


def _write(path: Path, texts: Sequence[str], train: Ids, choice: Choice, max_length: int) -> None:
    """Write the tokens of the texts, the number of tokens of each, and the tokenizer."""
    made = (
        choice.trained((texts[row] for row in train.tolist()), [tokenizers.PADDING])
        if choice.needs_training
        else choice.made()
    )
    samples = list(made.samples(texts, max_length))
    dtype = np.min_scalar_type(made.vocab_size - 1)
    flat = np.concatenate([np.empty(0, dtype), *(one.astype(dtype) for one in samples)])
    lengths = np.array([len(one) for one in samples], np.int64)
    plain = np.frombuffer(json.dumps(made.to_json()).encode(), np.uint8)
    with path.open("wb") as file:
        np.savez(file, tokens=flat, lengths=lengths, tokenizer=plain)


def _read(path: Path) -> tuple[Tokenizer, Sequence[Ids]]:
    with np.load(path, allow_pickle=False) as kept:
        flat, lengths, plain = kept["tokens"], kept["lengths"], kept["tokenizer"]
    samples = np.split(flat, np.cumsum(lengths)[:-1])
    return tokenizers.from_json(json.loads(plain.tobytes())), samples


def _in_words(samples: Sequence[Ids], max_length: int) -> str:
    """Return how many texts there are, and how long they are."""
    lengths = np.array([len(one) for one in samples])
    cut = int((lengths == max_length).sum())
    middle = f"{np.median(lengths):,.0f} tokens in the median, {lengths.max():,} at most"
    return f"{len(samples):,} texts, {middle}" + (f"; {cut:,} fill data.max_length" if cut else "")
