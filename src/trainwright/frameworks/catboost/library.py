"""The import of CatBoost, and the translation of its errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainwright.errors import TrainwrightError
from trainwright.require import require

_SOURCE = re.compile(r"^\S+\.(cpp|h|cu\w*):\d+: ")  # the position in CatBoost's sources before its message


def catboost() -> Any:
    """Import and return `catboost`, and check that its weights can be stored.

    Raises:
        MissingExtraError: CatBoost or safetensors is not installed.
    """
    require("safetensors", "catboost")
    return require("catboost", "catboost")


@contextmanager
def translated(what: str, kind: type[TrainwrightError]) -> Iterator[None]:
    """Raise errors of the library and of the user's objects as `kind`, without C++ source positions."""
    try:
        yield
    except TrainwrightError:
        raise
    except Exception as error:
        name = "" if type(error).__name__ == "CatBoostError" else f"{type(error).__name__}: "
        lines = [line for line in str(error).splitlines() if line.strip()] or [""]
        line = lines[-1] if "Traceback" in lines[0] else lines[0]  # a user's error ends a traceback
        raise kind(f"{what}: {name}{_SOURCE.sub('', line)}; see where with --debug") from error
