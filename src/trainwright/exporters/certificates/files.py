"""The files of an artifact, and their hashes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from trainwright.exporters.certificates import reader


def parts_of(made: Path) -> list[Path]:
    """Return the files of an artifact: of a folder all, of a file it and those that belong to it."""
    if made.is_dir():
        return sorted(one for one in made.rglob("*") if one.is_file())
    return [made, *(one for name in reader.BESIDE if (one := reader.beside(made, name)).is_file())]


def files_of(made: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of the files of an artifact."""
    found = {}
    for path in parts_of(made):
        name = path.relative_to(made).as_posix() if made.is_dir() else path.name
        if name != "certificate.json":
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            found[name] = {"bytes": path.stat().st_size, "sha256": digest}
    return found
