"""Data from a function of the user: `type: package.module:function`.

The function is called with `data.params`. It returns the splits: a mapping {"train": ..., "val": ..., "test":
...}, or a tuple (train, val) or (train, val, test); or it returns all rows to be split: a pair of arrays (X,
y) or a data frame. `trainyard.datasets.rows.objects` lists the types that a split may have.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from trainyard.config.schema import DataConfig
from trainyard.datasets.base import DataBundle
from trainyard.datasets.rows.objects import from_objects
from trainyard.datasets.rows.table import listed
from trainyard.datasets.rows.tabular import refuse_paths
from trainyard.errors import DataError, InputError
from trainyard.require import import_path


class FunctionParams(BaseModel):
    """The function's own arguments, of any name."""

    model_config = ConfigDict(extra="allow", frozen=True)


class FunctionDataset:
    """The data that a function of the user returns."""

    names: ClassVar[Sequence[str]] = ()  # any `package.module:function`
    Params: ClassVar[type[BaseModel]] = FunctionParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        refuse_paths(config)
        self._config = config
        self._arguments = params.model_dump()

    def load(self) -> DataBundle:
        """Import the module and call the function; see `Dataset.load`."""
        function = find_function(self._config.type)
        return from_objects(self._call(function), self._config, f"what {self._config.type} returned")

    def _call(self, function: Callable[..., Any]) -> Any:
        name = self._config.type
        try:
            inspect.signature(function).bind(**self._arguments)
        except TypeError as error:
            arguments = listed(self._arguments) or "nothing"
            raise DataError(
                f"{name}{inspect.signature(function)} was given {arguments}: {error}; see data.params"
            ) from error
        try:
            return function(**self._arguments)
        except Exception as error:
            raise DataError(f"{name} failed: {type(error).__name__}: {error}") from error


def find_function(name: str) -> Callable[..., Any]:
    """Import the function `package.module:function`, without calling it.

    Raises:
        DataError: The function does not exist, or is not a plain one of the user's: classes, builtins and the
            standard library (`os:system`) are refused.
    """
    try:
        function = import_path(name)
    except InputError as error:
        raise DataError(f"data.type: {error}") from error
    if not isinstance(function, FunctionType):
        raise DataError(
            f"data.type: {name!r} is {_kind(function)}, and a Python function is needed: name one that "
            "returns the rows, (X, y) or a data frame, or the splits, (train, val)"
        )
    return function


def _kind(value: Any) -> str:
    """Return what an object is, for messages."""
    return (
        f"the class {value.__name__}" if isinstance(value, type) else f"an object of {type(value).__name__}"
    )
