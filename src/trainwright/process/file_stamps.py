"""Times of files: whether they would show a change.

Writing through a memory map need not change the times at once: they change when a page is first written after
the system has saved it, which takes up to half a minute; in a file system in memory they never change.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

_SETTLED_NS = 60_000_000_000
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")


def shows_changes(file: str, times: Sequence[int], now: int) -> bool:
    """Return whether a change of a file would change its times.

    Args:
        file: The file.
        times: Its times of change (ns).
        now: A time before it was read (ns).
    """
    return max(times) < now - _SETTLED_NS and not _is_in_memory(Path(file).stat().st_dev)


@cache
def _is_in_memory(device: int) -> bool:
    """Return whether a file system is in memory, where a memory map need not change the times of a file."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError):  # outside Linux
        for line in Path("/proc/self/mountinfo").read_text(errors="replace").splitlines():
            if line.split()[2] == number and (kind := re.search(r" - (\S+)", line)) is not None:
                return kind[1] in _IN_MEMORY
    return False
