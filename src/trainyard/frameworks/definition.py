"""What a model that is given as an object is made from, in words that a manifest can hold and two of them be compared by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from trainyard.digest import array_buffer, digest, tensor_records


def of_estimator(model: Any) -> dict[str, str]:
    """The class and the options of an estimator that keeps to scikit-learn's conventions (`get_params`)."""
    options = {str(name): value for name, value in model.get_params().items() if value is not None}
    return {"class": path_of(type(model)), **{name: in_words(options[name]) for name in sorted(options)}}


def in_words(value: Any) -> str:
    """Classes and functions by their import paths, arrays by their digest, other objects by their class."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return digest(tensor_records([array_buffer("array", value)]))
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if value is None or isinstance(value, str | bool | int | float):
        return str(value)
    if isinstance(value, Mapping):
        return json.dumps({str(key): in_words(item) for key, item in value.items()}, sort_keys=True)
    if isinstance(value, list | tuple):
        return json.dumps([in_words(item) for item in value])
    return path_of(value if hasattr(value, "__qualname__") else type(value))


def path_of(thing: Any) -> str:
    """The import path of a class or a function."""
    return f"{thing.__module__}:{thing.__qualname__}"
