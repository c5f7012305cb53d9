"""Data from a function or class of the user: `type: package.module:function`.

The function is called with `data.params`. It returns the splits: a mapping {"train": ..., "val": ..., "test":
...}, or a tuple (train, val) or (train, val, test); or it returns all rows to be split: a pair of arrays (X,
y) or a data frame. A class of map-style data sets is constructed in the same way: once, for training, or for
each split if its constructor takes `split` (train, val, test). `trainwright.datasets.samples.objects` lists
the types that a split may have.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, LoadRequest
from trainwright.datasets.samples.objects import from_objects, is_map_style
from trainwright.datasets.tables.tabular import refuse_paths
from trainwright.errors import DataError, InputError
from trainwright.numerals import listed
from trainwright.require import import_path
from trainwright.types import SPLITS, SplitName

log = logging.getLogger("trainwright")


class FunctionParams(BaseModel):
    """The arguments that the user's function takes, under any name."""

    model_config = ConfigDict(extra="allow", frozen=True)


class FunctionDataset:
    """A data set returned by a user's function."""

    names: ClassVar[Sequence[str]] = ()  # any `package.module:function`
    Params: ClassVar[type[BaseModel]] = FunctionParams

    def __init__(self, config: DataConfig, params: BaseModel) -> None:
        refuse_paths(config)
        self._config = config
        self._arguments = params.model_dump()

    def load(self, request: LoadRequest) -> DataBundle:
        """Import the module and call the function; see `Dataset.load`."""
        function = find_function(self._config.type)
        source = f"what {self._config.type} returned"
        return from_objects(self._call(function), self._config, source, request)

    def _call(self, function: Callable[..., Any]) -> Any:
        name = self._config.type
        if isinstance(function, type) and _takes_split(function) and "split" not in self._arguments:
            return self._by_split(function)
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
            raise DataError(
                f"{name} failed: {type(error).__name__}: {error}; see where with --debug"
            ) from error

    def _by_split(self, cls: type) -> dict[SplitName, Any]:
        """Construct a data set for each split; the class need not have a validation or test split."""
        parts: dict[SplitName, Any] = {}
        for name in SPLITS:
            try:
                parts[name] = cls(**self._arguments, split=name)
            except (KeyError, OSError, ValueError) as error:
                if name == "train":
                    raise DataError(
                        f"{self._config.type} failed: {type(error).__name__}: {error}; see where with --debug"
                    ) from error
                log.info("data: %s has no %s split: %s", self._config.type, name, error)
        return parts


def _takes_split(cls: type) -> bool:
    return "split" in inspect.signature(cls).parameters


def find_function(name: str) -> Callable[..., Any]:
    """Import the function or class `package.module:name`, without calling it.

    Raises:
        DataError: It does not exist, or is neither a plain function of the user's nor a class of map-style
            data sets: builtins and the standard library (`os:system`) are refused.
    """
    try:
        function = import_path(name)
    except InputError as error:
        raise DataError(f"data.type: {error}") from error
    if isinstance(function, type) and not is_map_style(function):
        raise DataError(
            f"data.type: {name!r} is a class without __len__ and __getitem__; name a class of map-style data "
            "sets, or a function that returns the splits"
        )
    if not isinstance(function, FunctionType | type):
        raise DataError(
            f"data.type: {name!r} is an object of {type(function).__name__}; name a function that returns "
            "the rows, (X, y) or a data frame, or the splits, (train, val), or a class of map-style data sets"
        )
    return function
