"""The identity of an object that is given in Python: its values, and the code that it leads to.

The identity of a value is a hash that another process gives it, too: it depends on no address, and not on the
order of a set. Objects count by their classes and attributes, functions by what they were compiled to, by
their defaults and closures, arrays and tensors by their bytes.

A file may hold code, but not what becomes of it in a process: `Net.SCALE = 3`, `OPTIONS["k"] = 3`, another
cell of a notebook. So the user's classes that a value leads to, and the global variables that the user's own
functions name, are hashed as they are in memory, each by itself. Code of libraries counts by its name.
"""

from __future__ import annotations

import dis
import hashlib
import sys
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import Enum
from functools import cache, cached_property, partial, partialmethod
from itertools import islice
from types import (
    BuiltinFunctionType,
    CodeType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from trainwright.process.module_sources import is_installed

_SIMPLE = (type(None), bool, int, float, complex, str, bytes)
_FIXED = (*_SIMPLE, type, FunctionType)  # what the code that reads a variable does not change in place
_DEPTH = 200  # levels of nested values
_CODE_ITEMS = 1000  # of a container that are looked at where only code is of interest
_DATA_LIBRARIES = {"numpy", "pandas", "polars", "pyarrow", "datasets", "tensorflow", "h5py"}  # hold no code
# Of every class, or made when it is defined.
_NOT_OWN = {"__module__", "__qualname__", "__dict__", "__weakref__", "__doc__", "__firstlineno__"}
_NOT_OWN |= {"__static_attributes__", "__annotations__", "_abc_impl", "__abstractmethods__", "__slotnames__"}
# Where members of classes hold functions: methods of a class, properties, `lru_cache` and their like.
_HOLDERS = ("__func__", "fget", "fset", "fdel", "func", "dispatcher", "__wrapped__")


class NoValueError(Exception):
    """An object has no value that another process could compare, such as an open file."""


class Identity:
    """The identity of values, and the code that they lead to.

    Attributes:
        code: The SHA-256 of classes and functions of the user's, and of the global variables that these name:
            `module:name`.
        modules: The modules of the user's that the values lead to.
        without_value: The variables that have no value.
    """

    def __init__(self, *, with_containers: bool = True) -> None:
        """Prepare to look at values.

        Args:
            with_containers: Whether variables that may change while the code runs, such as caches of a data
                set, count.
        """
        self._with_containers = with_containers
        self._noted: dict[tuple[str, int], Any] = {}  # with the values, lest another gets the id of one
        self._waiting: list[tuple[str, Any]] = []
        self.code: dict[str, str] = {}
        self.modules: set[str] = set()
        self.without_value: list[str] = []

    def of(self, value: Any) -> str:
        """Return the hash of a value; the code that it leads to is not looked at.

        Raises:
            NoValueError: It has none.
        """
        walk = _Walk(self)
        walk.add(value)
        if walk.problem:
            raise NoValueError(walk.problem)
        return walk.sha256()

    def follow(self, values: Iterable[Any]) -> None:
        """Find the code that some values lead to."""
        for value in values:
            _Walk(self, with_arrays=False).add(value)
        while self._waiting:
            name, value = self._waiting.pop()
            walk = _Walk(self)
            for part in _class_parts(value, self) if isinstance(value, type) else [value]:
                walk.add(part)
            if walk.problem and name not in self.without_value:
                self.without_value.append(name)
            # Two classes of one name may be alive, such as those that a function makes.
            both = f"{self.code[name]} {walk.sha256()}" if name in self.code else walk.sha256()
            self.code[name] = _digest(both.encode()) if name in self.code else both

    def note(self, name: str, value: Any) -> None:
        """Note a class, a function or a variable, to be looked at by itself."""
        is_fixed = isinstance(value, _FIXED)
        if (is_fixed or self._with_containers) and (name, id(value)) not in self._noted:
            self._noted[name, id(value)] = value
            self._waiting.append((name, value))


class _Walk:
    """The hash of one value.

    Args:
        identity: Takes in the code that the value leads to.
        with_arrays: Whether arrays, and all items of long containers, count.
    """

    def __init__(self, identity: Identity, *, with_arrays: bool = True) -> None:
        self._identity, self._with_arrays = identity, with_arrays
        self._hash = hashlib.sha256()
        self._seen: dict[int, tuple[int, Any]] = {}  # with the objects, lest another gets the id of one
        self.problem = ""  # why the value has none

    def sha256(self) -> str:
        return self._hash.hexdigest()

    def add(self, value: Any, depth: int = 0) -> None:
        """Hash a value with all that it leads to."""
        self._hash_text(f"{type(value).__module__}.{type(value).__qualname__}")
        if type(value) in _SIMPLE:
            self._hash_text(repr(value))
            return
        if id(value) in self._seen:
            self._hash_text(f"#{self._seen[id(value)][0]}")
            return
        self._seen[id(value)] = len(self._seen), value
        try:
            if depth > _DEPTH:
                raise NoValueError("is nested too deeply")
            for part in self._parts(value):
                self.add(part, depth + 1)
        except (NoValueError, RecursionError) as error:
            self.problem = self.problem or str(error)
            self._hash_text(f"without a value: {error}")

    def _hash_text(self, text: str) -> None:
        self._hash.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))

    def _parts(self, value: Any) -> Iterator[Any]:
        """Hash what a value is by itself, and yield what it leads to."""
        if isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, MethodType):
            yield from (value.__func__, value.__self__)
        elif isinstance(value, ModuleType):
            self._module(value)
        elif isinstance(value, partial | partialmethod):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, Enum):
            yield from (type(value), value.name, value.value)
        elif type(value) in (list, tuple, dict, MappingProxyType):
            yield len(value)
            mapping = not isinstance(value, list | tuple)
            yield from (
                self._few(part for item in value.items() for part in item) if mapping else self._few(value)
            )
        elif type(value) in (set, frozenset):
            yield sorted(self._item_hash(part) for part in self._few(value))
        elif isinstance(value, BuiltinFunctionType):
            yield from (f"{value.__module__}.{value.__qualname__}", value.__self__)
        elif isinstance(value, weakref.ReferenceType):
            yield value()
        else:
            yield from self._object(value)

    def _few(self, items: Iterable[Any]) -> Iterable[Any]:
        return items if self._with_arrays else islice(items, _CODE_ITEMS)

    def _item_hash(self, value: Any) -> str:
        """Return the hash of an item of a set by itself."""
        walk = _Walk(self._identity, with_arrays=self._with_arrays)
        walk.add(value)
        self.problem = self.problem or walk.problem
        return walk.sha256()

    def _object(self, value: Any) -> Iterator[Any]:
        """Hash an array or a tensor, or yield the class and the state of another object."""
        if (parts := _array_parts(value, self._with_arrays)) is not None:
            yield from (parts, {**getattr(value, "__dict__", {})})
            return
        cls = type(value)
        yield cls
        if isinstance(wrapped := getattr(value, "__wrapped__", None), FunctionType):  # by `lru_cache`
            yield wrapped
        elif (parts_of_module := _module_parts(value)) is not None:
            yield parts_of_module
        elif not self._with_arrays and hasattr(value, "_flatten_layers"):  # of Keras
            yield [type(layer) for layer in value._flatten_layers()]
        elif _is_library_module(cls.__module__):
            if self._with_arrays or cls.__module__.partition(".")[0] not in _DATA_LIBRARIES:
                yield from _reduced(value)
        else:
            yield _own_attributes(value)
            if any(map(_may_hold_more, cls.__mro__)):
                yield from _reduced(value)

    def _function(self, function: FunctionType) -> Iterator[Any]:
        self._hash_text(f"{function.__module__}:{function.__qualname__}")
        if hasattr(function, "registry") and hasattr(function, "dispatch"):  # by `singledispatch`
            yield dict(function.registry)
            return
        yield [cell.cell_contents for cell in function.__closure__ or () if _is_full(cell)]
        if wrapped := getattr(function, "__wrapped__", None):
            yield wrapped
        if _is_library_module(function.__globals__.get("__name__")):
            return
        yield from (function.__defaults__, function.__kwdefaults__)
        yield {name: one for name, one in vars(function).items() if name != "__wrapped__"}
        self._hash_text(_code_text(function.__code__))
        self._variables(function)
        if not self._with_arrays:
            self._identity.note(f"{function.__module__}:{function.__qualname__}", function)

    def _variables(self, function: FunctionType) -> None:
        """Note the global variables that a function names, and those of the user's modules that it names."""
        variables, home = function.__globals__, str(function.__globals__.get("__name__"))
        imported = [one.argval for one in _instructions(function.__code__) if one.opname == "IMPORT_NAME"]
        self._identity.modules.update([home, *imported])
        for names in dict.fromkeys(_names_in(function.__code__)):
            if names[0] not in variables:
                continue
            module, name, value = home, names[0], variables[names[0]]
            for attribute in names[1:]:
                if not isinstance(value, ModuleType) or _is_library_module(value.__name__):
                    break
                self._module(value)
                module, name, value = value.__name__, attribute, vars(value).get(attribute)
            if isinstance(value, ModuleType):
                self._hash_text(name)
                self._module(value)
            elif isinstance(value, FunctionType | type | BuiltinFunctionType) and _is_library_module(
                value.__module__
            ):
                self._hash_text(f"{name} {value.__module__}:{value.__qualname__}")
            else:
                self._identity.note(f"{module}:{name}", value)

    def _module(self, module: ModuleType) -> None:
        self._identity.modules.add(module.__name__)
        self._hash_text(module.__name__)

    def _class(self, cls: type) -> Iterator[Any]:
        self._hash_text(f"{cls.__module__}:{cls.__qualname__}")
        if not _is_library_module(cls.__module__):
            self._identity.modules.add(cls.__module__)
            self._identity.note(f"{cls.__module__}:{cls.__qualname__}", cls)
        yield from ()


def _class_parts(cls: type, identity: Identity) -> Iterator[Any]:
    """Yield the bases and functions of a class of the user's, and note its other attributes."""
    yield from (cls.__bases__, type(cls))
    for name, member in vars(cls).items():
        held = [one for one in (getattr(member, holder, None) for holder in _HOLDERS) if one is not None]
        if isinstance(member, FunctionType | partialmethod):
            yield from (name, member)
        elif hasattr(type(member), "__get__") and _is_library_module(type(member).__module__):
            yield from (name, held)
        elif name not in _NOT_OWN:
            identity.note(f"{cls.__module__}:{cls.__qualname__}.{name}", member)


def _own_attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object of the user's class by name, and the items of a container.

    What a `cached_property` has computed follows from the others, unless it was set to something else.
    """
    cls = type(value)
    slots = {
        name: member
        for base in cls.__mro__
        for name, member in vars(base).items()
        if isinstance(member, MemberDescriptorType)
    }
    own = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(
        value, "__dict__", {}
    )
    computed = {name for name in own if _is_computed(getattr(cls, name, None), value, own[name])}
    kept = {name: own[name] for name in sorted(own.keys() - computed)}
    kinds: tuple[Any, ...] = (dict, list, tuple, set, frozenset, str, bytes, int, float)
    items = [kind(value) for kind in kinds if isinstance(value, kind)]
    return {**kept, "its items": items} if items else kept


def _is_computed(member: Any, owner: Any, value: Any) -> bool:
    """Return whether an attribute of an object is what its `cached_property` returns."""
    if not isinstance(member, cached_property):
        return False
    try:
        return Identity().of(member.func(owner)) == Identity().of(value)
    except Exception:  # whatever the user's code raises
        return False


def _may_hold_more(base: type) -> bool:
    """Return whether objects of a class may hold more than their attributes."""
    is_reduced = not {"__reduce__", "__reduce_ex__"}.isdisjoint(vars(base))
    return base is not object and (is_reduced or _is_library_module(base.__module__))


def _reduced(value: Any) -> Iterator[Any]:
    """Yield what a copy of an object is made from."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception as error:
        raise NoValueError(f"is a {type(value).__qualname__}") from error
    if isinstance(reduced, str):
        yield reduced
        return
    yield from (list(part or ()) if index in (3, 4) else part for index, part in enumerate(reduced))


def _is_library_module(name: Any) -> bool:
    """Return whether a module belongs to Python or to an installed package."""
    top = str(name).partition(".")[0]
    if top in sys.stdlib_module_names - {"__main__"} or top == "builtins":
        return True
    # Some of the modules within an extension have no file.
    files = [getattr(sys.modules.get(one), "__file__", None) for one in (str(name), top)]
    return any(bool(file) and is_installed(str(file)) for file in files)


def _is_full(cell: Any) -> bool:
    with suppress(ValueError):
        return cell.cell_contents is not cell
    return False


def _instructions(code: CodeType) -> Iterator[dis.Instruction]:
    """Yield the instructions of code and of the functions within it."""
    yield from dis.get_instructions(code)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)


def _names_in(code: CodeType) -> Iterator[tuple[str, ...]]:
    """Yield the global variables that code reads, each with the attributes that it takes of them at once."""
    chain: tuple[str, ...] = ()
    for one in _instructions(code):
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain = (*chain, str(one.argval))
        elif one.opname != "EXTENDED_ARG":
            if chain:
                yield chain
            chain = (str(one.argval),) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ()


def _code_text(code: CodeType) -> str:
    """Return instructions, constants and names of code, without lines and files."""
    constants = [_constant(one) for one in code.co_consts]
    names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
    counts = [code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags]
    return repr([code.co_code.hex(), constants, names, counts, code.co_exceptiontable.hex()])


def _constant(value: Any) -> str:
    if isinstance(value, CodeType):
        return _code_text(value)
    if isinstance(value, tuple | frozenset):
        parts = [_constant(one) for one in value]
        return f"{type(value).__name__}{parts if isinstance(value, tuple) else sorted(parts)}"
    return repr(value)


def _array_parts(value: Any, with_arrays: bool) -> list[Any] | None:
    """Return shape, dtype and bytes of an array or a tensor; None for another object."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        content = (
            value.tolist()
            if value.dtype.hasobject
            else _digest(numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8).data)
        )
        return [value.shape, value.dtype.str, content] if with_arrays else []
    if numpy is not None and isinstance(value, numpy.dtype | numpy.generic):
        return [repr(value)]
    return _torch_parts(value, with_arrays)


def _torch_parts(value: Any, with_arrays: bool) -> list[Any] | None:
    """Return the content of a tensor, or of what describes one; None for another object."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(value, torch.Tensor):
        return _tensor_parts(value, torch) if with_arrays else []
    if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
        return [str(value)]
    if isinstance(value, torch.Size):
        return [tuple(value)]
    return [value.get_state().numpy().tobytes()] if isinstance(value, torch.Generator) else None


def _tensor_parts(tensor: Any, torch: Any) -> list[Any]:
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise NoValueError(f"is a tensor of layout {tensor.layout} on {tensor.device}")
    host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    content = _digest(host.reshape(-1).view(torch.uint8).numpy().data)
    return [*tensor_layout(tensor), content]


def tensor_layout(tensor: Any) -> list[Any]:
    """Return what a tensor is besides its values: shape, order in memory, type, whether it is trained."""
    known = [str(tensor.layout), str(tensor.dtype), tensor.requires_grad]
    if hasattr(tensor, "materialize"):  # its shape is not known yet
        return known
    strides = tensor.stride() if known[0] == "torch.strided" else ()
    return [*known, tuple(tensor.shape), tuple(strides)]


def _digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def _module_parts(value: Any) -> dict[str, Any] | None:
    """Return the attributes, tensors, parts and hooks of a module of torch; None for another object."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.nn.Module):
        return None
    tensors = {**value._parameters, **value._buffers}
    return {**module_attributes(value), **tensors, **value._modules, "its hooks": module_hooks(value)}


@cache
def _internal() -> frozenset[str]:
    """Return the attributes that torch gives to every module."""
    fresh = vars(sys.modules["torch"].nn.Module())
    return frozenset(fresh) | {"_is_torch_compile", "_dynamo_static_input_type"}


def module_attributes(module: Any) -> dict[str, Any]:
    """Return the attributes of a module of torch, and its buffers that no file of weights holds.

    Its mode is left out: training begins in training mode.
    """
    own = _own_attributes(module)
    quiet = {name: module._buffers[name] for name in sorted(module._non_persistent_buffers_set)}
    return {**{name: one for name, one in own.items() if name not in _internal()}, **quiet}


def module_hooks(module: Any) -> dict[str, list[Any]]:
    """Return the hooks of a module of torch by their kind, in the order of their calls."""
    kinds = sorted(name for name in _internal() if name.endswith("_hooks"))
    with_keywords = module._forward_hooks_with_kwargs.keys() | module._forward_pre_hooks_with_kwargs.keys()
    return {
        kind: [(hook, number in with_keywords) for number, hook in hooks.items()]
        for kind in kinds
        if (hooks := getattr(module, kind, None))
    }
