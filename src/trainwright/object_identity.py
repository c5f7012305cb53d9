"""What identifies an object that is given in Python: its values, and the code that no file holds.

The identity of a value is a hash that another process gives it, too: it depends on no address, and not on the
order of a set. Objects count by their classes and attributes, functions by their code, arrays and tensors by
their bytes. Code that was imported from a file is identified by that file; what was defined in a notebook, at
a prompt or by `python -c` by the instructions, constants and names that it was compiled to, and by the global
variables that it reads.
"""

from __future__ import annotations

import dis
import hashlib
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from enum import Enum
from functools import cache, partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from trainwright.module_sources import is_installed

_SIMPLE = (type(None), bool, int, float, complex, str, bytes)
_DEPTH = 200  # levels of nested values
# Of every class, or made when it is defined.
_NOT_OWN = {"__module__", "__qualname__", "__dict__", "__weakref__", "__doc__", "__firstlineno__"}
_NOT_OWN |= {"__static_attributes__", "__annotations__", "_abc_impl", "__abstractmethods__", "__slotnames__"}


class NoValueError(Exception):
    """An object has no value that another process could compare, such as an open file."""


class Identity:
    """The identity of values, and the code that they lead to.

    Attributes:
        code: The SHA-256 of functions that no file holds, and of variables that they read: `module:name`.
        modules: The modules of the user's that the values lead to.
        without_value: The variables that have no value.
    """

    def __init__(self, *, with_arrays: bool = True) -> None:
        """Prepare a hash; without arrays, only the code is of interest."""
        self._with_arrays = with_arrays
        self._hash = hashlib.sha256()
        self._seen: dict[int, tuple[int, Any]] = {}  # with the objects, lest another gets the id of one
        self.code: dict[str, str] = {}
        self.modules: set[str] = set()
        self.without_value: list[str] = []

    def of(self, value: Any) -> str:
        """Return the hash of a value.

        Raises:
            NoValueError: It has none.
        """
        self._add(value, 0)
        return self._hash.hexdigest()

    def _say(self, text: str) -> None:
        self._hash.update(f"{len(text)}:{text}".encode(errors="surrogatepass"))

    def _add(self, value: Any, depth: int) -> None:
        if depth > _DEPTH:
            raise NoValueError("is nested too deeply")
        self._say(f"{type(value).__module__}.{type(value).__qualname__}")
        if type(value) in _SIMPLE:
            self._say(repr(value))
            return
        if id(value) in self._seen:
            self._say(f"#{self._seen[id(value)][0]}")
            return
        self._seen[id(value)] = len(self._seen), value
        for part in self._parts(value):
            self._add(part, depth + 1)

    def _parts(self, value: Any) -> Iterator[Any]:
        """Hash what a value is by itself, and yield what it leads to."""
        if isinstance(value, FunctionType):
            yield from self._function(value)
        elif isinstance(value, type):
            yield from self._class(value)
        elif isinstance(value, MethodType):
            yield from (value.__func__, value.__self__)
        elif isinstance(value, ModuleType):
            self.modules.add(value.__name__)
            self._say(value.__name__)
        elif isinstance(value, partial):
            yield from (value.func, value.args, value.keywords)
        elif isinstance(value, Enum):
            yield from (type(value), value.name)
        elif type(value) in (list, tuple, dict):
            yield len(value)
            yield from (part for item in value.items() for part in item) if type(value) is dict else value
        elif type(value) in (set, frozenset):
            yield sorted(self._alone(part) for part in value)
        elif isinstance(value, BuiltinFunctionType):
            yield f"{value.__module__}.{value.__qualname__}"
        else:
            yield from self._object(value)

    def _alone(self, value: Any) -> str:
        """Return the hash of an item of a set by itself."""
        other = Identity(with_arrays=self._with_arrays)
        other.code, other.modules, other.without_value = self.code, self.modules, self.without_value
        return other.of(value)

    def _object(self, value: Any) -> Iterator[Any]:
        """Hash an array or a tensor, or yield the class and the state of another object."""
        if (parts := _array_parts(value, self._with_arrays)) is not None:
            yield from parts
            return
        yield type(value)
        if (attributes := _module_parts(value)) is not None:
            yield attributes
            return
        if not self._with_arrays and hasattr(value, "_flatten_layers"):  # of Keras
            yield [type(layer) for layer in value._flatten_layers()]
            return
        try:
            reduced = value.__reduce_ex__(4)
        except Exception as error:
            raise NoValueError(f"is a {type(value).__qualname__}") from error
        if isinstance(reduced, str):
            yield reduced
            return
        yield from (list(part or ()) if index in (3, 4) else part for index, part in enumerate(reduced))

    def _function(self, function: FunctionType) -> Iterator[Any]:
        self._say(f"{function.__module__}:{function.__qualname__}")
        yield from (function.__defaults__, function.__kwdefaults__)
        yield [cell.cell_contents for cell in function.__closure__ or () if _is_full(cell)]
        if wrapped := getattr(function, "__wrapped__", None):
            yield wrapped
        if _is_librarys(function.__globals__.get("__name__")):
            return
        self.modules.add(str(function.__globals__.get("__name__")))
        if has_file(function.__code__, function.__globals__):
            return
        self._note(function.__module__, function.__qualname__, _code_text(function.__code__))
        for name in dict.fromkeys(_variables_of(function.__code__)):
            if name in function.__globals__:
                value = function.__globals__[name]
                yield name
                yield value if _is_code(value) else self._variable(f"{function.__module__}:{name}", value)

    def _variable(self, name: str, value: Any) -> str:
        """Note a global variable, and return its hash."""
        try:
            sha256 = self._alone(value)
        except NoValueError as error:
            sha256 = f"without a value: {error}"
            self.without_value.append(name)
        self.code[name] = sha256
        return sha256

    def _class(self, cls: type) -> Iterator[Any]:
        self._say(f"{cls.__module__}:{cls.__qualname__}")
        if _is_librarys(cls.__module__):
            return
        self.modules.add(cls.__module__)
        yield from cls.__bases__
        for name, member in vars(cls).items():
            parts = [member, *(getattr(member, one, None) for one in ("__func__", "fget", "fset", "func"))]
            functions = [part for part in parts if isinstance(part, FunctionType)]
            if functions:
                yield from functions
            elif name not in _NOT_OWN and not hasattr(type(member), "__get__"):
                yield from (name, member)

    def _note(self, module: str, name: str, text: str) -> None:
        self._say(text)
        self.code[f"{module}:{name}"] = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def has_file(code: CodeType, variables: Mapping[str, Any]) -> bool:
    """Return whether code comes from the file of the module with these global variables."""
    return code.co_filename == variables.get("__file__")


def _is_librarys(name: Any) -> bool:
    """Return whether a module is not the user's."""
    if str(name).partition(".")[0] in sys.stdlib_module_names - {"__main__"} or name == "builtins":
        return True
    module = sys.modules.get(str(name))
    file = getattr(module, "__file__", None)
    return bool(file) and is_installed(str(file))


def _is_full(cell: Any) -> bool:
    with suppress(ValueError):
        return cell.cell_contents is not cell
    return False


def _variables_of(code: CodeType) -> Iterator[str]:
    """Yield the names of the global variables that code reads."""
    instructions = dis.get_instructions(code)
    yield from (str(one.argval) for one in instructions if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _variables_of(constant)


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType | type | ModuleType | BuiltinFunctionType)


def _code_text(code: CodeType) -> str:
    """Return instructions, constants and names of code, without lines and files."""
    constants = [_code_text(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    names = [code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars]
    counts = [code.co_argcount, code.co_kwonlyargcount, code.co_posonlyargcount, code.co_flags]
    return repr([code.co_code.hex(), constants, names, counts, code.co_exceptiontable.hex()])


def _constant(value: Any) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _array_parts(value: Any, with_arrays: bool) -> list[Any] | None:
    """Return shape, dtype and bytes of an array or a tensor; None for another object."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        content = value.tolist() if value.dtype.hasobject else _digest(numpy.ascontiguousarray(value).data)
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
    return [tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad, content]


def _digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()


def _module_parts(value: Any) -> dict[str, Any] | None:
    """Return the attributes, parts and hooks of a module of torch; None for another object."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.nn.Module):
        return None
    hooks = {name: list(one.values()) for name, one in vars(value).items() if name.endswith("_hooks") and one}
    return {**module_attributes(value), **value._modules, **hooks}


@cache
def _internal() -> frozenset[str]:
    """Return the attributes that torch gives to every module."""
    fresh = vars(sys.modules["torch"].nn.Module())
    return frozenset(fresh) | {"_is_torch_compile", "_dynamo_static_input_type"}


def module_attributes(module: Any) -> dict[str, Any]:
    """Return the attributes of a module of torch, and its buffers that no file of weights holds.

    Its mode is left out: training begins in training mode.
    """
    own = {name: one for name, one in vars(module).items() if name not in _internal()}
    quiet = {name: module._buffers[name] for name in sorted(module._non_persistent_buffers_set)}
    return {**own, **quiet}
