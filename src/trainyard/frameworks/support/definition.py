"""What a model that is given as an object is made from, in words that a manifest can hold and two of them be compared by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from trainyard.digest import array_buffer, digest, tensor_records

_NO_MATTER = {
    "n_jobs",
    "nthread",
    "thread_count",
    "num_threads",
    "verbose",
    "verbosity",
}  # of the run, or only seen
_DEPTH = 6  # of objects in objects


def of_estimator(model: Any) -> dict[str, str]:
    """The class and the options of an estimator that keeps to scikit-learn's conventions (`get_params`)."""
    options = {str(name): value for name, value in model.get_params().items() if value is not None}
    found = {"class": path_of(type(model))}
    for name in sorted(options):
        if name.rpartition("__")[2] not in _NO_MATTER:
            found |= in_words(name, options[name])
    return found


def in_words(name: str, value: Any) -> dict[str, str]:
    """A value, and its parts under longer names: classes and functions by import path, arrays by digest."""
    return dict(_described(name, value, _DEPTH))


def path_of(thing: Any) -> str:
    """The import path of a class or a function."""
    return f"{thing.__module__}:{thing.__qualname__}"


def _described(name: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, np.ndarray) and value.dtype != object:
        yield name, digest(tensor_records([array_buffer("array", value)]))
    elif isinstance(value, np.ndarray | np.generic):
        yield from _described(name, value.tolist(), depth)
    elif value is None or isinstance(value, str | bool | int | float):
        yield name, str(value)
    else:
        yield name, path_of(value if hasattr(value, "__qualname__") else type(value))
        for key, part in _parts(value).items() if depth else ():
            yield from _described(f"{name}.{key}", part, depth - 1)


def _parts(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if isinstance(value, partial):
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    if isinstance(value, FunctionType):  # its code is an input; what it was made with is not told by that
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return {"defaults": value.__defaults__ or (), "closure": cells} if value.__defaults__ or cells else {}
    is_estimator = hasattr(value, "get_params")  # whose options are listed by their own names
    return {} if isinstance(value, type) or is_estimator else getattr(value, "__dict__", {})
