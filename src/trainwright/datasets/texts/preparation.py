"""The preparation of texts: a column of them becomes tokens, cut or padded to one length."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainwright.datasets.samples.files import TEXT_ENDING, files_in, log_left_out, text_of
from trainwright.datasets.tables.list_cells import lists_of, tags_of
from trainwright.datasets.tables.raw import FORMAT
from trainwright.datasets.tables.table import Table, as_table, frame_of, nearest
from trainwright.datasets.tables.target import Target
from trainwright.datasets.texts import tokenizers
from trainwright.datasets.texts.tokenizers import Tokenizer, WordTokens
from trainwright.errors import DataError
from trainwright.plugins import task_of
from trainwright.types import ATTENTION_MASK, INPUT_IDS, NO_LABEL, Array, ArraySpec, Ids


class TextPreparation:
    """Turn texts into `input_ids` and `attention_mask`; see `trainwright.datasets.base.Preparation`.

    Args:
        column: The column of texts.
        tokenizer: What makes their tokens.
        max_length: The number of tokens of each row.
        target: The target.
        of_words: Whether a cell is a list of words, and not a text.
    """

    encodes_training_otherwise = False
    has_columns = False
    noun = "texts"
    path_column = "file"
    feature_names: Sequence[str] = ()
    categories: Sequence[int] = ()

    def __init__(
        self, column: str, tokenizer: Tokenizer, max_length: int, target: Target, *, of_words: bool = False
    ) -> None:
        self.column = column
        self.of_words = of_words
        self.tokenizer = tokenizer
        self.target = target
        self.max_length = max_length

    @property
    def column_names(self) -> list[str]:
        """The columns that rows must have."""
        return [self.column]

    @property
    def contents(self) -> list[str]:
        """A line for each column that rows must have: its name, and what it holds."""
        return [f"{self.column}: {'words' if self.of_words else 'text'}"]

    @property
    def text_columns(self) -> list[str]:
        """The columns to read as text from files without types."""
        text_target = self.target.lists or any(isinstance(label, str) for label in self.target.classes or ())
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
        if self.of_words:
            words = self._words(rows)
            return self.padded((one.ids for one in self.tokenizer.words(words, self.max_length)), len(words))
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
        cells, where = self._cells(rows, "the texts given")
        return texts_of(cells, where)

    def _words(self, rows: Any) -> list[list[str]]:
        cells, where = self._cells(rows, "the lists given")
        return words_of(cells, where)

    def _cells(self, rows: Any, given: str) -> tuple[Sequence[Any], str]:
        """Return the cells of the column of texts, or the rows if they are cells, and their name in messages.

        Raises:
            DataError: There is no such column.
        """
        is_table = isinstance(rows, Table | Mapping) or hasattr(rows, "columns")
        if not is_table:
            rows = list(rows)
            if not rows or not all(isinstance(row, Mapping) for row in rows):
                return rows, given
        table = as_table(rows, only={self.column}, lists={self.column})
        if self.column not in table.columns:
            known = nearest(self.column, [*table.columns, *table.unread])
            raise DataError(f"the rows have no column {self.column!r}, which holds the texts; {known}")
        return list(table.columns[self.column]), f"column {self.column!r}"

    def rows_in(self, table: Table) -> Any:
        """Return the rows of a file's table as `arrays` takes them."""
        return frame_of(dict(table.columns))

    def files_at(self, path: Path | str) -> list[Path] | None:
        """Return the texts in a folder; None if the path is no folder.

        Raises:
            DataError: There are none.
        """
        if not Path(path).is_dir():
            return None
        files, others = files_in(Path(path), [TEXT_ENDING])
        if not files:
            raise DataError(f"{path} holds no text: no file that ends in {TEXT_ENDING}")
        log_left_out(path, others, "texts")
        return files

    def rows_of_files(self, files: Sequence[Path]) -> Sequence[Any]:
        """Return the texts in files as rows.

        Raises:
            DataError: A file cannot be read.
        """
        return [{self.column: text_of(file)} for file in files]

    def readable(self, files: Sequence[Path]) -> list[Path]:
        """Return all files: that a text cannot be read is an error."""
        return list(files)

    def labels_of_words(self, rows: Any, labels: Sequence[Sequence[Any]]) -> list[list[Any]]:
        """Return labels of tokens as those of words: that of the first token; None of words that are cut off.

        Args:
            rows: As for `arrays`; each has a list of words.
            labels: A label for each token of each row, those of padding too.
        """
        words, answers = self._words(rows), list[list[Any]]()
        encoded = self.tokenizer.words(words, self.max_length)
        for row, one, own in zip(words, encoded, labels, strict=True):
            answer: list[Any] = [None] * len(row)
            for token in np.flatnonzero(one.begins >= 0).tolist():
                answer[one.begins[token]] = own[token]
            answers.append(answer)
        return answers

    def remarks(self, rows: Any, known: Collection[str]) -> dict[str, str]:  # noqa: ARG002
        """Return nothing: any text can be made tokens of."""
        return {}

    def with_targets(self, rows: Any) -> Table:
        """Return the rows as they are."""
        return as_table(rows)

    def targets(self, rows: Any) -> Array | None:
        """Return the targets as in training; None without such a column."""
        columns = set(self.target.columns)
        table = as_table(rows, only=columns, lists=columns)
        if not columns <= set(table.columns):
            return None
        task = task_of(self.target.task)
        if not task.has_inner_labels:
            return self.target.encode(table)
        where, words = f"{table.source}: the target {self.target.name!r}", self._words(rows)
        tags = tags_of(words, table.columns[self.target.name], where, table)
        codes = task.encode_inner(tags, self.target.classes or (), where)
        return self.labels_of_tokens(codes, self.tokenizer.words(words, self.max_length))

    def labels_of_tokens(self, codes: Array, encoded: Iterable[WordTokens]) -> Array:
        """Return the labels of words, (rows, words), as those of tokens, (rows, max_length) int64.

        The first token of a word has its label, all others have none (NO_LABEL).
        """
        labels = np.full((len(codes), self.max_length), NO_LABEL, np.int64)
        for row, one in enumerate(encoded):
            at = np.flatnonzero(one.begins >= 0)
            labels[row, at] = codes[row, one.begins[at]]
        return labels

    def to_json(self) -> dict[str, Any]:
        """Return plain values, which `from_json` reads."""
        return {
            "version": FORMAT,
            "texts": self.column,
            "max_length": self.max_length,
            "tokenizer": self.tokenizer.to_json(),
            "target": self.target.to_json(),
            **({"of_words": True} if self.of_words else {}),
        }


def from_json(data: Mapping[str, Any]) -> TextPreparation:
    """Restore the preparation that `to_json` was called on."""
    tokenizer = tokenizers.from_json(data["tokenizer"])
    target, of_words = Target.from_json(data["target"]), data.get("of_words", False)
    return TextPreparation(data["texts"], tokenizer, data["max_length"], target, of_words=of_words)


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
            raise DataError(f"{where}: {text!r} in row {row + 1} is not text")
    return texts


def words_of(values: Sequence[Any], where: str) -> list[list[str]]:
    """Return the lists of words in cells.

    Raises:
        DataError: A cell holds something else, or one of its words is no text.
    """
    cells = np.empty(len(values), dtype=object)
    for row, value in enumerate(values):
        cells[row] = value.tolist() if isinstance(value, np.ndarray) else value
    words = lists_of(cells, where)
    for row, cell in enumerate(words):
        if wrong := [word for word in cell if not isinstance(word, str)]:
            raise DataError(f"{where}: {wrong[0]!r} in row {row + 1} is not a word")
    return words
