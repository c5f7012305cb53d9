"""Opening the user's files."""

from __future__ import annotations

from pathlib import Path

from trainyard.datasets.rows.table import nearest
from trainyard.errors import DataError


def existing_file(path: str) -> Path:
    """The file at `path`, relative to the working directory.

    Raises:
        DataError: there is none, or it is a folder.
    """
    file = Path(path).expanduser()
    if file.is_dir():
        inside = sorted(entry.name for entry in file.iterdir() if entry.is_file())
        hint = f"one of its files, such as {path.rstrip('/')}/{inside[0]}" if inside else "a file"
        raise DataError(f"{path} is a folder; give {hint}")
    if not file.exists():
        raise DataError(f"{path}: there is no such file; {_elsewhere(file)}")
    return file


def _elsewhere(file: Path) -> str:
    folder = file.parent
    if not folder.is_dir():
        return (
            f"there is no folder {folder} in {Path.cwd()} either"
            if not folder.is_absolute()
            else f"nor a folder {folder}"
        )
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    return f"in {folder.resolve()}: {nearest(file.name, names)}"


def read_bytes(path: str) -> bytes:
    """All bytes of a file.

    Raises:
        DataError: it cannot be read.
    """
    try:
        return existing_file(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
