"""Weights of classes, given by their labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainwright.errors import InputError
from trainwright.types import Array, DataInfo

_SHOWN = 8  # classes that a message names


def of_classes(weights: Mapping[str, float], info: DataInfo, key: str) -> Array:
    """Return the weight of each class, (classes,) float64; of classes without one it is 1.

    Args:
        weights: By label, as a config spells it.
        info: The data.
        key: Where they are given, for messages.

    Raises:
        InputError: A label is not a class, or a weight is negative.
    """
    for label, weight in weights.items():
        if weight < 0:
            raise InputError(f"{key}: the weight of {label!r} is {weight:g}; give numbers of at least 0")
    by_class, left = np.ones(info.outputs), dict(weights)
    for index, label in enumerate(info.classes or ()):
        for spelling in _spellings(label):
            by_class[index] = left.pop(spelling, by_class[index])
    if left:
        known = [str(label) for label in info.classes or ()]
        shown = ", ".join(known[:_SHOWN]) + (
            f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
        )
        raise InputError(f"{key}: there is no class {next(iter(left))!r}; the classes are {shown}")
    return by_class


def _spellings(label: Any) -> set[str]:
    """Return the config keys that stand for a label: `1` and `1.0`, `true` and `True`."""
    plain = label.item() if isinstance(label, np.generic) else label
    spellings = {str(plain)}
    if isinstance(plain, bool):
        spellings.add(str(plain).lower())
    elif isinstance(plain, float) and plain.is_integer():
        spellings.add(str(int(plain)))
    elif isinstance(plain, int):
        spellings.add(str(float(plain)))
    return spellings
