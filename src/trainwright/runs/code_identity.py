"""The identity of a run's code: the user's own modules, as they were imported."""

from __future__ import annotations

import ast
import dis
import logging
import os
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from trainwright import plugins
from trainwright.digest import sha256_bytes, sha256_file, sha256_json
from trainwright.process.module_sources import is_installed, is_module_file, source_hash, source_now, spec_of
from trainwright.process.object_identity import Identity
from trainwright.records.manifest import CodeIdentity, GitState
from trainwright.require import import_rule
from trainwright.version import VERSION

log = logging.getLogger("trainwright")
_File = tuple[Path, Any]  # a file, which may lie in a zip file, and the loader of its module
REMOVED = "removed"  # instead of the hash of a source that is gone


def code_inputs(
    roots: Collection[str],
    working_directory: Path,
    known: Collection[str] = (),
    *,
    model: Any = None,
    data: Iterable[Any] = (),
) -> CodeIdentity:
    """Return what identifies the code.

    It is the sources of the user's modules that `roots` (module names) lead to, as they were imported, and
    what they have become in memory, as far as the objects that are passed in Python lead to it.

    Trainwright's sources and the git commit are records: a change that touches none of the user's modules
    does not change the run, unless it raises one of the `semantics` versions.

    Args:
        roots: Names of modules.
        working_directory: The folder whose commit is recorded.
        known: The modules that the run has used before; those that are not imported yet count by their files.
        model: The model that is passed in Python, if any.
        data: The objects whose code makes the samples.
    """
    of_model, of_data = Identity(), Identity(with_containers=False)
    of_model.follow([model])  # its definition names the attributes that have no value
    of_data.follow(data)
    files = _user_modules([*roots, *sorted(of_model.modules | of_data.modules)])
    files |= {name: file for name in known if name not in files and (file := _later(name)) is not None}
    on_disk, modules = dict[str, str](), dict[str, str]()
    for name, (path, loader) in sorted(files.items()):
        content = source_now(path, loader)
        on_disk[name] = REMOVED if content is None else sha256_bytes(content)
        modules[name] = (name in sys.modules and source_hash(name, path)) or on_disk[name]
    adapters = {root.split(".")[2] for root in roots if root.startswith("trainwright.frameworks.")}
    edited = {name: sha256 for name, sha256 in on_disk.items() if sha256 != modules[name]}
    for name in edited:
        log.warning(
            "module %s was edited after its import: the imported code runs, and its hash is recorded; "
            "restart Python to use what is on disk",
            name,
        )
    modules |= dict(sorted((of_data.code | of_model.code).items()))
    return CodeIdentity(
        hash=_hash(modules, edited),
        trainwright=VERSION,
        trainwright_sha256=own_hash(frozenset(adapters)),
        modules=modules,
        edited=edited,
        without_value=sorted({*of_model.without_value, *of_data.without_value}),
        git=_git(working_directory),
    )


def changed_modules(before: CodeIdentity) -> dict[str, Path]:
    """Return the imported modules of the user's that a run has recorded with another source, and their files.

    The main script is left out: that of the run is rarely that of this process.
    """
    changed: dict[str, Path] = {}
    for name, sha256 in before.modules.items():
        if name == "__main__" or (file := _user_file(sys.modules.get(name))) is None:
            continue
        if _hash_now(name, *file) != sha256:
            changed[name] = file[0]
    return changed


def module_files(code: CodeIdentity) -> set[str]:
    """Return the files that the modules of a run were imported from, without links."""
    return {str(file[0]) for name in code.modules if (file := _user_file(sys.modules.get(name))) is not None}


def with_later_imports(code: CodeIdentity, since: Collection[str]) -> CodeIdentity:
    """Return the identity with the user's modules that were imported after it was made.

    Args:
        code: The identity.
        since: The modules that were imported when it was made.
    """
    # A plugin is imported whenever its name might be meant; one that the run uses is in `code` already.
    registered = {plugin.target.partition(":")[0] for plugin in plugins.installed()}
    return with_modules(
        code, [name for name in list(sys.modules) if name not in since and name not in registered]
    )


def with_modules(code: CodeIdentity, names: Iterable[str]) -> CodeIdentity:
    """Return the identity with those of some modules, and of all that they import, that are the user's."""
    later = {
        name: file
        for name, file in _user_modules([*code.modules, *names]).items()
        if name not in code.modules
    }
    if not later:
        return code
    modules = dict(code.modules)
    for name, file in sorted(later.items()):
        modules[name] = _hash_now(name, *file)
    return code.model_copy(update={"modules": modules, "hash": _hash(modules, code.edited)})


def _hash_now(name: str, path: Path, loader: Any) -> str:
    """Return the hash of a module as it was imported, or, where that is not known, of what its file holds."""
    content = source_now(path, loader)
    return source_hash(name, path) or (REMOVED if content is None else sha256_bytes(content))


def _hash(modules: Mapping[str, str], edited: Mapping[str, str]) -> str:
    return sha256_json({**modules, **{f"{name} on disk": sha256 for name, sha256 in edited.items()}})


@cache
def _own_folder() -> Path:
    return Path(__file__).parent.parent


@cache  # once in a process, which runs what it has imported
def own_hash(frameworks: Collection[str]) -> str:
    """Return the hash of our sources that can affect a run's bits; of adapters, only these `frameworks`."""
    without = {"cli", "reports", "trackers", "callbacks", "testing", "integrations", "studies"}
    others = {("frameworks", name) for name in set(plugins.BUILT_IN["framework"]) - set(frameworks)}
    inside = {path.relative_to(_own_folder()): path for path in sorted(_own_folder().rglob("*.py"))}
    return sha256_json(
        {
            str(name): sha256_file(path)
            for name, path in inside.items()
            if name.parts[0] not in without and name.with_suffix("").parts[:2] not in others
        }
    )


def _user_modules(roots: Iterable[str]) -> dict[str, _File]:
    """Return the user's own files among the modules `roots` and all that these import."""
    found: dict[str, _File] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        file = _user_file(module)
        if module is None or file is None or name in found:
            continue
        found[name] = file
        # The packages that contain it.
        waiting += [name[:i] for i, letter in enumerate(name) if letter == "."]
        waiting += _imported(name, file, module.__package__ or "")
        for value in list(vars(module).values()):
            waiting.append(
                value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
            )
    return found


def _imported(name: str, file: _File, package: str) -> Iterator[str]:
    """Yield the modules that a source, or bytecode without one, imports.

    A constant does not remember the module that it was imported from, so the source is parsed.
    """
    path, loader = file
    if path.name.endswith(tuple(BYTECODE_SUFFIXES)):
        with suppress(Exception):  # loaders may raise anything
            yield from _imported_by(loader.get_code(name), package)
        return
    content = None if path.name.endswith(tuple(EXTENSION_SUFFIXES)) else source_now(path, loader)
    try:
        tree = ast.parse(content or b"")
    except (SyntaxError, ValueError):  # edited since it was imported; its hash tells
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _names(package, node.level, node.module or "", [alias.name for alias in node.names])
        elif isinstance(node, ast.Call) and (module := _by_call(node)):
            yield from _names(package, len(module) - len(module.lstrip(".")), module.lstrip("."), [])


def _by_call(call: ast.Call) -> str:
    """Return the module that `importlib.import_module` or `__import__` is called with; "" for other calls."""
    function = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    first = call.args[0] if function in ("import_module", "__import__") and call.args else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def _imported_by(code: CodeType, package: str) -> Iterator[str]:
    """Yield the modules that bytecode imports."""
    before: list[Any] = []
    for one in dis.get_instructions(code):
        if one.opname == "IMPORT_NAME":
            level, names = before[-2:]
            yield from _names(package, level, str(one.argval), list(names or ()))
        before.append(one.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _imported_by(constant, package)


def _names(package: str, level: int, module: str, names: Sequence[str]) -> Iterator[str]:
    """Yield what a statement may import: a module, and modules of a package, relative to one or not."""
    base = package.split(".")[: len(package.split(".")) - level + 1] if level else []
    whole = ".".join([*base, *([module] if module else [])])
    yield whole
    yield from (f"{whole}.{name}" for name in names)


def _user_file(module: ModuleType | None) -> _File | None:
    """Return the file of a module of the user's, and its loader; None for another one."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or is_installed(file):
        return None
    return _users(
        str(getattr(module, "__name__", "")), Path(file).resolve(), getattr(module, "__loader__", None)
    )


def _later(name: str) -> _File | None:
    """Return the file that a module of the user's would be imported from."""
    if name in sys.modules:
        return _user_file(sys.modules[name])
    found = None if ":" in name else spec_of(name)
    return None if found is None else _users(name, *found)


def _users(name: str, path: Path, loader: Any) -> _File | None:
    is_there = path.is_file() or source_hash(name, path) is not None or source_now(path, loader) is not None
    is_ours = is_module_file(path) and is_there and not any(map(path.is_relative_to, _installed()))
    return (path, loader) if is_ours else None


@cache
def _installed() -> list[Path]:
    """Return the folders whose sources are not the user's."""
    paths = sysconfig.get_paths()
    installed = [Path(paths[key]).resolve() for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    return [*installed, Path(sys.prefix).resolve(), _own_folder()]


def _git(folder: Path) -> GitState | None:
    """Return the commit of the working tree and how the tree differs from it, or None outside a repository.

    A repository's own settings can make git run programs: one that may be someone else's is not asked.
    """
    if (rule := import_rule()) is not None and not rule.owns(folder):
        return None
    inside = folder.resolve()
    is_repository = any((each / ".git").exists() for each in (inside, *inside.parents))
    if not is_repository and "GIT_DIR" not in os.environ:
        return None  # as git would say, but without a process

    def ask(*words: str) -> bytes:
        return subprocess.run(
            ["git", "-C", str(folder), *words], capture_output=True, check=True, timeout=10
        ).stdout

    try:
        commit = ask("rev-parse", "HEAD").decode().strip()
        changes = ask("diff", "HEAD", "--no-ext-diff")
    except (OSError, subprocess.SubprocessError):
        return None
    return GitState(
        commit=commit, dirty=bool(changes), diff_sha256=sha256_bytes(changes) if changes else None
    )
