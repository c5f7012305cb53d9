"""Bring your own data: `type: package.module:function`.

The function is called with `data.params` and returns the splits: a mapping {"train": ..., "val": ..., "test": ...}, a tuple
(train, val) or (train, val, test), or all rows, to be divided: a pair of arrays (X, y) or a data frame.
See `trainyard.datasets.objects` for what a split may be.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Sequence
from types import FunctionType, ModuleType
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from trainyard.config.schema import DataConfig
from trainyard.datasets.base import DataBundle
from trainyard.datasets.objects import from_objects
from trainyard.datasets.table import listed, nearest
from trainyard.datasets.tabular import refuse_paths
from trainyard.errors import DataError


class FunctionParams(BaseModel):
    """The function's own arguments, whatever they are called."""

    model_config = ConfigDict(extra="allow", frozen=True)


class FunctionDataset:
    """What a function of the user's returns."""

    names: ClassVar[Sequence[str]] = ()  # any `package.module:function`
    Params: ClassVar[type[BaseModel]] = FunctionParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        refuse_paths(config)
        self._config = config
        self._arguments = params.model_dump()

    def load(self) -> DataBundle:
        """Imports the module and calls the function; see `Dataset.load`."""
        function = find_function(self._config.type)
        return from_objects(self._call(function), self._config, f"what {self._config.type} returned")

    def _call(self, function: Callable[..., Any]) -> Any:
        name = self._config.type
        try:
            inspect.signature(function).bind(**self._arguments)
        except TypeError as error:
            given = listed(self._arguments) or "nothing"
            raise DataError(f"{name}{inspect.signature(function)} was given {given}: {error}; see data.params") from error
        try:
            return function(**self._arguments)
        except Exception as error:
            raise DataError(f"{name} failed: {type(error).__name__}: {error}") from error


def find_function(name: str) -> Callable[..., Any]:
    """The function `package.module:function`, without calling anything of it.

    Raises:
        DataError: there is none, or it is no plain Python function of the user's: classes, builtins and the standard
            library (`os:system`) are refused.
    """
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute.isidentifier():
        raise DataError(f"data.type: {name!r} is no package.module:function")
    if module_name.split(".")[0] in sys.stdlib_module_names:
        raise DataError(
            f"data.type: {name!r} is part of Python's standard library, which holds no datasets; name a function of yours"
        )
    function = getattr(_imported(module_name), attribute, None)
    if function is None:
        known = [key for key, value in vars(sys.modules[module_name]).items() if isinstance(value, FunctionType)]
        raise DataError(f"data.type: module {module_name} has no function {attribute!r}; {nearest(attribute, known)}")
    if not isinstance(function, FunctionType):
        raise DataError(
            f"data.type: {name!r} is no Python function but {type(function).__name__}; name a function that returns the splits"
        )
    if function.__module__.split(".")[0] in sys.stdlib_module_names:
        raise DataError(
            f"data.type: {name!r} comes from Python's standard library ({function.__module__}); name a function of yours"
        )
    return function


def _imported(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise DataError(f"data.type: {module} needs {error.name}, which is not installed") from error
        raise DataError(
            f"data.type: there is no module {error.name!r}; it must be installed, or lie in the folder where trainyard is started"
        ) from error
    except Exception as error:
        raise DataError(f"data.type: importing {module} failed: {type(error).__name__}: {error}") from error
