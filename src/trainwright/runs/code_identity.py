"""What identifies the code of a run: the user's own modules, as they were imported."""

from __future__ import annotations

import ast
import logging
import os
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from trainwright import registry
from trainwright.digest import sha256_bytes, sha256_file, sha256_json
from trainwright.module_sources import source_hash
from trainwright.records.manifest import CodeIdentity, GitState
from trainwright.require import import_rule
from trainwright.version import VERSION

log = logging.getLogger("trainwright")
REMOVED = "removed"  # instead of the hash of a source that is gone


def code_inputs(roots: Collection[str], working_directory: Path) -> CodeIdentity:
    """Return what identifies the code.

    It is the sources of the user's modules that `roots` (module names) lead to, as they were imported.

    Trainwright's sources and the git commit are records: a change that touches none of the user's modules
    does not change the run, unless it raises one of the `semantics` versions.
    """
    sources = dict(sorted(_user_modules(roots).items()))
    on_disk = {name: sha256_file(path) if path.is_file() else REMOVED for name, path in sources.items()}
    modules = {name: source_hash(name, path) or on_disk[name] for name, path in sources.items()}
    adapters = {root.split(".")[2] for root in roots if root.startswith("trainwright.frameworks.")}
    edited = {name: sha256 for name, sha256 in on_disk.items() if sha256 != modules[name]}
    for name in edited:
        log.warning(
            "module %s was edited after its import: the imported code runs, and its hash is recorded; "
            "restart Python to use what is on disk",
            name,
        )
    return CodeIdentity(
        hash=sha256_json(modules | {f"{name} on disk": sha256 for name, sha256 in edited.items()}),
        trainwright=VERSION,
        trainwright_sha256=own_hash(frozenset(adapters)),
        modules=modules,
        edited=edited,
        git=_git(working_directory),
    )


@cache
def _own_folder() -> Path:
    return Path(__file__).parent.parent


@cache  # once in a process, which runs what it has imported
def own_hash(frameworks: Collection[str]) -> str:
    """Return the hash of our sources that can affect a run's bits; of adapters, only these `frameworks`."""
    without = {"cli", "reports", "trackers", "callbacks", "testing", "integrations", "studies"}
    others = {("frameworks", name) for name in set(registry.BUILT_IN["framework"]) - set(frameworks)}
    inside = {path.relative_to(_own_folder()): path for path in sorted(_own_folder().rglob("*.py"))}
    return sha256_json(
        {
            str(name): sha256_file(path)
            for name, path in inside.items()
            if name.parts[0] not in without and name.with_suffix("").parts[:2] not in others
        }
    )


def _user_modules(roots: Iterable[str]) -> dict[str, Path]:
    """Return the user's own sources among the modules `roots` and all that these import."""
    found: dict[str, Path] = {}
    waiting = list(roots)
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        path = _user_source(module)
        if module is None or path is None or name in found:
            continue
        found[name] = path
        # The packages that contain it.
        waiting += [name[:i] for i, letter in enumerate(name) if letter == "."]
        waiting += _imported(path, module.__package__ or "")
        for value in list(vars(module).values()):
            waiting.append(
                value.__name__ if isinstance(value, ModuleType) else str(getattr(value, "__module__", ""))
            )
    return found


def _imported(path: Path, package: str) -> Iterator[str]:
    """Yield the modules that a source imports.

    A constant does not remember the module that it was imported from, so the source is parsed.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, OSError):  # edited or removed since it was imported; its hash tells
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _user_source(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    path = Path(file).resolve()
    is_there = path.is_file() or source_hash(str(getattr(module, "__name__", "")), path) is not None
    is_ours = path.suffix == ".py" and is_there and not any(map(path.is_relative_to, _installed()))
    return path if is_ours else None


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
