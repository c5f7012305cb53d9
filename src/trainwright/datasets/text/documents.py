"""The documents of a text: files, or the cells of a column, read piece by piece."""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from trainwright.datasets.samples.files import existing_file, files_below, files_matching
from trainwright.datasets.tables.frames import row_chunks
from trainwright.errors import DataError

PIECE_BYTES = 1 << 20  # a longer document is read, and made tokens of, in pieces; tokens depend on it
_ROWS = 4096  # of a table, read at once
_WILD = "*?["


class Piece(NamedTuple):
    """A part of a document: its bytes, whether the document ends with it, and where it is from."""

    content: bytes
    ends: bool
    source: str


class Content(NamedTuple):
    """The number of bytes in all documents, and the SHA-256 of what they are."""

    size: int
    sha256: str


class Documents:
    """The documents at a path, in their order, to be read as often as wanted.

    Args:
        path: A file, a folder or a pattern of files, as the user gave it: a path or a URL.
        pattern: The files of a folder.
        column: The column of the documents, if the files are tables; None: each file is a document.

    Raises:
        DataError: There are no such files.
    """

    def __init__(self, path: str, pattern: str, column: str | None) -> None:
        self._files = _files(path, pattern)
        self._column = column

    def pieces(self) -> Iterator[Piece]:
        """Yield the documents in pieces; one piece at least for each document that is not empty.

        A long document is cut after the last line that ends within a piece, or within a line that is longer
        than a piece. No character is cut.

        Raises:
            DataError: A file cannot be read, or has no such column.
        """
        for file in self._files:
            if self._column is None:
                yield from _cut(_blocks(file), file)
            else:
                for row, text in enumerate(_cells(file, self._column)):
                    yield from _cut(iter([text]), f"{file}, row {row}")

    def content(self) -> Content:
        """Read all documents once, and return what identifies them.

        Raises:
            DataError: As in `pieces`.
        """
        hasher, size, end = hashlib.sha256(), 0, 0
        for piece in self.pieces():
            hasher.update(piece.content)
            size += len(piece.content)
            if piece.ends:
                hasher.update(f"\0{size - end}\0".encode())
                end = size
        return Content(size, hasher.hexdigest())


def _files(path: str, pattern: str) -> Sequence[str]:
    if any(letter in path for letter in _WILD):
        if not (matching := files_matching(path)):
            raise DataError(f"data.path: no file matches {path}")
        return matching
    files = files_below(path, pattern)
    if files is None:
        return [path]
    if not files:
        raise DataError(
            f"{path}: no file in this folder matches data.params.pattern: {pattern}; give a "
            "pattern that matches some"
        )
    return files


def _blocks(path: str) -> Iterator[bytes]:
    """Yield the content of a file in blocks."""
    file = existing_file(path, mapped=True)
    try:
        with file.open("rb") as stream:
            block = stream.read(PIECE_BYTES)
            if PurePath(path).suffix.lower() == ".bin":
                _refuse_tokens(path, block)
            while block:
                yield block
                block = stream.read(PIECE_BYTES)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error


def _refuse_tokens(path: str, start: bytes) -> None:
    """Refuse the tokens of a text in place of the text, which people keep in `.bin` files.

    Raises:
        DataError: The first block of the file is no text.
    """
    try:
        if 0 not in start:
            codecs.getincrementaldecoder("utf-8")().decode(start)  # the block may end within a character
            return
    except UnicodeDecodeError:
        pass
    tokens = np.frombuffer(start[: len(start) // 2 * 2], "<u2")
    raise DataError(
        f"{path} holds numbers, not text: perhaps tokens in uint16, as nanoGPT's prepare.py writes them (the "
        f"largest of the first {len(tokens):,} would be {tokens.max(initial=0)}): give data.dtype: uint16. "
        "To train on the bytes themselves, give the file another ending than .bin"
    )


def _cells(path: str, column: str) -> Iterator[bytes]:
    """Yield the texts of a column; missing ones are empty."""
    chunks = row_chunks(path, None, [column])
    if column not in chunks.names:
        raise DataError(
            f"{path}: data.params.column: there is no column {column!r}; there are: {', '.join(chunks.names)}"
        )
    row = 0
    for table in chunks.tables([column], _ROWS):
        for text in table.column(column):
            if text is not None and not isinstance(text, str):
                raise DataError(f"{path}: column {column!r} holds {text} in row {row}; texts are needed")
            yield (text or "").encode()
            row += 1


def _cut(blocks: Iterable[bytes], source: str) -> Iterator[Piece]:
    """Yield the pieces of a document."""
    held = b""
    for block in blocks:
        held += block
        while len(held) > PIECE_BYTES:
            stop = held.rfind(b"\n", 0, PIECE_BYTES) + 1 or character_start(held, PIECE_BYTES)
            yield Piece(held[:stop], False, source)
            held = held[stop:]
    if held:
        yield Piece(held, True, source)


def character_start(text: bytes, position: int) -> int:
    """Return where the character in UTF-8 begins that the byte at a position belongs to."""
    start = position
    while start > max(0, position - 4) and start < len(text) and text[start] & 0xC0 == 0x80:
        start -= 1
    return start if start < len(text) and text[start] & 0xC0 != 0x80 else position
