"""Free text: the weights of its most frequent words."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from trainwright.datasets.tables.encoders.base import Encoder, TrainingRows, as_texts, no_value
from trainwright.datasets.tables.table import Kind, Table, missing
from trainwright.errors import DataError
from trainwright.types import Array

MAX_WORDS = 500  # of a column: 200 MB of features in float32 for 100,000 rows
_WORD = re.compile(r"\w\w+")
_BLOCK = 10_000  # rows that are split into words at once


@dataclass(frozen=True)
class TextColumn(Encoder):
    """Free text, as TF-IDF weights of the words that training rows have most often.

    Words are two or more letters or digits, in lower case; those that only one row has are left out. The
    weight of a word is its count in the text, times `idf`, the logarithm of how rare it is:
    ln((1 + n) / (1 + rows with the word)) + 1. The weights of a text have length 1; a text without known
    words has none. scikit-learn's TfidfVectorizer gives the same.

    A missing text has no words if `fills` or `keep`; else it is an error.
    """

    kind: ClassVar[str] = "text"
    reads: ClassVar[Kind] = "text"
    words: Sequence[str]
    idf: Sequence[float]
    fills: bool = False

    @classmethod
    def fit(cls, name: str, rows: TrainingRows) -> Self:
        """Fit an encoder on a column of text: choose the words, and weigh them."""
        texts = as_texts(rows.table, name)
        counts, holders = Counter[str](), Counter[str]()
        for text in texts:
            words = _words(text)
            counts.update(words)
            holders.update(set(words))
        shared = [word for word in counts if holders[word] > 1] or list(counts)
        if not shared:
            raise DataError(
                f"{rows.table.source}: column {name!r} is to be free text, but holds no words; leave it "
                "out with data.exclude"
            )
        chosen = sorted(sorted(shared, key=lambda word: (-counts[word], word))[:MAX_WORDS])
        # The last digit of a logarithm differs between machines.
        idf = [round(math.log((1 + len(texts)) / (1 + holders[word])) + 1, 12) for word in chosen]
        return cls(name, chosen, idf, fills=rows.config.impute is not None)

    @property
    def outputs(self) -> Sequence[str]:
        """The names of its features."""
        return [f"{self.name}.{word}" for word in self.words]

    @property
    def accepts_missing(self) -> bool:
        """True where values may be missing: they are replaced, or left to the model."""
        return self.fills

    @property
    def example(self) -> str | float:
        """A text of words that it knows."""
        return " ".join(self.words[:3])

    def encode(self, table: Table, out: Array) -> None:
        """Write the weights into `out`, (rows, words)."""
        texts = as_texts(table, self.name)
        if (absent := missing(texts)).any() and not self.fills:
            raise no_value(table, self.name, absent)
        out[:] = 0
        index = {word: i for i, word in enumerate(self.words)}
        for start in range(0, len(texts), _BLOCK):
            block = texts[start : start + _BLOCK]
            rows, words, counts = _triples(block, index)
            weights = counts * np.array(self.idf)[words]
            lengths = np.sqrt(np.bincount(rows, weights**2, len(block)))
            out[start + rows, words] = weights / lengths[rows]


def _words(text: str | None) -> list[str]:
    """Return the words of a text, in lower case."""
    return _WORD.findall(text.lower()) if text else []


def _triples(texts: Array, index: dict[str, int]) -> tuple[Array, Array, Array]:
    """Return the rows, words and counts (n,) of the known words in texts (rows,)."""
    triples = [
        (row, word, count)
        for row, text in enumerate(texts)
        for word, count in Counter(index[word] for word in _words(text) if word in index).items()
    ]
    rows, words, counts = np.array(triples, dtype=np.int64).reshape(-1, 3).T
    return rows, words, counts
