"""The import of XGBoost, and the translation of its errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainwright.errors import TrainwrightError
from trainwright.require import require

# The time, source file and line before the library's message.
_LOG_PREFIX = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


def xgboost() -> Any:
    """Import and return `xgboost`.

    A process that runs nothing but Trainwright does not import scikit-learn along with it: only XGBoost's
    estimators need it.

    Raises:
        MissingExtraError: XGBoost is not installed.
    """
    return require("xgboost", "xgboost", spare="sklearn")


@contextmanager
def translated(what: str, kind: type[TrainwrightError]) -> Iterator[None]:
    """Raise errors of the library and of the user's functions as `kind`, in one line without a C++ stack."""
    try:
        yield
    except TrainwrightError:
        raise
    except Exception as error:
        lines = str(error).splitlines() or [""]
        message = _LOG_PREFIX.sub("", lines[0])
        name = "" if type(error).__name__ == "XGBoostError" else f"{type(error).__name__}: "
        raise kind(f"{what}: {name}{message}; see where with --debug") from error
