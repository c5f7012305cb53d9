"""Configs that stand beside data given as Python objects: their data section need not say where the rows come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainyard.config.adapters import Adapters
from trainyard.config.checks import NO_SOURCE
from trainyard.config.emit import inline
from trainyard.config.load import load
from trainyard.errors import ConfigError

OBJECTS = "python:objects"  # what stands for `data.type` where the data are Python objects and the config names none
Overrides = Sequence[str] | Mapping[str, Any]


def laid_over(overrides: Overrides, more: Mapping[str, Any]) -> Overrides:
    """Overrides with more laid over them, by dotted key."""
    if isinstance(overrides, Mapping):
        return {**overrides, **more}
    return [*overrides, *(f"{key}={inline(value)}" for key, value in more.items())]


def beside_objects(source: Path | str | Mapping[str, Any], overrides: Overrides, adapters: Adapters) -> Overrides:
    """The overrides, with a stand-in for `data.type` where there is a data section that names no source.

    Whatever else is wrong is left to who loads the config.
    """
    try:
        load(source, overrides, adapters)
    except ConfigError as error:
        if any((problem.path, problem.message) == ("data", NO_SOURCE) for problem in error.problems):
            return laid_over(overrides, {"data.type": OBJECTS})
    return overrides
