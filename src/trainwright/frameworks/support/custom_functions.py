"""Custom objectives and metrics, of which no checkpoint holds a state: find those that have one.

Their code does not show it (`state[key] += 1`, `random.gauss()`, a counter of a library), so they are called
once before the training, and what they can reach is compared with what it was. Then it is put back.
"""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from trainwright.frameworks.support.fingerprint import (
    class_attributes,
    is_users,
    kept_by_class,
    named_functions,
    names_in,
)
from trainwright.frameworks.support.object_state import ObjectState, none
from trainwright.frameworks.support.plans import CUSTOM_FUNCTIONS_HINT
from trainwright.process.global_random import preserved_global_random
from trainwright.process.module_sources import is_installed

_GENERATORS = "the random generators of the process"
_NAMED = 3  # parts of the state that a message names


class CustomFunctions:
    """The custom objective and metric of a run.

    Args:
        functions: Functions and objects by `objective` and `metric`; what is None or a name is left out.
    """

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._roots = {
            f"{name} {index}" if index else name: root
            for name, one in functions.items()
            if callable(one) or is_users(type(one))
            for index, root in enumerate({id(part): part for part in custom_parts(one)}.values())
        }
        self._states = {name: ObjectState(root) for name, root in self._roots.items()}
        self._torch = sys.modules.get("torch")  # a function may import it later, which is no change

    def why_inexact(self, *calls: Callable[[], Any]) -> str:
        """Return which state the functions keep, as the reason of a lower tier; "" if they keep none.

        Args:
            calls: Call them as training does. Errors are left to the training.
        """
        if not self._states:
            return ""
        before, held = self.unsaved(), _Held(self._roots.values())
        drawn = None if self._torch is None else self._torch.get_rng_state()
        with preserved_global_random():
            for call in calls:
                with suppress(Exception):
                    call()
            after = self.unsaved()
        if self._torch is not None:
            self._torch.set_rng_state(drawn)
        changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        if not changed:
            return ""
        held.put_back()
        return (
            f"the objective or metric of the model keeps state from call to call ({_listed(changed)}), which "
            f"no checkpoint holds; {CUSTOM_FUNCTIONS_HINT}"
        )

    def unsaved(self) -> dict[str, str]:
        """Return a hash of each part of their state, by name; that of global generators is one."""
        if not self._states:
            return {}
        hashes = {
            f"{name}.{at}": sha256
            for name, state in self._states.items()
            for at, sha256 in state.unsaved(none).items()
        }
        drawn = None if self._torch is None else self._torch.get_rng_state().tolist()
        return hashes | {_GENERATORS: f"{random.getstate()}{_numpy_state()}{drawn}"}


def _listed(names: Sequence[str]) -> str:
    few = [name.removesuffix(".itself") for name in names[:_NAMED]]
    return ", ".join([*few, *([f"{len(names) - _NAMED} more"] if len(names) > _NAMED else [])])


class _Held:
    """The state that functions and objects may change when they are called, and copies of it.

    These are closures, variables, defaults, and attributes of functions, classes and objects. What cannot be
    copied is left as the call leaves it.
    """

    def __init__(self, roots: Iterable[Any]) -> None:
        self._cells: list[tuple[CellType, Any]] = []
        self._attributes: list[tuple[Any, str, Any]] = []  # of modules and classes
        self._copies: list[tuple[Any, Any]] = []
        values = list(roots)
        functions = [root for root in values if isinstance(root, FunctionType)]
        for cls in [type(root) for root in values if not isinstance(root, FunctionType)]:
            functions += [one for one in kept_by_class(cls).values() if isinstance(one, FunctionType)]
            values += self._held_by_class(cls)
        for function in named_functions(functions):
            values += self._held_by(function)
        memo: dict[int, Any] = {}
        for value in values:
            if not isinstance(value, FunctionType | ModuleType | type) and id(value) not in memo:
                with suppress(Exception):  # foreign objects may raise anything
                    self._copies.append((value, copy.deepcopy(value, memo)))

    def _held_by_class(self, cls: type) -> list[Any]:
        own = [(base, name) for base in cls.__mro__ if is_users(base) for name in class_attributes(base)]
        held = [(base, name.rpartition(".")[2]) for base, name in own]
        self._attributes += [(base, name, vars(base)[name]) for base, name in held if name in vars(base)]
        return [vars(base)[name] for base, name in held if name in vars(base)]

    def _held_by(self, function: FunctionType) -> list[Any]:
        values = [
            function.__dict__,
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
        ]
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # it is empty
                self._cells.append((cell, cell.cell_contents))
                values.append(cell.cell_contents)
        names = list(names_in(function.__code__))
        homes = [module for module in [sys.modules.get(function.__module__)] if module is not None]
        for home in homes:
            for name in names:
                if name in vars(home):
                    value = vars(home)[name]
                    self._attributes.append((home, name, value))
                    values.append(value)
                    if (
                        isinstance(value, ModuleType)
                        and value not in homes
                        and not is_installed(str(getattr(value, "__file__", "")))
                    ):
                        homes.append(value)
                    if isinstance(value, type):
                        values += self._held_by_class(value)
        return values

    def put_back(self) -> None:
        """Give all that was held the values that it had."""
        for cell, value in self._cells:
            cell.cell_contents = value
        for holder, name, value in self._attributes:
            setattr(holder, name, value)
        for value, before in self._copies:
            with suppress(Exception):  # foreign objects may raise anything
                _restore(value, before)


def _restore(value: Any, before: Any) -> None:
    """Give an object the content of a copy."""
    if isinstance(value, np.ndarray):
        value[...] = before
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = before.bit_generator.state
    elif isinstance(value, random.Random):
        value.setstate(before.getstate())
    elif hasattr(value, "get_state") and hasattr(value, "set_state"):  # generators of NumPy and torch
        value.set_state(before.get_state())
    elif isinstance(value, list | deque):
        value.clear()
        value.extend(before)
    elif isinstance(value, dict | set):
        value.clear()
        value.update(before)
    elif hasattr(value, "__dict__"):
        vars(value).clear()
        vars(value).update(vars(before))


def _numpy_state() -> str:
    state: Any = np.random.get_state(legacy=False)
    return f"{state['state']['key'].tolist()} {state['state']['pos']} {state['gauss']}"


def custom_parts(value: Any) -> Iterator[Any]:
    """Yield the user's functions and objects that a callable is made of; ours may be around them."""
    if isinstance(value, partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from custom_parts(part)
    elif isinstance(value, MethodType):
        yield from custom_parts(value.__self__)
    elif isinstance(value, FunctionType):
        if not (value.__module__ or "").startswith("trainwright."):
            yield value
            return
        for cell in value.__closure__ or ():
            if callable(cell.cell_contents):
                yield from custom_parts(cell.cell_contents)
    elif is_users(type(value)) and not isinstance(value, type):
        yield value
