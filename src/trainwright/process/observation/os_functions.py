"""Functions of `os` that raise no audit event, or one that leaves out the folder a path is relative to."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

from trainwright.process.observation.audit_events import opened
from trainwright.process.observation.call_origins import called_by_user, called_for_user, functions_of_python
from trainwright.process.observation.paths import absolute
from trainwright.process.observation.record import Observation, noting
from trainwright.process.observation.unobserved import unobserved

# Functions of Python that only ask whether a file is there.
_EXISTENCE = {
    *("exists", "lexists", "isfile", "isdir", "islink", "ismount", "samefile"),
    *("is_file", "is_dir", "is_symlink", "is_mount"),
}
# Those whose questions are their own: the answers are nothing that the code which calls them learns.
_THEIR_OWN = {
    *("realpath", "resolve", "makedirs", "mkdir", "rmtree", "which"),
    *("walk", "move", "copy", "copy2", "copyfile", "copymode", "copystat", "copytree"),
}
_stat, _lstat, _access, _readlink, _open = os.stat, os.lstat, os.access, os.readlink, os.open


def stat(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
    """Return what `os.stat` returns, and note that the user's code has asked."""
    _note(path, dir_fd, _note_stat)
    return _stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)


def lstat(path: Any, *, dir_fd: int | None = None) -> os.stat_result:
    """Return what `os.lstat` returns, and note that the user's code has asked."""
    _note(path, dir_fd, _note_stat)
    return _lstat(path, dir_fd=dir_fd)


def access(
    path: Any,
    mode: int,
    *,
    dir_fd: int | None = None,
    effective_ids: bool = False,
    follow_symlinks: bool = True,
) -> bool:
    """Return what `os.access` returns, and note that the user's code has asked."""
    _note(path, dir_fd, lambda observation, name, _: observation.note_question(name))
    return _access(path, mode, dir_fd=dir_fd, effective_ids=effective_ids, follow_symlinks=follow_symlinks)


def readlink(path: Any, *, dir_fd: int | None = None) -> Any:
    """Return what `os.readlink` returns, and note that the user's code has asked."""
    _note(path, dir_fd, lambda observation, name, _: observation.note_link(name))
    return _readlink(path, dir_fd=dir_fd)


def open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    """Return what `os.open` returns; the event that it raises does not tell `dir_fd`."""
    observation = None if dir_fd is None else noting()
    if observation is not None:
        with unobserved(), suppress(Exception):
            _note_opened(observation, path, dir_fd, flags)
    with nullcontext() if observation is None else unobserved():
        return _open(path, flags, mode, dir_fd=dir_fd)


def _note_opened(observation: Observation, path: Any, dir_fd: int | None, flags: int) -> None:
    frame = sys._getframe(2)
    try:
        name = absolute(path, dir_fd)
    except OSError:  # a system without /proc
        if called_for_user(frame):
            observation.unseen["a file in an open folder"] = None
        return
    opened(observation, (name, None, flags), frame)


def _note(path: Any, dir_fd: int | None, note: Callable[[Observation, str, set[str]], None]) -> None:
    """Let `note` know of a question of the user's code, with the functions of Python by which it asks."""
    observation, frame = noting(), sys._getframe(2)
    if observation is not None and not isinstance(path, int) and called_by_user(frame):
        with unobserved(), suppress(Exception):
            functions = functions_of_python(frame)
            if functions.isdisjoint(_THEIR_OWN):
                note(observation, absolute(path, dir_fd), functions)


def _note_stat(observation: Observation, name: str, functions: set[str]) -> None:
    if not functions.isdisjoint(_EXISTENCE) or os.path.isdir(name):  # noqa: PTH112
        observation.note_question(name)
    else:  # its size, or its age
        observation.note_file(name, writes=False)


_REPLACED = {"stat": (_stat, stat), "lstat": (_lstat, lstat), "access": (_access, access)} | {
    "readlink": (_readlink, readlink),
    "open": (_open, open),
}


def replace() -> None:
    """Replace the functions."""
    sets: Any = (os.supports_dir_fd, os.supports_effective_ids, os.supports_fd, os.supports_follow_symlinks)
    for name, (of_python, own) in _REPLACED.items():
        setattr(os, name, own)
        for supporting in sets:
            if of_python in supporting:
                supporting.add(own)


def put_back() -> None:
    """Put the functions of Python back."""
    for name, (of_python, _) in _REPLACED.items():
        setattr(os, name, of_python)
