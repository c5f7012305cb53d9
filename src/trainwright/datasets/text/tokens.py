"""The tokens of a text: made once, kept by content in the cache of this machine, and memory-mapped.

A file of tokens holds, for each split, the tokens as unsigned integers, and the bytes of text that each
stands for; then the tokenizer and the positions of all that as JSON, and the length of this JSON.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright.datasets.samples.cache import data_cache
from trainwright.datasets.text.documents import Documents, Piece, character_start
from trainwright.datasets.texts import tokenizers
from trainwright.datasets.texts.tokenizers import Choice, Encoded, Tokenizer
from trainwright.digest import sha256_json
from trainwright.errors import DataError
from trainwright.types import SPLITS, Array, SplitName

FORMAT = 1  # of the files; a change of how tokens are made raises it, too
_BATCH_BYTES = 4 << 20  # of text that are encoded together
_BYTES_PER_BYTE = 3  # that a file of tokens takes at most, for usual text; to make room for it
_LENGTH_BYTES = 8
_MOST = int(np.iinfo(np.uint16).max)
Cuts = Mapping[SplitName, tuple[int, int]]  # the bytes of a source that each split takes


class SplitTokens(NamedTuple):
    """The tokens of a split, (tokens,), and the bytes of text of each, (tokens,) uint16; None: 1 of each."""

    tokens: Array
    text_bytes: NDArray[np.uint16] | None


@dataclass(frozen=True)
class Source:
    """Documents, the bytes of them that each split takes, and the SHA-256 of their content."""

    documents: Documents
    cuts: Cuts
    sha256: str

    def pieces(self, split: SplitName, *, characters: bool) -> Iterator[Piece]:
        """Yield the pieces of a split's documents.

        Args:
            split: The split.
            characters: Whether a document that two splits share is cut between two characters.
        """
        if split not in self.cuts:
            return
        first, last = self.cuts[split]
        start = 0
        for piece in self.documents.pieces():
            size = len(piece.content)
            begin, stop = (min(max(edge - start, 0), size) for edge in (first, last))
            start += size
            if characters:
                begin, stop = (character_start(piece.content, edge) for edge in (begin, stop))
            if begin < stop:
                yield piece._replace(content=piece.content[begin:stop], ends=piece.ends and stop == size)
            if start >= last:
                return


def tokens_of(sources: Sequence[Source], choice: Choice) -> tuple[Tokenizer, dict[SplitName, SplitTokens]]:
    """Return the tokenizer and the tokens of each split; from the cache, if they were made before.

    Raises:
        DataError: A document is not UTF-8, or there is no room for the tokens.
    """
    content = [[source.sha256, sorted(source.cuts.items())] for source in sources]
    identity = sha256_json([FORMAT, content, choice.identity()])
    size = sum(stop - start for source in sources for start, stop in source.cuts.values())
    file = data_cache().made(
        f"tokens {identity}",
        "the tokens of the text",
        _BYTES_PER_BYTE * size,
        lambda path: _write(path, sources, choice),
    )
    return _read(file)


def encoded(documents: Documents, tokenizer: Tokenizer) -> SplitTokens:
    """Return the tokens of a text that a tokenizer makes which knows it not; in memory.

    Raises:
        DataError: A document is not UTF-8, or no text at all.
    """
    dtype, counted = np.min_scalar_type(tokenizer.vocab_size - 1), not tokenizers.is_plain(tokenizer)
    ids, counts = [np.empty(0, dtype)], [np.empty(0, np.uint16)]
    for part in _capped(_with_ends(_plain(documents.pieces()), tokenizer)):
        ids.append(part.ids.astype(dtype))
        if counted:
            counts.append(part.text_bytes.astype(np.uint16))
    return SplitTokens(np.concatenate(ids), np.concatenate(counts) if counted else None)


def _plain(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the pieces of documents, and refuse what is no text.

    Raises:
        DataError: A byte is 0.
    """
    for piece in pieces:
        if 0 in piece.content:
            raise DataError(
                f"{piece.source} is not plain text: it contains a zero byte; give a text file "
                "in UTF-8, not a compressed or binary one"
            )
        yield piece


def _write(path: Path, sources: Sequence[Source], choice: Choice) -> None:
    """Write a file of tokens.

    Raises:
        DataError: A document is not UTF-8, or was changed since it was hashed.
    """

    def pieces(split: SplitName) -> Iterator[Piece]:
        for source in sources:
            yield from source.pieces(split, characters=choice.kind != tokenizers.BYTES)

    made = choice.trained(map(_text, pieces("train"))) if choice.needs_training else choice.made()
    dtype = np.min_scalar_type(made.vocab_size - 1)
    parts: dict[str, Any] = {}
    with path.open("wb") as file:
        for split in SPLITS:
            if any(split in source.cuts for source in sources):
                encoded = _capped(_with_ends(pieces(split), made))
                parts[split] = _write_split(file, encoded, dtype, counted=not tokenizers.is_plain(made))
        index = {"dtype": dtype.name, "parts": parts, "tokenizer": made.to_json()}
        raw = json.dumps(index).encode()
        file.write(raw + len(raw).to_bytes(_LENGTH_BYTES, "little"))
    if any(source.documents.content().sha256 != source.sha256 for source in sources):
        # The tokens would be found under the hash of another text.
        raise DataError("the text was changed while it was tokenized; start the run again")


def _write_split(
    file: BinaryIO, encoded: Iterable[Encoded], dtype: np.dtype[Any], *, counted: bool
) -> list[int | None]:
    """Write the tokens of a split; return their number, and where they and their bytes of text begin."""
    tokens, start, counts_start = 0, file.tell(), None
    with tempfile.TemporaryFile(dir=Path(file.name).parent) as counts:
        for one in encoded:
            tokens += len(one.ids)
            file.write(one.ids.astype(dtype.newbyteorder("<")).tobytes())
            if counted:
                counts.write(one.text_bytes.astype("<u2").tobytes())
        _align(file)
        if counted:
            counts_start = file.tell()
            counts.seek(0)
            shutil.copyfileobj(counts, file)
            _align(file)
    return [tokens, start, counts_start]


def _align(file: BinaryIO) -> None:
    file.write(bytes(-file.tell() % 8))


def _read(path: Path) -> tuple[Tokenizer, dict[SplitName, SplitTokens]]:
    with path.open("rb") as file:
        file.seek(-_LENGTH_BYTES, os.SEEK_END)
        length = int.from_bytes(file.read(), "little")
        file.seek(-_LENGTH_BYTES - length, os.SEEK_END)
        index = json.loads(file.read(length))

    def mapped(dtype: str, start: int, count: int) -> Array:
        if not count:
            return np.empty(0, dtype)
        return np.memmap(path, np.dtype(dtype).newbyteorder("<"), "r", start, (count,))

    splits = {
        split: SplitTokens(
            mapped(index["dtype"], start, count),
            None if counts_start is None else mapped("uint16", counts_start, count),
        )
        for split, (count, start, counts_start) in index["parts"].items()
    }
    return tokenizers.from_json(index["tokenizer"]), splits


def _text(piece: Piece) -> str:
    """Return the text of a piece.

    Raises:
        DataError: It is not UTF-8.
    """
    try:
        return piece.content.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(piece, error) from None


def _not_utf8(piece: Piece, error: UnicodeDecodeError) -> DataError:
    return DataError(
        f"{piece.source} is not UTF-8: {error.reason} in {piece.content[error.start : error.start + 8]!r}; "
        "save it as UTF-8, or give tokenizer: bytes, which takes any bytes"
    )


def _with_ends(pieces: Iterable[Piece], tokenizer: Tokenizer) -> Iterator[tuple[Encoded, int]]:
    """Yield the tokens and the number of bytes of each piece, and the token for the end of each document."""
    end = tokenizer.end_of_text
    for batch in _batches(pieces):
        try:
            encoded = list(tokenizer.encode([piece.content for piece in batch]))
        except UnicodeDecodeError:
            for piece in batch:
                _text(piece)  # says which
            raise
        for piece, one in zip(batch, encoded, strict=True):
            yield one, len(piece.content)
            if piece.ends and end is not None:
                yield Encoded(np.array([end], np.int64), np.zeros(1, np.int64)), 0


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    size = 0
    for piece in pieces:
        batch.append(piece)
        size += len(piece.content)
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _capped(parts: Iterable[tuple[Encoded, int]]) -> Iterator[Encoded]:
    """Yield tokens that stand for as many bytes as 16 bits can count.

    What a token has beyond that counts for the next one. So do the bytes of a piece without tokens, which a
    tokenizer may leave of white space.
    """
    held = 0
    for part, size in parts:
        if not len(part.ids):
            held += size
            continue
        counts = part.text_bytes.copy()
        counts[0] += held
        held = 0
        for i in range(int((counts > _MOST).argmax()), len(counts)) if (counts > _MOST).any() else ():
            total = int(counts[i]) + held
            counts[i] = min(total, _MOST)
            held = total - int(counts[i])
        yield part._replace(text_bytes=counts)
