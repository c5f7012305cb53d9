"""The environment variables that the user's code reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from trainwright.process.observation.call_origins import called_by_user, called_for_user
from trainwright.process.observation.record import noting
from trainwright.process.observation.states import set_variables
from trainwright.process.observation.unobserved import unobserved

_Environ: type = type(os.environ)


class RecordingEnviron(_Environ):  # type: ignore[misc]
    """The environment variables; those that the user's code reads are noted."""

    def __getitem__(self, key: Any) -> Any:
        """Return a value, and note its name."""
        if (observation := noting()) is not None and called_by_user(sys._getframe(1)):
            observation.note_variable(os.fsdecode(key))
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set a value, and note that the user's code does."""
        if noting() is not None and called_for_user(sys._getframe(1)):
            name = os.fsdecode(key)
            first = set_variables[name][1] if name in set_variables else self._data_of(key)
            set_variables[name] = os.fsdecode(value), first
        super().__setitem__(key, value)

    def _data_of(self, key: Any) -> str | None:
        """Return the present value; None without one."""
        with unobserved(), suppress(KeyError):
            return os.fsdecode(super().__getitem__(key))
        return None

    def __iter__(self) -> Iterator[Any]:
        """Yield all names: which of the values are used then cannot be seen."""
        if (observation := noting()) is not None and called_by_user(sys._getframe(1)):
            observation.unseen["all environment variables"] = None
        return iter(super().__iter__())


def replace() -> None:
    """Replace the class of `os.environ` and `os.environb`."""
    os.environ.__class__, os.environb.__class__ = RecordingEnviron, RecordingEnviron


def put_back() -> None:
    """Put the class back."""
    os.environ.__class__, os.environb.__class__ = _Environ, _Environ
