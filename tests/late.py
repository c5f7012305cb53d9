"""Libraries that take seconds to import: not in each process that collects the tests."""

from collections.abc import Callable
from typing import Any


class Late:
    """A module that is imported when something of it is first used."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self._load = load

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # what pytest looks for in all that a test module holds
            raise AttributeError(name)
        return getattr(self._load(), name)
