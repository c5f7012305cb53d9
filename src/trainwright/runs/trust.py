"""Decide what the config of a run directory may import and ask, as the run may come from someone else.

Code is imported if it is in the user's own project (see `runs.workdir`), or a model class of a framework's
library. Variables and hosts are used if the run carries the user's signature (see `storage.ownership`).
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pkgutil
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FunctionType
from typing import Any

from trainwright import plugins
from trainwright.config import Resolved
from trainwright.config.env import names_outside
from trainwright.errors import InputError
from trainwright.process.module_sources import is_installed
from trainwright.records.run_dir import RunDir
from trainwright.require import REMEDY, home_of, import_paths, importing_by, is_used
from trainwright.safe_files import read_regular
from trainwright.storage.ownership import foreign_error, is_own
from trainwright.tasks.support.accumulators import is_accumulator

log = logging.getLogger("trainwright")


class RunImports:
    """The rule of imports for one run directory (`require.ImportRule`).

    Args:
        run: The run directory.
        folders: The folders of the user's own project.
        named: Import paths that the user's own config names; they may be imported wherever they lead.
        trusted: Whether the user trusts the run: then everything is imported, and each import is announced.
        started: The folder where the run says that it was started, for messages.
        outside: Whether the variables and hosts that the run names may be used; default: if it is own.
    """

    def __init__(
        self,
        run: RunDir,
        folders: Sequence[Path],
        *,
        named: Collection[str] = (),
        trusted: bool = False,
        started: Path | None = None,
        outside: bool | None = None,
    ) -> None:
        self.folders = list(folders)
        self._run = run
        self._named = frozenset(named)
        self._trusted = trusted
        self._started = started
        self._outside = trusted or (is_own(run.path) if outside is None else outside)
        self._hosts: set[str] = set()  # that the user has given
        self._announced: set[str] = set()
        self._projects = [(folder, _came_with(run, folder)) for folder in self.folders]

    def check_module(self, path: str, module: str) -> None:
        """Refuse a module unless it is of a framework's library or the user's own; see `ImportRule`."""
        _refuse_other_file(module)
        if self._trusted:
            self._announce(path)
        elif not self._is_named(path) and not (self._is_own(module) or _is_of_framework(module)):
            raise self._refusal(path)

    def check_object(self, path: str, value: Any) -> None:
        """Refuse an object unless it is of a known kind, or the user's own code; see `ImportRule`."""
        is_known = _is_model_class(value) or _is_optimizer_class(value) or _is_metric(path, value)
        if self._trusted or self._is_named(path) or is_known:
            return
        module = path.partition(":")[0]
        # A metric that a module of the user's holds is only updated and computed, whatever its class.
        is_held = is_accumulator(value) and not isinstance(value, type)
        homes = [module, home_of(value)] if callable(value) and not is_held else [module]
        if not all(home in sys.modules and self._is_own(home) for home in homes):
            raise self._refusal(path)

    def remedy(self) -> str:
        """Return what to do about a missing module; it may be where the run was started."""
        if self._started is None or self._started in self.folders:
            return REMEDY.format(Path.cwd())
        return (
            "a run's own folder is not searched from elsewhere\n"
            f"if the run is yours, start trainwright in the folder where it was started, {self._started}\n"
            "or, if you trust the run, add --trust (trust=True)"
        )

    def owns(self, path: Path) -> bool:
        """Return whether a file or folder is in the user's own project, and did not come with the run."""
        spellings = (Path(os.path.abspath(path)), path.resolve())  # noqa: PTH100 - with links, and without
        return any(
            any(one.is_relative_to(folder) for one in spellings)
            and not any(path.resolve().is_relative_to(other) for other in others)
            for folder, others in self._projects
        )

    def allows_outside(self, folder: Path) -> bool | None:
        """Return whether the variables and hosts that a run names may be used; see `ImportRule`."""
        return self._outside if folder == self._run.path else None

    def allow_host(self, url: str) -> None:
        """Let the host of a URL be asked, which the user has given."""
        self._hosts.add(_host(url))

    def check_outside(self, key: str, text: str) -> None:
        """Refuse a variable, or a host that the user has not given; see `ImportRule`."""
        if not self._outside and names_outside(text) and _host(text) not in self._hosts:
            raise foreign_error(self._run.path, key, text)

    def _is_named(self, path: str) -> bool:
        """Return whether a config of the user's own names the path, or did so before in this process."""
        return path in self._named or is_used(path)

    def _is_own(self, module: str) -> bool:
        """Return whether all that importing a module would execute is the user's own.

        A missing module executes nothing.
        """
        return all(
            file is not None and self.owns(file) and not is_installed(os.path.abspath(file))  # noqa: PTH100
            for file in _files(module)
        )

    def _announce(self, path: str) -> None:
        if path not in self._announced:
            self._announced.add(path)
            log.warning("run %s is trusted: it imports %s", self._run.id, path)

    def _refusal(self, path: str) -> InputError:
        folders = " or ".join(map(str, self.folders)) or "a project of yours (this folder came with the run)"
        return InputError(
            f"{path!r} is not imported: it is neither a framework's model class nor code in {folders}\n"
            f"run {self._run.id} may come from someone else, and code that it names could do anything\n"
            "start trainwright in the folder of your code; or, if you trust the run, add --trust (trust=True)"
        )


@contextmanager
def of_own_config(run: RunDir, own: Resolved, *, trust: bool = False) -> Iterator[None]:
    """Import for an existing run only what the user's own config names, and the user's own code.

    The run's config should be the same, but the run may come from someone else. Its variables and hosts are
    used if its config is the same, or if the run is own or trusted.
    """
    named = set(import_paths(own.nested))
    outside = trust or is_own(run.path) or _holds(run, own.dump())
    with importing_by(RunImports(run, [Path.cwd()], named=named, outside=outside)):
        yield


def _holds(run: RunDir, config: str) -> bool:
    try:
        return read_regular(run.config_file) == config.encode()
    except OSError:
        return False


def _host(url: str) -> str:
    """Return scheme and host of a URL."""
    return "/".join(url.split("/", 3)[:3])


def _came_with(run: RunDir, folder: Path) -> list[Path]:
    """Return what in a project may have come with the run: its directory, and the subfolder that holds it."""
    project, there = folder.resolve(), run.path.resolve()
    inside = there.is_relative_to(project) and there != project
    return [there, *([project / there.relative_to(project).parts[0]] if inside else [])]


def _refuse_other_file(module: str) -> None:
    """Refuse a user's module that this process imported from a different file than it would import now.

    Raises:
        InputError: Another project has a module of this name.
    """
    name = _top(module)
    loaded = getattr(sys.modules.get(name), "__file__", None)
    if loaded is None or is_installed(os.path.abspath(loaded)):  # noqa: PTH100
        return
    spec = PathFinder.find_spec(name)
    if spec is not None and spec.origin and Path(spec.origin).resolve() != Path(loaded).resolve():
        raise InputError(
            f"module {name!r} is already imported in this process, from {loaded}; "
            f"the run needs {spec.origin}: start a new process for it"
        )


def _files(module: str) -> Iterator[Path | None]:
    """Yield the files that importing a module would execute, its packages first; nothing is imported.

    None stands for a module that has no file.
    """
    if module in sys.modules:
        yield from _loaded_file(module)
        return
    names, search = module.split("."), None
    for count in range(1, len(names) + 1):
        spec = _spec(".".join(names[:count]), search)
        if spec is None:
            return
        if spec.origin is not None or spec.submodule_search_locations is None:
            yield Path(spec.origin) if spec.origin and spec.has_location else None
        if count < len(names) and spec.submodule_search_locations is None:
            return
        search = list(spec.submodule_search_locations or ())


def _loaded_file(module: str) -> Iterator[Path | None]:
    """Yield the file of a module that is loaded, or None if it has none.

    Code that is typed into a notebook has none, and is the user's: nothing is yielded.
    """
    file = getattr(sys.modules[module], "__file__", None)
    if file is not None or module != "__main__":
        yield Path(file) if file is not None else None


def _spec(name: str, search: list[str] | None) -> ModuleSpec | None:
    """Return where a module would be imported from, without importing its packages."""
    if search is None:
        try:
            return importlib.util.find_spec(name)
        except ValueError:  # a loaded module that was made by hand
            return ModuleSpec(name, None)
    folders: list[str] = []
    for entry in search:
        finder = pkgutil.get_importer(entry)
        spec = finder.find_spec(name) if finder is not None else None
        if spec is not None and spec.loader is not None:
            return spec
        folders += (spec.submodule_search_locations or []) if spec is not None else []
    namespace = ModuleSpec(name, None, is_package=True)
    namespace.submodule_search_locations = folders
    return namespace if folders else None


def _is_of_framework(module: str) -> bool:
    """Return whether a module is of a framework's library, or named like one in the user's own project."""
    return any(_top(module) == _top(base) for base in _model_bases())


def _top(path: str) -> str:
    return path.partition(":")[0].partition(".")[0]


def _is_model_class(value: Any) -> bool:
    return isinstance(value, type) and any(_loaded(base) in value.__mro__ for base in _model_bases())


def _is_optimizer_class(value: Any) -> bool:
    """Return whether a value is an optimizer of a framework's library: it only computes with tensors."""
    return isinstance(value, type) and any(
        _loaded(base) in value.__mro__ and value.__module__.startswith(f"{base.partition(':')[0]}.")
        for base in _optimizer_bases()
    )


def _is_metric(path: str, value: Any) -> bool:
    """Return whether a value is one of scikit-learn's public metrics, which only compute with arrays."""
    module, _, name = path.partition(":")
    public = getattr(sys.modules.get(module), "__all__", ())
    is_theirs = module == "sklearn.metrics" and home_of(value).startswith("sklearn.metrics.")
    return is_theirs and isinstance(value, FunctionType) and name in public


@cache
def _model_bases() -> tuple[str, ...]:
    """Return the import paths of the classes that models of the frameworks derive from."""
    return tuple(path for adapter in _frameworks() for path in adapter.library.model_bases)


@cache
def _optimizer_bases() -> tuple[str, ...]:
    """Return the import paths of the classes that optimizers of the frameworks derive from."""
    return tuple(path for adapter in _frameworks() for path in adapter.library.optimizer_bases)


def _frameworks() -> list[Any]:
    return [plugins.adapter("framework", name) for name in plugins.names("framework")]


def _loaded(path: str) -> Any:
    """Return the class of an import path; None if its library is not loaded: then nothing derives from it."""
    module, _, name = path.partition(":")
    return getattr(sys.modules.get(module), name, None)
