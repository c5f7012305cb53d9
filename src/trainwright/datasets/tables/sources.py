"""The files of a table: one, those in a folder, or those that match a pattern."""

from __future__ import annotations

import codecs
from collections.abc import Collection, Mapping
from pathlib import Path, PurePath
from typing import NamedTuple
from urllib.parse import unquote

from trainwright.config.file_types import COMPRESSIONS, ENDINGS
from trainwright.datasets.samples.compression import unpacked
from trainwright.datasets.samples.files import existing_file, files_below, files_matching, is_pattern, is_url
from trainwright.datasets.tables.encodings import MARKS, Guess, guess
from trainwright.errors import DataError

_PIECE = 1 << 20  # bytes of a file that are looked at together
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


class TableFile(NamedTuple):
    """A file of a table.

    Attributes:
        name: Its path or URL, for messages.
        file: The file; of a URL, a local copy.
        partition: The columns that the names of its folders hold, such as `year=2024`.
    """

    name: str
    file: Path
    partition: Mapping[str, str]


def table_files(path: str, kind: str, *, mapped: bool = False) -> list[TableFile]:
    """Return the files of a table, sorted by name.

    Files in a folder whose names begin with a dot or an underscore are none of them.

    Args:
        path: A file, a folder or a pattern, or a URL of one.
        kind: The `data.type` of the files.
        mapped: The files are read in parts, so they may be larger than memory.

    Raises:
        DataError: There is no such file, or it cannot be read.
    """
    names = _names(path, kind)
    if names is None:
        return [TableFile(path, existing_file(path, mapped=mapped), {})]
    if not names:
        raise DataError(
            f"{path}: there is no file of this pattern"
            if is_pattern(path)
            else f"{path} is a folder, and no file below it ends in {' or '.join(ENDINGS[kind])}"
        )
    files = [TableFile(name, existing_file(name, mapped=mapped), partition_of(path, name)) for name in names]
    if odd := next((one for one in files if one.partition.keys() != files[0].partition.keys()), None):
        raise DataError(
            f"{path}: the folders of {odd.name} name the columns {', '.join(odd.partition) or 'none'}, those "
            f"of {files[0].name} {', '.join(files[0].partition) or 'none'}; they must be the same"
        )
    return files


def endings_of(kind: str) -> Collection[str]:
    """Return the endings of the files of a type, in lower case."""
    plain = ENDINGS.get(kind, ())
    return [*plain, *(f"{ending}{more}" for ending in plain for more in COMPRESSIONS if kind != "parquet")]


def partition_of(path: str, name: str) -> dict[str, str]:
    """Return the columns that the folders of a file below a path, or of a pattern, name."""
    inside = PurePath(name).parent.parts if is_pattern(path) else _parts_below(path, name)
    pairs = (part.partition("=") for part in inside)
    return {key: "" if value == _NO_VALUE else unquote(value) for key, mark, value in pairs if mark and key}


def _parts_below(path: str, name: str) -> tuple[str, ...]:
    folder = PurePath(path) if is_url(path) else Path(path).expanduser()
    return PurePath(name).parent.parts[len(folder.parts) :]


def _names(path: str, kind: str) -> list[str] | None:
    """Return the files that a folder or a pattern stands for; None if it is the path of a file."""
    if is_pattern(path):
        return files_matching(path)
    is_folder = path.endswith("/") if is_url(path) else Path(path).expanduser().is_dir()
    if not is_folder:
        return None
    endings = tuple(endings_of(kind))
    below = files_below(path, "*") or []
    depth = len(path.rstrip("/")) + 1
    return [
        name
        for name in below
        if name.lower().endswith(endings)
        and not any(part.startswith((".", "_")) for part in PurePath(name[depth:]).parts)
    ]


def guess_of_file(path: str, file: Path) -> Guess | None:
    """Return the encoding of a file that is not UTF-8, which is read piece by piece; None if it is."""
    decoder, lines = codecs.getincrementaldecoder("utf-8")(), 0
    with unpacked(path, file) as stream:
        while piece := stream.read(_PIECE):
            if not lines and piece.startswith(MARKS):
                return Guess("utf-16")
            try:
                decoder.decode(piece)
            except UnicodeDecodeError:
                found = guess(piece)
                return found and found._replace(line=lines + (found.line or 0))
            lines += piece.count(b"\n")
    return None
