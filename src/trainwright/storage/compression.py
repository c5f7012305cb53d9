"""Compress files of checkpoints on their way to a store, with Zstandard (RFC 8878)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trainwright.errors import CheckpointError
from trainwright.require import require

ZSTD = "zstd"  # the codec, as the log names it
SUFFIX = ".zst"  # of the keys of compressed objects
MIN_BYTES = 1 << 16  # a smaller file is stored as it is: a request costs more than its bytes
_PIECE_BYTES = 1 << 20


def check_codec() -> None:
    """Check that files can be compressed here.

    Raises:
        MissingExtraError: The library is not installed.
    """
    _zstandard()


def compress(source: Path, target: Path) -> None:
    """Write a compressed copy of a file."""
    with open(source, "rb") as plain, open(target, "wb") as compressed:
        _zstandard().ZstdCompressor().copy_stream(plain, compressed, size=source.stat().st_size)


def decompress(source: Path, target: Path, size: int) -> None:
    """Write the content of a compressed file, of which at most `size` bytes are expected.

    Raises:
        CheckpointError: It is not such a file, or holds more: a crafted one could fill the disk.
    """
    zstandard, written = _zstandard(), 0
    try:
        with open(source, "rb") as compressed, open(target, "wb") as plain:
            reader = zstandard.ZstdDecompressor().stream_reader(compressed)
            while piece := reader.read(_PIECE_BYTES):
                written += len(piece)
                if written > size:
                    raise CheckpointError(f"{source.name} holds more than the {size} bytes that were stored")
                plain.write(piece)
    except zstandard.ZstdError as error:
        raise CheckpointError(f"{source.name} is not a Zstandard file: {error}") from error


def _zstandard() -> Any:
    return require("zstandard", "zstd")
