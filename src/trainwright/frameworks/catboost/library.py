"""The import of CatBoost, and the translation of its errors."""

from __future__ import annotations

import re
from typing import Any

from trainwright.frameworks.boosting.calls import HINT, translator
from trainwright.require import require

_SOURCE = re.compile(r"^\S+\.(cpp|h|cu\w*):\d+: ")  # the position in CatBoost's sources before its message


def catboost() -> Any:
    """Import and return `catboost`, and check that its weights can be stored.

    Raises:
        MissingExtraError: CatBoost or safetensors is not installed.
    """
    require("safetensors", "catboost")
    return require("catboost", "catboost")


def _readable(text: str) -> tuple[str, str]:
    """Return the message without C++ source positions, and a hint."""
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    line = lines[-1] if "Traceback" in lines[0] else lines[0]  # a user's error ends a traceback
    return _SOURCE.sub("", line), HINT


translated = translator("CatBoostError", _readable)
