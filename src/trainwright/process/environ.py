"""Environment variables that are set for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def temporary_environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables, and restore their earlier values at the end.

    Args:
        variables: Values by name; a variable whose value is None stays as it is.
    """
    values = {name: value for name, value in variables.items() if value is not None}
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


MOST_THREADS = 1024  # as of `training.threads`
_THREADS, _ASKED = "OMP_NUM_THREADS", "TRAINWRIGHT_OMP_NUM_THREADS"


def asked_threads() -> int | None:
    """Return the threads that the user asks for by `OMP_NUM_THREADS`; None without it.

    torchrun sets it to 1 in the processes that it starts where the user has not: that asks for nothing.
    """
    text = os.environ.get(_ASKED)
    if text is None:
        text = os.environ.get(_THREADS, "")
        if text == "1" and "TORCHELASTIC_RUN_ID" in os.environ:
            return None
    return threads_in(text)


def threads_in(text: str) -> int | None:
    """Return the number of threads that a variable holds; None where it is not from 1 to 1024."""
    first = text.partition(",")[0].strip()  # of nested regions
    is_number = first.isdecimal() and len(first) <= 9  # a longer one is no number of threads
    return int(first) if is_number and 0 < int(first) <= MOST_THREADS else None


def threads_of_processes() -> dict[str, str]:
    """Return the variables with which processes that torch starts know what the user asks for."""
    given = os.environ.get(_THREADS)
    return {_THREADS: given or "1", _ASKED: os.environ.get(_ASKED, given or "")}
