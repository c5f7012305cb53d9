"""The ways to import what is not ours: optional libraries, and what a config names by its import path."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from trainyard.errors import InputError, MissingExtraError


def require(module: str, extra: str) -> ModuleType:
    """Imports `module`, or says which extra of Trainyard brings it.

    Raises:
        MissingExtraError: the library is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # the library is there, but something that it needs is not: its own message says more
        raise MissingExtraError(f"{module.split('.')[0]} is not installed: run `pip install 'trainyard[{extra}]'`") from error


def import_path(path: str) -> Any:
    """What the user's config names as `package.module:attribute`; nothing of it is called.

    The standard library is refused: nothing in it is a model or a data set, and much in it does harm when called.

    Raises:
        InputError: the path is malformed, or leads nowhere; the message says which part.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise InputError(f"{path!r} is no import path: write package.module:name")
    if module_name.split(".")[0] in sys.stdlib_module_names:
        raise InputError(f"{path!r} is refused: {module_name.split('.')[0]!r} belongs to Python's standard library")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise InputError(f"{path!r} cannot be imported: {module_name} needs {error.name!r}, which is not there") from error
        raise InputError(
            f"{path!r} cannot be imported: there is no module {error.name!r}; "
            "it must lie in the working directory or be installed"
        ) from error
    except Exception as error:
        raise InputError(f"{path!r} cannot be imported: {type(error).__name__}: {error}") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = ", ".join(sorted(name for name in vars(module) if not name.startswith("_"))[:12])
            raise InputError(f"{path!r}: {module_name} has no {attribute!r}; it has {names or 'nothing'}")
        found = getattr(found, part)
    return found
