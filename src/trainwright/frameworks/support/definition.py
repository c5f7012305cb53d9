"""Describe model objects as text, so that a manifest can hold the description and a resume can compare it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from trainwright.digest import array_buffer, digest, tensor_records
from trainwright.process.object_identity import Identity, NoValueError
from trainwright.records.manifest import WITHOUT_VALUE

# Options that do not define a model: the run sets the threads, and verbosity only changes what is printed.
_IGNORED_OPTIONS = {"n_jobs", "nthread", "thread_count", "num_threads", "verbose", "verbosity"}
_MAX_DEPTH = 6  # levels of nested objects


def of_estimator(model: Any) -> dict[str, str]:
    """Return the class and options of an estimator that follows scikit-learn's conventions (`get_params`)."""
    options = {str(name): value for name, value in model.get_params().items() if value is not None}
    description = {"class": path_of(type(model))}
    for name in sorted(options):
        if name.rpartition("__")[2] not in _IGNORED_OPTIONS:
            description |= describe_value(name, options[name])
    return description


def describe_value(name: str, value: Any) -> dict[str, str]:
    """Return a description of a value and, under dotted names, of its parts.

    Classes and functions are described by import path, arrays by digest, other plain values by `str`.
    """
    return dict(_describe(name, value, _MAX_DEPTH))


def described_attributes(attributes: Mapping[str, Any]) -> dict[str, str]:
    """Return numbers as they are, and hashes of other values; `WITHOUT_VALUE` has the names of the rest."""
    described, without = dict[str, str](), []
    for name, value in attributes.items():
        if type(value) in (bool, int, float):
            described[name] = repr(value)
            continue
        try:
            described[name] = Identity().of(value)
        except (NoValueError, RecursionError) as error:
            without.append(f"{name} ({error})")
    return described | ({WITHOUT_VALUE: ", ".join(without)} if without else {})


def path_of(thing: Any) -> str:
    """Return the import path of a class or function, as `module:qualname`."""
    return f"{thing.__module__}:{thing.__qualname__}"


def _describe(name: str, value: Any, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, np.ndarray) and value.dtype != object:
        yield name, digest(tensor_records([array_buffer("array", value)]))
    elif isinstance(value, np.ndarray | np.generic):
        yield from _describe(name, value.tolist(), depth)
    elif value is None or isinstance(value, str | bool | int | float):
        yield name, str(value)
    else:
        yield name, path_of(value if hasattr(value, "__qualname__") else type(value))
        parts = _parts(value) if depth else {}
        for key, part in parts.items():
            yield from _describe(f"{name}.{key}", part, depth - 1)
        if not (parts or hasattr(value, "__qualname__") or hasattr(value, "get_params")):
            yield from described_attributes({f"{name}, value": value}).items()


def _parts(value: Any) -> Mapping[Any, Any]:
    own = getattr(value, "__dict__", {})
    if isinstance(value, Mapping):
        return {**value, **own}
    if isinstance(value, list | tuple):
        return {**dict(enumerate(value)), **own}
    if isinstance(value, partial):
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    # A function's code is an input of the run, but its closure and defaults are not.
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return {"defaults": value.__defaults__ or (), "closure": cells} if value.__defaults__ or cells else {}
    is_estimator = hasattr(value, "get_params")  # `of_estimator` lists its options under their own names
    return {} if isinstance(value, type) or is_estimator else own
