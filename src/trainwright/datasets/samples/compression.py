"""Files that may be compressed: with gzip, bzip2, xz or Zstandard, as their first bytes say."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from trainwright.errors import DataError
from trainwright.process.machine import available_memory
from trainwright.require import require

_MAGIC = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "Zstandard"}
_OPEN: Mapping[str | None, Callable[[Path], Any]] = {
    None: lambda file: file.open("rb"),
    "gzip": gzip.open,
    "bzip2": bz2.open,
    "xz": lzma.open,
    "Zstandard": lambda file: require("pyarrow", "tabular").CompressedInputStream(str(file), "zstd"),
}
_PIECE = 16 << 20  # bytes that are unpacked together


def compression_of(file: Path) -> str | None:
    """Return the name of what a file is compressed with; None if it is not."""
    with file.open("rb") as stream:
        start = stream.read(6)
    return next((name for magic, name in _MAGIC.items() if start.startswith(magic)), None)


@contextmanager
def unpacked(path: str, file: Path) -> Iterator[IO[bytes]]:
    """Open a file to read what it holds, unpacked piece by piece.

    Args:
        path: The path or URL as the user gave it, for messages.
        file: The file.

    Raises:
        DataError: It cannot be unpacked.
    """
    kind = compression_of(file)
    try:
        with _OPEN[kind](file) as stream:
            yield stream
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        if kind is None:
            raise
        raise DataError(
            f"{path} is compressed with {kind}, but cannot be unpacked (is it complete?): {error}"
        ) from error


def read_unpacked(path: str, file: Path) -> bytes:
    """Return all that a file holds, unpacked.

    Raises:
        DataError: It cannot be unpacked, or is larger than the memory then.
    """
    if compression_of(file) is None:
        return file.read_bytes()
    limit, pieces, size = available_memory(), [], 0
    with unpacked(path, file) as stream:
        while piece := stream.read(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if limit is not None and 2 * size > limit:
                raise DataError(
                    f"{path}: unpacked, it is larger than the memory, of which {limit / 2**30:,.1f} GiB are "
                    "available; give a part of it"
                )
    return b"".join(pieces)
