"""Files and folders that are there only when they are whole."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from trainyard.errors import InputError


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have a file or folder written aside; it takes the place of what is there when it is whole.

    Raises:
        InputError: There is no such folder, or it cannot be written.
    """
    folder = _folder(path)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=folder) as aside:
            made = Path(aside) / path.name
            write(made)
            if path.is_dir():
                shutil.rmtree(path)
            made.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


def _folder(path: Path) -> Path:
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(f"{path}: there is no folder {folder}")
    return folder
