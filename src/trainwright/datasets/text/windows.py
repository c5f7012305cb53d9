"""Tokens in windows of equal length: the samples of a text."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainwright.digest import array_buffer, digest, tensor_records
from trainwright.types import INPUT_IDS, LABELS, NO_LABEL, TEXT_BYTES, Array, Batch, Ids


class Windows:
    """A text in windows of equal length.

    Args:
        text: (tokens,) unsigned integers; they may be memory-mapped.
        length: The number of tokens in a window.
        every_byte: Whether every token but the first is predicted exactly once. The last window then overlaps
            the one before it, and has no labels there. Otherwise, tokens that fill no window are left out.
        text_bytes: (tokens,) uint16, the bytes that each token stands for; None: each is one byte.
        token_bytes: The same by token, (vocabulary,), where that depends on nothing else; 0: it is not known.
        tokenizer: The SHA-256 of the tokenizer, if tokens are not the bytes themselves.
    """

    def __init__(
        self,
        text: Array,
        length: int,
        *,
        every_byte: bool,
        text_bytes: NDArray[np.uint16] | None = None,
        token_bytes: NDArray[np.int64] | None = None,
        tokenizer: str | None = None,
    ) -> None:
        self._text = np.ascontiguousarray(text)
        self._length = length
        self._text_bytes = text_bytes
        self._token_bytes = token_bytes
        self._tokenizer = tokenizer
        self._rows = (len(text) - 1) // length
        # Tokens that only the last window predicts.
        self._rest = (len(text) - 1) % length if every_byte else 0

    def __len__(self) -> int:
        return self._rows + (self._rest > 0)

    def take(self, ids: Ids) -> Batch:
        """Return the windows `ids` as (rows, length) int64 tokens and labels.

        Where tokens are not bytes, the bytes that the labels of each row stand for are added, (rows,) int64.
        """
        starts = ids * self._length
        is_last = ids == self._rows  # none is, unless there is a rest
        if self._rest:
            starts[is_last] = len(self._text) - 1 - self._length
        positions = starts[:, None] + np.arange(self._length + 1)  # (rows, length + 1)
        windows = self._text[positions].astype(np.int64)
        labels = windows[:, 1:].copy()  # (rows, length)
        if self._rest:
            labels[is_last, : self._length - self._rest] = NO_LABEL
        batch = {INPUT_IDS: windows[:, :-1].copy(), LABELS: labels}
        if self._token_bytes is not None:
            counted = labels != NO_LABEL
            lengths = self._token_bytes[np.where(counted, labels, 0)] * counted
            return batch | {TEXT_BYTES: lengths.sum(axis=1)}
        if self._text_bytes is None:
            return batch
        counts = self._text_bytes[positions[:, 1:]] * (labels != NO_LABEL)  # (rows, length)
        return batch | {TEXT_BYTES: counts.sum(axis=1, dtype=np.int64)}

    @property
    def labels_per_row(self) -> int | None:
        """The number of labels of each row; None if the last one has fewer."""
        return None if self._rest else self._length

    def fingerprint(self) -> str:
        """Return the digest of the tokens, the length of a window, and the number of tokens in the rest."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        form = np.array([self._length, self._rest], np.int64)
        buffers = [array_buffer("text", self._text), array_buffer("windows", form)]
        if self._text_bytes is not None:
            buffers.append(array_buffer("text_bytes", self._text_bytes))
        if self._tokenizer is not None:
            buffers.append(array_buffer("tokenizer", np.frombuffer(bytes.fromhex(self._tokenizer), np.uint8)))
        return digest(tensor_records(buffers))
