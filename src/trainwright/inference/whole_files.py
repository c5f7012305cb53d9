"""Files and folders that are there only when they are whole."""

from __future__ import annotations

import glob
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from trainwright.errors import InputError
from trainwright.process.machine import process_has_ended


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have a file or folder written aside; it takes the place of what is there when it is whole.

    What processes that were killed have left aside is removed.

    Raises:
        InputError: There is no such folder, or it cannot be written.
    """
    write_all({path: write})


def write_all(files: Mapping[Path, Callable[[Path], object]]) -> None:
    """Have files of one folder written aside; they take their places, in order, when all are whole.

    Raises:
        InputError: There is no such folder, or it cannot be written.
    """
    path = next(iter(files))
    folder = _folder(path)
    prefix = f".{path.name}.{socket.gethostname()}-"
    for left in folder.glob(f"{glob.escape(prefix)}*"):
        if process_has_ended(left.name.removeprefix(prefix).partition(".")[0]):
            shutil.rmtree(left, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}.", dir=folder) as aside:
            new = Path(aside, "new")
            new.mkdir()
            for one, write in files.items():
                write(new / one.name)
            for one in files:
                made = new / one.name
                if one.is_dir() and made.is_dir():  # it is in one of the two places at any moment
                    one.rename(Path(aside, one.name))
                made.replace(one)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error


def _folder(path: Path) -> Path:
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(f"{path}: there is no folder {folder}")
    return folder
