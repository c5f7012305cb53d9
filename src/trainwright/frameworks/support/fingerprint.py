"""Fingerprints of Python objects, which reveal state that no checkpoint holds.

A fingerprint is a hash of all that can be reached from a value: items of containers, attributes, `__slots__`,
what closures, partial functions and bound methods hold, and the class attributes of the user's classes.
It does not lead into modules and objects of most libraries: only their type counts. What the functions of a
class keep in global variables, defaults and attributes of their own is found by `kept_by_class`.
"""

from __future__ import annotations

import hashlib
import io
import os
import random
import sys
import threading
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

_FUNCTIONS = 1000  # the most functions of a class that are looked into
LIMIT = 100_000  # the most objects that one fingerprint covers: a fraction of a second
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.generic)
_LIBRARIES = frozenset({"torch", "numpy", *sys.stdlib_module_names} - {"__main__"})
_NOT_USERS = _LIBRARIES | {"trainwright"}
# Classes of libraries whose objects hold state in their attributes.
_OPEN = ("torch.nn.", "torch.optim.", "torch.distributions.")
_ARRAYS = ("array", "numpy", "random", "torch")  # have types of arrays and random generators
_EMPTY = CellType()  # of a variable that has no value yet


class Fingerprint:
    """Hash a value with all that it contains."""

    def __init__(self, shared: frozenset[int] = frozenset()) -> None:
        """Prepare a hash; `shared` are the ids of objects that are saved elsewhere, which are left out."""
        self._shared = shared
        self._seen: dict[int, Any] = {}  # with the objects, lest another one gets the id of one that is gone
        self._hash = hashlib.sha256()
        self.opaque = ""  # the type of an iterator that was met; no two hashes of one are equal

    def of(self, value: Any) -> str:
        """Return the hash of a value; a part that cannot be read counts by its type."""
        stack = [value]
        for _ in range(LIMIT):
            if not stack:
                break
            part = stack.pop()
            self._hash.update(f"<{type(part).__qualname__}>".encode())
            try:
                stack.extend(reversed(self._parts(part)))
            except Exception:  # foreign objects may raise anything, and must not fail a run
                continue
        return self._hash.hexdigest()

    def _parts(self, value: Any) -> list[Any]:
        """Hash what a value is by itself, and return what it contains."""
        if type(value) in _PLAIN or isinstance(value, np.generic):
            self._hash.update(repr(value).encode())
            return []
        if id(value) in self._shared or id(value) in self._seen:
            return []
        self._seen[id(value)] = value  # a container may contain itself
        if isinstance(value, np.ndarray):
            return self._array(value)
        if (content := _content(value)) is not None:
            self._hash.update(content)
            if not isinstance(value, _PLAIN):  # a subclass of a plain type may have attributes
                return []
        if _is_opaque(value):
            self.opaque = type(value).__name__
            self._hash.update(os.urandom(16))
            return []
        return [*_items(value), *_attributes(value)]

    def _array(self, value: np.ndarray[Any, Any]) -> list[Any]:
        self._hash.update(f"{value.shape} {value.dtype}".encode())
        if value.dtype.hasobject:
            return list(value.ravel().tolist())
        self._hash.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        return []


def _is_opaque(value: Any) -> bool:
    """Return whether a value is an iterator or a generator of Python, whose position cannot be saved."""
    return (
        isinstance(value, Iterator)
        and type(value).__module__.partition(".")[0] in _LIBRARIES
        and not isinstance(value, io.IOBase)
    )


def class_attributes(cls: type) -> dict[str, Any]:
    """Return the attributes of a class and of its bases that hold values, if the classes are the user's."""
    return {
        f"{base.__qualname__}.{name}": value
        for base in cls.__mro__
        if is_users(base)
        for name, value in vars(base).items()
        if not (name.startswith("__") or name == "_abc_impl" or isinstance(value, type))
        and not hasattr(type(value), "__get__")  # functions, properties, slots
    }


def is_users(cls: type) -> bool:
    """Return whether a class is defined in the user's own code, and not in an installed package."""
    return _is_users_module(cls.__module__)


def _is_users_module(name: str) -> bool:
    if name.partition(".")[0] in _NOT_USERS:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return "site-packages" not in file and "dist-packages" not in file


def kept_by_class(cls: type) -> dict[str, Any]:
    """Return what a class, if it is the user's, may keep outside of its objects, by its name.

    These are its attributes, and what its functions keep; see `kept_by_function`.
    """
    functions = [function for base in cls.__mro__ if is_users(base) for function in _functions(base)]
    return class_attributes(cls) | _kept_by(functions)


def kept_by_function(function: FunctionType) -> dict[str, Any]:
    """Return what a function of the user's may keep from call to call, by its name.

    These are its defaults, closure and attributes, and the global variables that it names, also in other
    modules of the user; and the same of the user's functions that it names.
    """
    return _kept_by([function] if _is_users_module(function.__module__) else [])


def _kept_by(functions: list[FunctionType]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for function in named_functions(functions):
        found[f"{function.__module__}.{function.__qualname__}"] = function
        for name, value in _named(function):
            if isinstance(value, type):
                found |= class_attributes(value)
            elif not isinstance(value, FunctionType) and _may_hold_state(value):
                found[name] = value
    return found


def named_functions(functions: Iterable[FunctionType]) -> Iterator[FunctionType]:
    """Yield functions, and the functions of the user's that these name, wrap, or are wrapped by."""
    waiting, seen = list(functions), set[int]()
    while waiting and len(seen) < _FUNCTIONS:
        function = waiting.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        yield function
        if isinstance(wrapped := getattr(function, "__wrapped__", None), FunctionType):
            waiting.append(wrapped)
        named = [value for _, value in _named(function)]
        named += [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
        waiting += [
            value for value in named if isinstance(value, FunctionType) and _is_users_module(value.__module__)
        ]


def _functions(cls: type) -> Iterator[FunctionType]:
    """Yield the functions that a class defines: its methods, and those of its properties."""
    for value in vars(cls).values():
        parts = (value, *(getattr(value, name, None) for name in ("__func__", "func", "fget", "fset")))
        yield from (part for part in parts if isinstance(part, FunctionType))


def _named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the global variables that a function names, and those of the user's modules that it names."""
    variables = function.__globals__
    if not _is_users_module(str(variables.get("__name__"))):
        return  # a library's, around one of the user's
    names = list(dict.fromkeys(names_in(function.__code__)))
    for name in names:
        if name not in variables:
            continue
        value = variables[name]
        yield f"{function.__module__}.{name}", value
        if isinstance(value, ModuleType) and _is_users_module(value.__name__):
            yield from ((f"{value.__name__}.{one}", vars(value)[one]) for one in names if one in vars(value))


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of global variables and attributes in code."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def _may_hold_state(value: Any) -> bool:
    """Return whether a global variable holds values, or an object of a class of the user's."""
    name = type(value).__module__
    if isinstance(value, ModuleType):
        return False
    return _is_users_module(name) or name.partition(".")[0] in (
        "builtins",
        "collections",
        "itertools",
        *_ARRAYS,
    )


def fingerprint(value: Any, name: str, using: Fingerprint) -> tuple[str, str]:
    """Return the name of a value, with a remark if it cannot be read, and its hash."""
    value_hash = using.of(value)
    remark = f" (a {using.opaque}, whose position cannot be read)" if using.opaque else ""
    return name + remark, value_hash


def _items(value: Any) -> list[Any]:
    """Return the items of a container, and what a function or method holds."""
    if isinstance(value, Mapping):
        return [len(value), *(part for item in value.items() for part in item)]
    if isinstance(value, list | tuple | deque):
        return [len(value), *value]
    if isinstance(value, set | frozenset):
        return [len(value), *(sorted(repr(part) for part in value) if len(value) < LIMIT else ())]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, FunctionType):
        named = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        # `super()` brings the class, which is looked at by itself.
        cells = [cell.cell_contents for name, cell in named if cell != _EMPTY and name != "__class__"]
        return [value.__qualname__, cells, value.__defaults__, value.__kwdefaults__, value.__dict__]
    return []


def _attributes(value: Any) -> list[Any]:
    """Return the attributes of an object, unless it belongs to a library that keeps no state in them."""
    if isinstance(value, ModuleType | FunctionType | MethodType):
        return []
    if isinstance(value, threading.local | ContextVar):
        return [value.get(None) if isinstance(value, ContextVar) else vars(value)]
    if isinstance(value, type):
        return [value.__qualname__, *class_attributes(value).values()]
    name = f"{type(value).__module__}."
    if name.partition(".")[0] not in _LIBRARIES or name.startswith(_OPEN):
        return [object.__getstate__(value), *class_attributes(type(value)).values()]
    if name.startswith(("torch.", "numpy.")) or isinstance(
        value, Mapping | list | tuple | deque | set | frozenset
    ):
        return []
    # Of the standard library: dates, decimal numbers, namespaces ... Loggers, locks and files refuse.
    reduced = value.__reduce_ex__(4)
    return [reduced] if isinstance(reduced, str) else [*reduced[1:3]]  # arguments and state


def _content(value: Any) -> bytes | None:
    """Return the content of a value that holds bytes or is a random generator, or None for another value."""
    if isinstance(value, _PLAIN):
        return repr(value).encode()
    if isinstance(value, bytearray | array | memoryview):
        return bytes(value)
    state = _generator_state(value)
    return None if state is None else repr(state).encode()


def _generator_state(value: Any) -> Any:
    """Return the state of a random generator, or None for another value."""
    if isinstance(value, np.random.Generator):
        return _listed(value.bit_generator.state)
    if isinstance(value, np.random.BitGenerator):
        return _listed(value.state)
    if isinstance(value, np.random.RandomState):
        return _listed(value.get_state(legacy=False))
    if type(value).__module__.startswith("torch") and type(value).__name__ == "Generator":
        return value.get_state().tolist()
    return value.getstate() if isinstance(value, random.Random) else None


def _listed(state: Any) -> Any:
    """Return the state with its arrays as lists, whose text is not abridged."""
    if isinstance(state, Mapping):
        return {key: _listed(value) for key, value in state.items()}
    return state.tolist() if isinstance(state, np.ndarray) else state
