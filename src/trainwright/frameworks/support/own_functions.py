"""Objectives and metrics of the user's, of which no checkpoint holds a state: find those that have one."""

from __future__ import annotations

import dis
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from trainwright.frameworks.support.fingerprint import is_users, named_functions
from trainwright.frameworks.support.object_state import ObjectState, none
from trainwright.frameworks.support.plans import OWN_FUNCTIONS_HINT

_WRITES = {"STORE_GLOBAL": "", "DELETE_GLOBAL": "", "STORE_ATTR": ".", "DELETE_ATTR": "."}
_OF_VIEWS = {"shape", "dtype", "writeable"}  # attributes of arrays, which functions set on their own
# Methods of containers and generators that change them.
_CHANGES = {
    *("append", "extend", "insert", "remove", "pop", "popleft", "appendleft", "clear", "sort", "reverse"),
    *("add", "discard", "update", "setdefault", "popitem", "rotate"),
    *("random", "normal", "uniform", "integers", "choice", "shuffle", "permutation", "standard_normal"),
}
# Methods that a call of the object does not run.
_NOT_CALLED = {
    *("__init__", "__new__", "__post_init__", "__setstate__", "__init_subclass__"),
    *("__repr__", "__str__", "__eq__", "__hash__"),
}


class OwnFunctions:
    """The objective and the metric of a run that are the user's.

    Args:
        functions: Functions and objects by `objective` and `metric`; what is None or a name is left out.
    """

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._roots = {
            name: list({id(part): part for part in own_parts(one)}.values())  # objects may have no hash
            for name, one in functions.items()
            if callable(one) or is_users(type(one))
        }
        self._states = {
            f"{name} {index}" if index else name: ObjectState(root)
            for name, roots in self._roots.items()
            for index, root in enumerate(roots)
        }

    def keeps_state(self) -> str:
        """Return what is seen to be written by the code, as the reason of a lower tier; "" if nothing is."""
        for name, roots in self._roots.items():
            for root in roots:
                for function in _functions_of(root):
                    if written := next(_written(function), None):
                        return (
                            f"the {name} of the model keeps state from call to call ({written} in "
                            f"{function.__qualname__}), which no checkpoint holds; {OWN_FUNCTIONS_HINT}"
                        )
        return ""

    def unsaved(self) -> dict[str, str]:
        """Return a hash of each part of their state, by name; that of global generators is one."""
        if not self._states:
            return {}
        hashes = {
            f"{name}.{at}": sha256
            for name, state in self._states.items()
            for at, sha256 in state.unsaved(none).items()
        }
        return hashes | {"the generators of Python and NumPy": f"{random.getstate()}{_numpy_state()}"}


def _numpy_state() -> str:
    state: Any = np.random.get_state(legacy=False)
    return f"{state['state']['key'].tolist()} {state['state']['pos']} {state['gauss']}"


def own_parts(value: Any) -> Iterator[Any]:
    """Yield the user's functions and objects that a callable is made of; ours may be around them."""
    if isinstance(value, partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from own_parts(part)
    elif isinstance(value, MethodType):
        yield from own_parts(value.__self__)
    elif isinstance(value, FunctionType):
        if not (value.__module__ or "").startswith("trainwright."):
            yield value
            return
        for cell in value.__closure__ or ():
            if callable(cell.cell_contents):
                yield from own_parts(cell.cell_contents)
    elif is_users(type(value)) and not isinstance(value, type):
        yield value


def _functions_of(root: Any) -> Iterator[FunctionType]:
    """Yield the functions that a call may run: methods, and functions of the user's that these name."""
    found = [root] if isinstance(root, FunctionType) else []
    if not found:
        members = [vars(base) for base in type(root).__mro__ if is_users(base)]
        found = [
            value
            for names in members
            for name, value in names.items()
            if isinstance(value, FunctionType) and name not in _NOT_CALLED
        ]
    yield from named_functions(found)


def _written(function: FunctionType) -> Iterator[str]:
    """Yield what a function writes that outlives its call."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    given = zip(names[::-1], (function.__defaults__ or ())[::-1], strict=False)
    own = {name for name, value in given if isinstance(value, list | dict | set)}
    own |= {name for name, value in (function.__kwdefaults__ or {}).items() if isinstance(value, list | dict)}
    yield from _written_by(code, set(code.co_freevars), own | {*names[:1]} & {"self"}, function.__globals__)


def _written_by(code: CodeType, free: set[str], own: set[str], variables: Mapping[str, Any]) -> Iterator[str]:
    """Yield what code writes.

    Args:
        code: The code.
        free: The variables of functions around it, which outlive the call.
        own: Arguments that outlive it: `self`, and defaults that are containers.
        variables: The global variables.
    """
    instructions = [one for one in dis.get_instructions(code) if one.opname != "CACHE"]
    for index, one in enumerate(instructions):
        name = str(one.argval)
        if one.opname in _WRITES and name not in _OF_VIEWS:
            yield f"{_WRITES[one.opname]}{name}"
        elif one.opname in ("STORE_DEREF", "DELETE_DEREF") and name in free:
            yield name
        elif one.opname in ("LOAD_METHOD", "LOAD_ATTR") and name in _CHANGES:
            begin = index - 1
            while begin > 0 and instructions[begin].opname == "LOAD_ATTR":
                begin -= 1
            words = [str(part.argval) for part in instructions[begin:index]]
            if _outlives(instructions[begin], words, free | own, variables):
                yield ".".join([*words, name])
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _written_by(constant, free & set(constant.co_freevars), set(), variables)


def _outlives(
    source: dis.Instruction, words: Sequence[str], names: Collection[str], variables: Mapping[str, Any]
) -> bool:
    """Return whether an object whose method is called outlives the call of the function.

    Args:
        source: The instruction that loads it, or what it is an attribute of.
        words: The name, and those of the attributes.
        names: The local names that outlive the call.
        variables: The global variables.
    """
    if source.opname != "LOAD_GLOBAL":
        return source.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) and source.argval in names
    value = variables.get(str(source.argval))
    # `np.sort(x)` changes nothing, but `np.random.normal()` the process's own generator.
    return not isinstance(value, ModuleType) or "random" in (*words[1:], value.__name__.split(".")[-1])
