"""Questions about files: whether they are there, how large or old they are."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from trainwright.process.observation.call_origins import called_by_user
from trainwright.process.observation.paths import absolute
from trainwright.process.observation.record import noting
from trainwright.process.observation.unobserved import unobserved

_EXISTENCE = ("exists", "isfile", "isdir", "is_file", "is_dir", "is_mount", "samefile")  # functions of Python
_stat = os.stat


def stat(path: Any, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
    """Return what `os.stat` returns, and note that the user's code has asked."""
    observation = noting()
    frame = sys._getframe(1)
    if observation is not None and not isinstance(path, int) and called_by_user(frame):
        with unobserved(), suppress(Exception):
            name = absolute(path)
            if frame.f_code.co_name in _EXISTENCE or os.path.isdir(name):  # noqa: PTH112
                observation.note_question(name)
            else:  # its size, or its age
                observation.note_file(name, writes=False)
    return _stat(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)


def replace() -> None:
    """Replace the functions of `os`."""
    os.stat = stat
    for supporting in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks):
        supporting.add(stat)


def put_back() -> None:
    """Put the functions of `os` back."""
    os.stat = _stat
