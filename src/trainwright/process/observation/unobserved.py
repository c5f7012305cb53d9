"""Threads of which nothing is noted for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

_busy = threading.local()


def is_unobserved() -> bool:
    """Return whether this thread notes something, or is not to be observed."""
    return getattr(_busy, "is_set", False)


@contextmanager
def unobserved() -> Iterator[None]:
    """Note nothing of what this thread does."""
    before = is_unobserved()
    _busy.is_set = True
    try:
        yield
    finally:
        _busy.is_set = before
