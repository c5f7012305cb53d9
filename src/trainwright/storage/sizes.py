"""The sizes of the files of runs and studies, by what they are."""

from __future__ import annotations

import os
from pathlib import Path

from trainwright.storage.remote import copied_entry
from trainwright.storage.urls import url_of

# By the folder of a run in which they are; all else is `other`.
_KINDS = {
    "checkpoints": "checkpoints",
    "best": "best models",
    "initial": "initial state",
    "evaluation": "evaluation",
    "journal": "journal",
}


def sizes_of(folder: Path) -> dict[str, int]:
    """Return the bytes of the files in a run directory by their kind, in the order of `_KINDS`.

    A file with several names counts once: a best model of the last step shares its weights with the
    checkpoint. Of a run in a store, the files that are there count.
    """
    sizes = dict.fromkeys([*_KINDS.values(), "other"], 0)
    entry = copied_entry(folder) if url_of(folder.absolute().parent.parent) else None
    if entry is not None:
        for name, file in entry.files.items():
            sizes[_kind(name)] += file.bytes
        return sizes
    seen = set()
    for place, folders, names in os.walk(folder):
        folders.sort(reverse=True)  # `checkpoints` before `best`
        for name in names:
            stat = Path(place, name).lstat()
            if (stat.st_dev, stat.st_ino) not in seen:
                seen.add((stat.st_dev, stat.st_ino))
                sizes[_kind(Path(place, name).relative_to(folder).as_posix())] += stat.st_size
    return sizes


def size_of(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(sizes_of(folder).values())


def _kind(name: str) -> str:
    return _KINDS.get(name.partition("/")[0], "other") if "/" in name else "other"
