"""The environment variables that the user's code reads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FrameType
from typing import Any

from trainwright.process.observation.call_origins import called_by_user, called_for_user, origin_of
from trainwright.process.observation.environment_copies import is_for_program
from trainwright.process.observation.record import noting
from trainwright.process.observation.states import set_variables
from trainwright.process.observation.unobserved import unobserved

_Environ: type = type(os.environ)
_COPYING = ("os", "_collections_abc", "collections.abc", __name__)
_THEIR_OWN = ("subprocess", "urllib.request")  # a program's variables, and a loop over those of proxies
# The user's code that has copied all variables last, and where in it: their values are not noted one by one.
_copy: tuple[CodeType | None, int] = (None, 0)


class RecordingEnviron(_Environ):  # type: ignore[misc]
    """The environment variables; those that the user's code reads are noted."""

    def __getitem__(self, key: Any) -> Any:
        """Return a value, and note its name."""
        frame = sys._getframe(1)
        if (observation := noting()) is not None and called_by_user(frame):
            user = _user_of(frame)
            if _copy != (user.f_code, user.f_lasti) and _asker(frame) not in _THEIR_OWN:
                with unobserved():
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
        global _copy  # noqa: PLW0603
        frame = sys._getframe(1)
        if (observation := noting()) is not None and called_by_user(frame):
            user = _user_of(frame)
            _copy = user.f_code, user.f_lasti
            with unobserved():
                is_harmless = _asker(frame) in _THEIR_OWN or is_for_program(user)
            if not is_harmless:
                observation.unseen["all environment variables"] = None
        return iter(super().__iter__())


def _user_of(frame: FrameType) -> FrameType:
    """Return the frame of the user's code that calls Python's library."""
    while origin_of(frame) == "python" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _asker(frame: FrameType) -> str:
    """Return the first module of Python's library, from inside, that asks for another reason than a copy."""
    while origin_of(frame) == "python" and frame.f_back is not None:
        if (name := str(frame.f_globals.get("__name__"))) not in _COPYING:
            return name
        frame = frame.f_back
    return ""


def replace() -> None:
    """Replace the class of `os.environ` and `os.environb`."""
    os.environ.__class__, os.environb.__class__ = RecordingEnviron, RecordingEnviron


def put_back() -> None:
    """Put the class back."""
    os.environ.__class__, os.environb.__class__ = _Environ, _Environ
