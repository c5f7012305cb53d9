"""The deletion of folders of runs and studies, which a kill may cut off at any moment."""

from __future__ import annotations

import shutil
from pathlib import Path

from trainwright.safe_files import fsync_folder

_SUFFIX = ".deleted"


def marked(name: str) -> str:
    """Return the name that a folder's identifying file has while the folder is being deleted."""
    return f"{name}{_SUFFIX}"


def mark_deleted(folder: Path, name: str) -> None:
    """Rename a folder's identifying file in one atomic step, so that no half-deleted run looks whole.

    Args:
        folder: The folder of a run or study.
        name: The identifying file.

    Raises:
        OSError: The file cannot be renamed.
    """
    if (folder / name).is_symlink() or (folder / name).exists():
        (folder / name).replace(folder / marked(name))
        fsync_folder(folder)


def remove_folder(folder: Path, name: str) -> None:
    """Delete a folder; what a kill leaves of it has the file `marked(name)`, and is no run or study.

    Symbolic links within it are deleted, and never followed.

    Raises:
        OSError: Something cannot be deleted, or the folder is a symbolic link.
    """
    if folder.is_symlink():
        raise OSError(f"{folder} is a symbolic link, and nothing is deleted through a link")
    mark_deleted(folder, name)
    for path in folder.iterdir():
        if path.name == marked(name):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    shutil.rmtree(folder)
