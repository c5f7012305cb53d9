"""Import what is not ours: optional libraries, and objects that a config names by their import paths."""

from __future__ import annotations

import difflib
import importlib
import logging
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from trainwright.errors import CodeError, InputError, MissingExtraError

_IMPORT_PATH = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.<>]*")
REMEDY = "it must be installed, or be in the folder where trainwright is started ({}), or beside the config"
# `name<2,>=1; (python_version < '3.13') and extra == 'name'`, as build tools write them
_OF_EXTRA = re.compile(
    r"(?P<text>[^;]+);\s*(?:\(?(?P<marker>[^()]+?)\)?\s+and\s+)?extra\s*==\s*['\"](?P<extra>[\w-]+)['\"]"
)
# The extras that bring libraries whose models configs name.
_EXTRAS = {
    **{name: name for name in ("torch", "sklearn", "xgboost", "lightgbm", "catboost", "keras")},
    "tensorflow": "keras",
    **dict.fromkeys(("transformers", "peft"), "huggingface"),
}
# Loggers that report, when torchao is imported, on its parts for GPUs. peft imports it, too.
_NOISY = ("torchao", "torch.utils._pytree")
_closed = False  # whether this process runs only Trainwright and the libraries that it needs


def close_process() -> None:
    """Declare that this process makes one run and runs no code but ours, unless the config names some."""
    global _closed  # noqa: PLW0603 - it describes the process
    _closed = True


def open_process() -> None:
    """Declare that code of others will be imported."""
    global _closed  # noqa: PLW0603
    _closed = False


def require(module: str, extra: str, *, spare: str | None = None) -> ModuleType:
    """Import an optional library, or say which command installs it.

    Args:
        module: The module to import.
        extra: The extra of Trainwright that it belongs to.
        spare: A library that `module` imports if it is installed, for features that Trainwright does not use.
            It is kept out of a process that runs no other code: scikit-learn takes a second and 100 MB.

    Raises:
        MissingExtraError: The library is not installed.
    """
    if sys.modules.get(module) is not None:  # quick: called for every image
        return importlib.import_module(module)
    try:
        with _quiet(), spared(*([spare] if spare and _closed else [])):
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise  # the library is installed, but not all that it needs: its own message says more
        raise MissingExtraError(f"{module.split('.')[0]} is not installed: {install_hint(extra)}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Let loggers that are noisy at imports report nothing below errors."""
    before = {name: logging.getLogger(name).level for name in _NOISY}
    for name in before:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)


def install_hint(extra: str, *beside: str) -> str:
    """Return what to do where a library of an extra is missing, for messages.

    Args:
        extra: The extra of Trainwright.
        *beside: Libraries that no extra has, to be installed with it.
    """
    command = install_command(extra, *beside)
    if command is None:
        also = "".join(f" {name}" for name in beside)
        return f"run `pip install -e '.[{extra}]'{also}` in the sources of Trainwright"
    if beside:
        return f"run `{command}`"
    return f"run `{command}`, which installs the extra {extra!r}"


def install_command(extra: str, *beside: str) -> str | None:
    """Return the command that installs the libraries of an extra; None if they are not known.

    It names the libraries themselves, as the metadata do: whether Trainwright was installed from a clone or
    from a wheel that is gone by now, pip finds them. Trainwright's own name is on no package index.
    """
    wanted = extras().get(extra)
    return f"pip install {' '.join(map(shlex.quote, [*wanted, *beside]))}" if wanted else None


def library_hint(module: str) -> str | None:
    """Return how to install a library whose models configs name; None for one that is not known.

    torchvision and timm are installed with a torch that Trainwright takes: alone, they would bring another.
    """
    library = module.partition(".")[0]
    if library in ("timm", "torchvision"):
        return install_hint("torch", library)
    return install_hint(_EXTRAS[library]) if library in _EXTRAS else None


def extras() -> dict[str, list[str]]:
    """Return the requirements of each extra; empty if Trainwright is not installed as a package."""
    from importlib import metadata

    try:
        declared = metadata.requires("trainwright") or []
    except metadata.PackageNotFoundError:
        return {}
    found: dict[str, list[str]] = {}
    for match in filter(None, map(_OF_EXTRA.fullmatch, declared)):
        text, marker = match["text"].strip(), match["marker"]
        found.setdefault(match["extra"], []).append(f"{text}; {marker}" if marker else text)
    return found


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None if it is not installed."""
    from importlib import metadata  # most commands start without it

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


@contextmanager
def spared(*libraries: str) -> Iterator[None]:
    """Hide libraries that another one imports if they are installed; imported ones stay."""
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in libraries if name not in modules]
    for name in hidden:
        modules[name] = None  # an import of it now fails as if it were not installed
    try:
        yield
    finally:
        for name in hidden:
            del modules[name]


class ImportRule(Protocol):
    """Decide what a config that was read from a run directory may import."""

    def check_module(self, path: str, module: str) -> None:
        """Raise InputError unless the module of an import path may be imported; called before it is."""

    def check_object(self, path: str, value: Any) -> None:
        """Raise InputError unless the imported object may be used; called before the object is."""

    def remedy(self) -> str:
        """Return what to do about a module that does not exist, for messages."""

    def owns(self, path: Path) -> bool:
        """Return whether a file or folder belongs to the user's own project."""

    def allows_outside(self, folder: Path) -> bool | None:
        """Return whether the variables and hosts that a run names may be used; None for another run."""

    def allow_host(self, url: str) -> None:
        """Let the host of a URL be asked, which the user has given."""

    def check_outside(self, key: str, text: str) -> None:
        """Raise InputError if a value uses a variable or names a host, and must not."""


_rule: ContextVar[ImportRule | None] = ContextVar("import_rule", default=None)
_used: set[str] = set()  # import paths that the user's own configs have led to in this process


def import_rule() -> ImportRule | None:
    """Return the rule that imports obey now; None for the user's own config, which may name anything."""
    return _rule.get()


@contextmanager
def importing_by(rule: ImportRule | None) -> Iterator[None]:
    """Make `import_path` obey a rule."""
    token = _rule.set(rule)
    try:
        yield
    finally:
        _rule.reset(token)


def is_used(path: str) -> bool:
    """Return whether a config of the user's own has imported this path in this process."""
    return path in _used


def import_path(path: str) -> Any:
    """Import what a config names as `package.module:attribute`; nothing of it is called.

    The standard library is refused, also where another module lets it through (`my_module:system`): nothing
    in it is a model or a data set, and much in it does harm when called. Where the config comes from a run
    directory, the rule of `importing_by` decides the rest.

    Raises:
        InputError: The path is malformed or refused; the message says which part.
        CodeError: It leads nowhere, or what it names cannot be imported.
    """
    module_name, _, attribute = path.partition(":")
    if not module_name or not attribute:
        raise InputError(f"{path!r} is not an import path: write package.module:name")
    _refuse_standard(path, module_name)
    rule = import_rule()
    if rule is not None:
        rule.check_module(path, module_name)
    value: Any = _module(path, module_name)
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise CodeError(f"{path!r}: {module_name} has no {attribute!r}; {_near(part, dir(value))}")
        value = getattr(value, part)
    if callable(value):
        _refuse_standard(path, home_of(value))
    if rule is not None:
        rule.check_object(path, value)
    else:
        _used.add(path)
    return value


def is_class_of_functions(value: Any) -> bool:
    """Return whether a value is a class whose objects are called, as functions are."""
    return isinstance(value, type) and any("__call__" in vars(base) for base in value.__mro__)


def kind_of(value: Any) -> str:
    """Return what a user has named where a function is needed, for a message."""
    return "a class" if isinstance(value, type) else f"of type {type(value).__name__}"


def class_name(cls: type) -> str:
    """Return `package.module:Name`, as configs name classes; a local class cannot be imported by it."""
    words = [*cls.__module__.split("."), cls.__qualname__.rpartition(".")[2]]
    *module, name = (re.sub(r"^(?![A-Za-z_])", "_", re.sub(r"\W", "_", word)) for word in words)
    return f"{'.'.join(module)}:{name}"


def home_of(value: Any) -> str:
    """Return the module that defines a value (of a partial: its function), or the class of the value."""
    if isinstance(value, partial):
        return home_of(value.func)
    return str(getattr(value, "__module__", None) or type(value).__module__)


def import_paths(value: Any) -> Iterator[str]:
    """Yield the texts in a value, at any depth, that may be import paths."""
    if isinstance(value, str):
        if ":" in value and _IMPORT_PATH.fullmatch(value):
            yield value
    elif value is None or isinstance(value, int | float):
        return
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from import_paths(item)
    elif isinstance(value, Sequence):
        for item in value:
            yield from import_paths(item)


def _refuse_standard(path: str, module: str) -> None:
    if module.split(".")[0] in sys.stdlib_module_names:
        raise InputError(
            f"{path!r} is refused: {module!r} belongs to Python's standard library; name something of yours"
        )


def _module(path: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if name.endswith(".py") or "/" in name:
            module = name.removesuffix(".py").removeprefix("./").replace("/", ".")
            raise CodeError(
                f"{path!r} cannot be imported: a module is named, not its file: write "
                f"{module}:{path.partition(':')[2]}"
            ) from None
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise CodeError(
                f"{path!r} cannot be imported: {name} needs {error.name!r}, which is not installed"
            ) from error
        if (hint := library_hint(name)) is not None and error.name == name.partition(".")[0]:
            raise CodeError(f"{path!r} cannot be imported: {error.name} is not installed: {hint}") from error
        rule = import_rule()
        raise CodeError(
            f"{path!r} cannot be imported: there is no module {error.name!r}; "
            f"{rule.remedy() if rule is not None else REMEDY.format(Path.cwd())}"
        ) from error
    except Exception as error:
        raise CodeError(f"{path!r} cannot be imported: {type(error).__name__}: {error}") from error


def _near(name: str, names: Iterable[str]) -> str:
    public = sorted(other for other in names if not other.startswith("_"))
    if close := difflib.get_close_matches(name, public, n=3):
        return f"did you mean {' or '.join(map(repr, close))}?"
    return f"it has {', '.join(public[:12]) or 'nothing'}"
