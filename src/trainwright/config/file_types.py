"""The types of data by the endings of files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

# Of tables, by their `data.type`.
ENDINGS: Mapping[str, Sequence[str]] = {
    "csv": (".csv", ".tsv"),
    "parquet": (".parquet", ".pq"),
    "jsonl": (".jsonl", ".ndjson"),
    "excel": (".xlsx", ".xlsm"),
}
COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")  # after the ending of a text
FILE_TYPES = {ending: kind for kind, endings in ENDINGS.items() for ending in endings} | {
    ".txt": "text",
    ".npz": "npz",
    ".tar": "webdataset",
    ".tfrecord": "tfrecord",
    ".tfrecords": "tfrecord",
}
_COMPRESSED = ("csv", "jsonl")
_OF_LOG = re.compile(r"\.?(requests-\d{8}T.*\.parquet(\.tmp)?|feedback-\d{8}T.*\.jsonl)")  # of `serve --log`
_LOOKED_AT = 1000  # files of a folder


def ending_of(path: str) -> str:
    """Return the ending of a path in lower case, without that of a compression: `.csv` of `rows.csv.gz`."""
    pure = PurePath(path)
    if (
        pure.suffix.lower() in COMPRESSIONS
        and FILE_TYPES.get(inner := PurePath(pure.stem).suffix.lower()) in _COMPRESSED
    ):
        return inner
    return pure.suffix.lower()


def file_type(path: str) -> str | None:
    """Return the `data.type` of a file by its ending, or of the tables in a folder; None: it is unknown."""
    return FILE_TYPES.get(ending_of(path)) or folder_type(path)


def folder_type(path: str) -> str | None:
    """Return the `data.type` of the tables in a folder, if its files are nearly all of one type."""
    if "://" in path:
        return None
    folder = Path(path).expanduser()
    try:
        if not folder.is_dir():
            return None
        files = (file for file in folder.rglob("*") if file.is_file())
        some = [file.relative_to(folder) for _, file in zip(range(_LOOKED_AT), files, strict=False)]
    except OSError:
        return None
    return _type_of_tables(some)


def holds_tables(path: str) -> bool:
    """Return whether a folder holds more tables than other files; a look at the first of them decides."""
    files = (file for file in Path(path).expanduser().rglob("*") if file.is_file())
    are_tables = [
        FILE_TYPES.get(ending_of(f.name)) in ENDINGS for _, f in zip(range(_LOOKED_AT), files, strict=False)
    ]
    return 2 * sum(are_tables) > len(are_tables)


def type_of_names(names: Sequence[str]) -> str | None:
    """Return the `data.type` of files by their paths: of the one file, or of the tables in a folder."""
    if len(names) == 1 and (kind := FILE_TYPES.get(ending_of(names[0]))) is not None:
        return kind
    return _type_of_tables([PurePath(name) for name in names])


def _type_of_tables(files: Sequence[PurePath]) -> str | None:
    """Return the type of the tables in a folder, given the paths of its files relative to it."""
    if files and all(_OF_LOG.fullmatch(file.name) for file in files):
        return "requests"
    counts: Counter[str | None] = Counter()
    for file in files:
        if not any(part.startswith((".", "_")) for part in file.parts):
            counts[FILE_TYPES.get(ending_of(file.name))] += 1
    kind = max(counts, key=lambda kind: counts[kind], default=None)
    return kind if kind in ENDINGS and counts[kind] == counts.total() else None
