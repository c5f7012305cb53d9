"""Functions of the user's that samples pass through, by import path."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trainwright.errors import DataError, InputError
from trainwright.require import import_path

SampleFunction = Callable[[Mapping[str, Any]], Any]


def sample_function(name: str, key: str) -> Callable[[Any], Any]:
    """Import the function of samples that a key of the config names.

    Raises:
        DataError: There is none.
    """
    try:
        function = import_path(name)
    except InputError as error:
        raise DataError(f"{key}: {error}") from error
    if not callable(function):
        raise DataError(f"{key}: {name!r} is {type(function).__name__}; name a function of samples")
    own: Callable[[Any], Any] = function
    return own
