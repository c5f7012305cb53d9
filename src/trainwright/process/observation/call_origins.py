"""The code that a call comes from: the user's, ours, Python's or a library's."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
import weakref
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from trainwright.process.module_sources import is_installed

_Origin = Literal["user", "ours", "import", "python", "library"]
_OURS = f"{Path(__file__).parents[2]}{os.sep}"
_WRAPPERS = f"{Path(__file__).parent}{os.sep}"
_PYTHON = tuple(f"{sysconfig.get_paths()[key]}{os.sep}" for key in ("stdlib", "platstdlib"))
# Libraries that read variables for the code that calls them.
_ON_BEHALF = ("decouple", "dotenv", "dynaconf", "environs", "hydra", "omegaconf", "pydantic_settings")
_origins: dict[Any, _Origin] = {}  # by code
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # that the user's code has started


def note_thread(thread: threading.Thread) -> None:
    """Note a thread that the user's code has started."""
    _threads.add(thread)


def called_for_user(frame: FrameType | None) -> bool:
    """Return whether the user's code makes a call, itself or by a library.

    What a library does when it is imported is its own. In a thread that the user's code has started, all is
    the user's, such as a function of a library that a pool runs.
    """
    passed = False  # by code of a library
    while frame is not None:
        origin = origin_of(frame)
        if origin == "user":
            return True
        if origin == "ours" or (origin == "import" and passed):
            return False
        passed = passed or origin == "library"
        frame = frame.f_back
    return threading.current_thread() in _threads


def origin_of(frame: FrameType) -> _Origin:
    """Return whose code a frame runs; `import` is that of Python's import system."""
    code = frame.f_code
    known = _origins.get(code)
    if known is None:
        known = _origins[code] = _origin_of_text(code.co_filename, frame.f_globals)
    return known


def _origin_of_text(file: str, names: Mapping[str, Any]) -> _Origin:
    if file.startswith("<frozen importlib") or file.startswith("<frozen zipimport"):
        return "import"
    if file.startswith("<"):  # made of text: as the module whose names it uses
        module = str(names.get("__file__") or "")
        if not module:
            top = str(names.get("__name__", "")).partition(".")[0]
            return "python" if top in sys.stdlib_module_names - {"__main__"} else "user"
        return _origin_of_file(module)
    return _origin_of_file(file)


@cache
def _origin_of_file(file: str) -> _Origin:
    if file.startswith(_WRAPPERS):  # they stand for what they replace
        return "python"
    if file.startswith(_OURS):
        return "ours"
    if not is_installed(file):
        return "user"
    is_library = f"{os.sep}site-packages{os.sep}" in file or f"{os.sep}dist-packages{os.sep}" in file
    return "python" if file.startswith(_PYTHON) and not is_library else "library"


def functions_of_python(frame: FrameType | None) -> set[str]:
    """Return the functions of Python's library that a call goes through, from inside."""
    names = set()
    while frame is not None and origin_of(frame) == "python":
        names.add(frame.f_code.co_name)
        frame = frame.f_back
    return names


def called_by_user(frame: FrameType | None) -> bool:
    """Return whether the user's code calls a function of Python, itself or by a library for settings."""
    while frame is not None and origin_of(frame) == "python":
        frame = frame.f_back
    if frame is None:
        return False
    is_settings = str(frame.f_globals.get("__name__")).partition(".")[0] in _ON_BEHALF
    return called_for_user(frame) if is_settings else origin_of(frame) == "user"
