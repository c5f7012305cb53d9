"""Overrides of a config, in both of their forms: `key.path=value` texts, and a mapping from dotted keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainwright.config.emit import inline

Overrides = Sequence[str] | Mapping[str, Any]


def keys_of(overrides: Overrides) -> list[str]:
    """Return the dotted keys that overrides set."""
    if isinstance(overrides, Mapping):
        return [str(key) for key in overrides]
    return [text.partition("=")[0].strip() for text in overrides]


def with_settings(overrides: Overrides, more: Mapping[str, Any]) -> Overrides:
    """Return overrides, in the form that they have, with more settings: plain values by dotted key.

    Where both set a key, the value in `more` counts.
    """
    if isinstance(overrides, Mapping):
        return {**overrides, **more}
    return [*overrides, *(f"{key}={inline(value)}" for key, value in more.items())]
