"""The preparation of texts: a column of them becomes tokens, cut or padded to one length."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from trainyard.datasets.rows import tokenizers
from trainyard.datasets.rows.table import Table, as_table, nearest
from trainyard.datasets.rows.target import Target
from trainyard.datasets.rows.tokenizers import Tokenizer
from trainyard.errors import DataError
from trainyard.types import ATTENTION_MASK, INPUT_IDS, Array, ArraySpec, Ids


class TextPreparation:
    """Turns texts into `input_ids` and `attention_mask`; see `trainyard.datasets.base.Preparation`.

    Args:
        column: The column of texts.
        tokenizer: What makes their tokens.
        max_length: The number of tokens of each row.
        target: The target.
    """

    encodes_training_otherwise = False
    feature_names: Sequence[str] = ()
    categories: Sequence[int] = ()

    def __init__(self, column: str, tokenizer: Tokenizer, max_length: int, target: Target) -> None:
        self.column = column
        self.tokenizer = tokenizer
        self.target = target
        self.max_length = max_length

    @property
    def column_names(self) -> list[str]:
        """The columns that rows must have."""
        return [self.column]

    @property
    def text_columns(self) -> list[str]:
        """The columns to read as text from files without types."""
        text_target = any(isinstance(label, str) for label in self.target.classes or ())
        return [self.column, *(self.target.columns if text_target else ())]

    @property
    def inputs(self) -> dict[str, ArraySpec]:
        """The arrays that a model is called with."""
        spec = ArraySpec((self.max_length,), "int64")
        return {INPUT_IDS: spec, ATTENTION_MASK: spec}

    def arrays(self, rows: Any) -> dict[str, Array]:
        """Return the tokens of rows, and which of them are no padding: (rows, max_length) int64 each.

        Args:
            rows: A table or mappings with the column of texts; or a sequence of texts.

        Raises:
            DataError: There is no such column, or a cell holds no text.
        """
        texts = self._texts(rows)
        return self.padded(self.tokenizer.samples(texts, self.max_length), len(texts))

    def padded(self, samples: Iterable[Ids], count: int) -> dict[str, Array]:
        """Return the tokens of `count` texts, (tokens,) each, padded to one length; see `arrays`.

        Of an empty text one token of padding counts, since a mean over no token has no value.
        """
        ids = np.full((count, self.max_length), self.tokenizer.padding, np.int64)
        mask = np.zeros_like(ids)
        mask[:, 0] = 1
        for row, tokens in enumerate(samples):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        return {INPUT_IDS: ids, ATTENTION_MASK: mask}

    def features(self, rows: Any) -> Array:
        """Return the tokens, (rows, max_length) int64; see `arrays`."""
        return self.arrays(rows)[INPUT_IDS]

    def _texts(self, rows: Any) -> list[str]:
        if isinstance(rows, str):
            return [rows]
        if isinstance(rows, Table) or hasattr(rows, "columns") or isinstance(rows, Mapping):
            return self._of_column(as_table(rows, only={self.column}))
        values = list(rows)
        if values and all(isinstance(value, Mapping) for value in values):
            return self._of_column(as_table(values, only={self.column}))
        return texts_of(values, "the texts given")

    def _of_column(self, table: Table) -> list[str]:
        if self.column not in table.columns:
            known = nearest(self.column, [*table.columns, *table.unread])
            raise DataError(f"the rows have no column {self.column!r}, which holds the texts; {known}")
        return texts_of(table.columns[self.column].tolist(), f"column {self.column!r}")

    def remarks(self, rows: Any, known: Collection[str]) -> dict[str, str]:  # noqa: ARG002
        """Return nothing: any text can be made tokens of."""
        return {}

    def with_targets(self, rows: Any) -> Table:
        """Return the rows as they are."""
        return as_table(rows)

    def targets(self, rows: Any) -> Array | None:
        """Return the targets as in training; None without such a column."""
        table = as_table(rows, only=set(self.target.columns))
        return self.target.encode(table) if set(self.target.columns) <= set(table.columns) else None

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        return {
            "version": 2,
            "texts": self.column,
            "max_length": self.max_length,
            "tokenizer": self.tokenizer.to_json(),
            "target": self.target.to_json(),
        }


def from_json(data: Mapping[str, Any]) -> TextPreparation:
    """Restore the preparation that `to_json` was called on."""
    tokenizer = tokenizers.from_json(data["tokenizer"])
    return TextPreparation(data["texts"], tokenizer, data["max_length"], Target.from_json(data["target"]))


def texts_of(values: Sequence[Any], where: str) -> list[str]:
    """Return the texts in cells; missing ones are empty.

    Raises:
        DataError: A cell holds something else.
    """
    texts = ["" if value is None else value for value in values]
    for row, text in enumerate(texts):
        if isinstance(text, float) and np.isnan(text):
            texts[row] = ""
        elif not isinstance(text, str):
            raise DataError(f"{where}: {text!r} in row {row + 1} is no text")
    return texts
