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
