"""(kind, name) -> adapter, found by file name or entry point, imported late.

`trackers/mlflow.py` holds `MlflowTracker`; another package offers its own under the entry-point group
`trainyard.trackers`, with the name that configs use and the class as its value. Ours win over others' of the same name.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from trainyard.errors import InputError, ModelError
from trainyard.require import open_process

_PACKAGES = {"framework": "frameworks", "dataset": "datasets", "tracker": "trackers"}


def _class_name(kind: str, module: str) -> str:
    return "".join(part.capitalize() for part in module.split("_")) + kind.capitalize()


@cache
def _modules(kind: str) -> frozenset[str]:
    package = importlib.import_module(f"trainyard.{_PACKAGES[kind]}")
    return frozenset(info.name for info in pkgutil.iter_modules(package.__path__) if info.name != "base")


@cache
def _entry_points(kind: str) -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"trainyard.{_PACKAGES[kind]}")}


def adapter(kind: str, name: str) -> Any:
    """The adapter class `name` of a kind (`framework`, `dataset`, `tracker`).

    Raises:
        InputError: there is none; the message lists those there are.
    """
    if (found := find(kind, name)) is None:
        raise InputError(f"no {kind} {name!r}; there are: {', '.join(names(kind))}")
    return found


@cache
def find(kind: str, name: str) -> Any:
    """The adapter class, or None."""
    if name in _modules(kind):
        module = importlib.import_module(f"trainyard.{_PACKAGES[kind]}.{name}")
        if (found := getattr(module, _class_name(kind, name), None)) is not None:
            return found
    if (point := _entry_points(kind).get(name)) is not None:
        if kind != "framework":  # of which all are looked at, but only one is used
            open_process()
        return point.load()
    return None


@cache
def names(kind: str) -> tuple[str, ...]:
    """The adapters of a kind."""
    candidates = _modules(kind) | _entry_points(kind).keys()
    return tuple(sorted(name for name in candidates if find(kind, name) is not None))


def framework_of(model_type: str) -> str | None:
    """The framework that answers to a short model name."""
    return next(
        (name for name in names("framework") if model_type in adapter("framework", name).models), None
    )


def framework_of_class(cls: type) -> str:
    """The framework of a model class, by the modules of its bases; no framework is imported to find out.

    Raises:
        ModelError: no framework claims any of them.
    """
    for (
        base
    ) in cls.__mro__:  # the nearest counts: XGBoost's and LightGBM's estimators are scikit-learn's, too
        for name in names("framework"):
            if base.__module__.split(".")[0] in adapter("framework", name).base_modules:
                return name
    known = ", ".join(
        f"{name} ({', '.join(adapter('framework', name).base_modules)})" for name in names("framework")
    )
    raise ModelError(
        f"{cls.__module__}:{cls.__qualname__} is no model of a known framework; known are: {known}"
    )


def dataset_of(data_type: str) -> Any:
    """The dataset adapter that answers to `data.type`.

    Raises:
        InputError: none does.
    """
    if ":" in data_type:
        return adapter("dataset", "function")
    for name in names("dataset"):
        if data_type in adapter("dataset", name).names:
            return adapter("dataset", name)
    raise InputError(f"no dataset {data_type!r}; there are: {', '.join(dataset_names())}")


def dataset_names() -> list[str]:
    """The values of `data.type` that some dataset adapter answers to."""
    return [short for name in names("dataset") for short in adapter("dataset", name).names]
