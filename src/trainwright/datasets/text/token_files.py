"""Tokens that others have made, in files that hold nothing else, such as nanoGPT's train.bin and val.bin."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Literal

import numpy as np

from trainwright.datasets.samples.files import existing_file
from trainwright.datasets.texts.tokenizers import Tokenizer
from trainwright.errors import DataError
from trainwright.types import Array, SplitName

MOST_TOKENS = 1 << 24
TokenType = Literal["uint8", "uint16", "uint32", "int32", "int64"]


def tokens_in(path: str, dtype: TokenType) -> Array:
    """Return the tokens of a file, (tokens,), memory-mapped.

    Raises:
        DataError: The file cannot be read, is empty, or ends within a token.
    """
    file, size = existing_file(path, mapped=True), np.dtype(dtype).itemsize
    length = file.stat().st_size
    if not length or length % size:
        raise DataError(f"{path} has {length} bytes, which are no tokens in {dtype} (data.dtype)")
    try:
        tokens: Array = np.memmap(file, np.dtype(dtype).newbyteorder("<"), "r")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return tokens if sys.byteorder == "little" else tokens.astype(dtype)


def vocabulary(parts: Mapping[SplitName, Array], tokenizer: Tokenizer | None, given: int | None) -> int:
    """Return the number of different tokens: as given, of the tokenizer, or up to the highest in the files.

    Raises:
        DataError: A token is none of them, or a tokenizer has another number.
    """
    if tokenizer is not None and given is not None and given < tokenizer.vocab_size:
        raise DataError(
            f"data.vocab_size: {given} given, but the tokenizer has {tokenizer.vocab_size} tokens; leave "
            "it out"
        )
    known = given or (MOST_TOKENS if tokenizer is None else tokenizer.vocab_size)
    highest = 0
    for name, tokens in parts.items():
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= known:
            raise DataError(
                f"the {name} tokens go from {low} to {high}, but "
                f"{'none is below 0' if low < 0 else f'there are at most {known}'}: give the dtype that they "
                "were written in (data.dtype), and their tokenizer or data.vocab_size"
            )
        highest = max(highest, high)
    return highest + 1 if given is None and tokenizer is None else known
