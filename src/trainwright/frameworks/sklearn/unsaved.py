"""State of the user's own estimators that no checkpoint holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, islice
from typing import Any

import numpy as np

from trainwright.frameworks.support.fingerprint import LIMIT, Fingerprint, fingerprint, kept_by_class
from trainwright.types import Array

_MAX_WORK = 10_000  # of finding out whether two views of one array overlap


def fingerprints(estimator: Any) -> dict[str, str]:
    """Return a hash of what the user's classes keep, and which arrays share memory, by name.

    Arrays that are views of one another are stored one by one, so after a resume they share nothing.
    """
    hashes = dict(
        fingerprint(value, name, Fingerprint()) for name, value in kept_by_class(type(estimator)).items()
    )
    if type(estimator).__module__.partition(".")[0] == "sklearn":  # which makes its views again in each step
        return hashes
    by_owner: dict[int, dict[str, Array]] = {}
    for name, array in islice(_arrays(vars(estimator)), LIMIT):
        by_owner.setdefault(id(_owner(array)), {})[name] = array
    for arrays in by_owner.values():
        for (name, array), (other, view) in islice(combinations(arrays.items(), 2), LIMIT):
            if array is not view and _overlap(array, view):
                hashes[f"{name} (which shares memory with {other})"] = "shared"
    return hashes


def _arrays(values: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Yield the arrays among values, and in lists, tuples and dictionaries of them, with their names."""
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            yield name, value
        elif isinstance(value, Mapping):
            yield from _arrays({f"{name}[{key!r}]": item for key, item in value.items()})
        elif isinstance(value, list | tuple):
            yield from _arrays({f"{name}[{index}]": item for index, item in enumerate(value)})


def _owner(array: Array) -> Any:
    """Return the object to which the memory of an array belongs."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array if array.base is None else array.base


def _overlap(one: Array, other: Array) -> bool:
    try:
        return np.shares_memory(one, other, max_work=_MAX_WORK)  # type: ignore[arg-type]  # a number, too
    except np.exceptions.TooHardError:
        return True
