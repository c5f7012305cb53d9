"""The places of the files in a tar file: the POSIX and GNU formats, uncompressed."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trainwright.errors import DataError

_BLOCK = 512
_REGULAR = (b"0", b"\0", b"7")
_PAX_RECORD = re.compile(rb"([0-9]{1,9}) ([^=]*)=")  # up to its value
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Member(NamedTuple):
    """A regular file in a tar file: its name, and where its content is."""

    name: str
    offset: int
    size: int


def members(path: Path) -> Iterator[Member]:
    """Yield the regular files of a tar file, in order.

    Raises:
        DataError: The file is damaged, cut short, or compressed.
    """
    with open(path, "rb") as file:
        if file.read(4).startswith((_GZIP, _ZSTD)):
            raise DataError(f"{path} is compressed, so its samples cannot be read one by one; decompress it")
        if not path.stat().st_size:
            raise DataError(f"{path} is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield from _members(data, path)


def member_at(path: Path, offset: int) -> str:
    """Return the name of the file whose content is at an offset of a tar file."""
    return next((member.name for member in members(path) if member.offset == offset), f"byte {offset}")


def _members(data: mmap.mmap, path: Path) -> Iterator[Member]:
    position, long_name = 0, ""
    while position + _BLOCK <= len(data):
        header = data[position : position + _BLOCK]
        if not header[0] and not header.strip(b"\0"):  # the end
            return
        if _number(header[148:156], path) != sum(header) - sum(header[148:156]) + 8 * 32:
            raise DataError(f"{path}: at byte {position} there is no header of a tar file; is it damaged?")
        size, kind, start = _number(header[124:136], path), header[156:157], position + _BLOCK
        position = start + -(-size // _BLOCK) * _BLOCK
        if start + size > len(data):
            raise DataError(f"{path} is cut short: {_name(header)} goes on beyond its end")
        if kind in b"Lx" and kind:  # the name of the next file, as GNU and POSIX write long ones
            extra = data[start : start + size]
            long_name = _text(extra) if kind == b"L" else (_pax_path(extra, path) or long_name)
            continue
        if kind in _REGULAR:
            yield Member(long_name or _name(header), start, size)
        long_name = ""
    raise DataError(
        f"{path} is cut short: it lacks the empty blocks with which a tar file ends; copy or write it again"
    )


def _name(header: bytes) -> str:
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{_text(header[:100])}" if prefix else _text(header[:100])


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode(errors="surrogateescape")


def _number(field: bytes, path: Path) -> int:
    if field[0] & 0x80:  # a large one, in base 256
        return int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
    try:
        number = int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        number = -1
    if number < 0:
        raise DataError(f"{path} is not a tar file, or it is damaged")
    return number


def _pax_path(records: bytes, path: Path) -> str:
    """Return the path in the records of an extended header, `LENGTH KEY=VALUE` each.

    Raises:
        DataError: They are damaged.
    """
    while records:
        start = _PAX_RECORD.match(records)
        length = int(start[1]) if start else 0
        if start is None or not start.end() < length <= len(records) or records[length - 1] != ord("\n"):
            raise DataError(f"{path}: an extended header of a file in it is damaged: {records[:20]!r}")
        if start[2] == b"path":
            return records[start.end() : length - 1].decode(errors="surrogateescape")
        records = records[length:]
    return ""
