"""The sources that the user's modules were imported from.

A file may be edited after its import, as happens in notebooks: then the code that runs is not what the file
holds. So that a run can tell, the hash of each source is noted when it is imported. A source may also lie in
a zip file, or be compiled: bytecode without a source, an extension of another language.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.machinery import BYTECODE_SUFFIXES, EXTENSION_SUFFIXES, SOURCE_SUFFIXES, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

_SITE, _DIST = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"
# A virtual environment may be in the user's project.
_ENVIRONMENT = [sys.prefix] if sys.prefix != sys.base_prefix else []
_OURS = Path(__file__).parents[1]
_HOMES = tuple(f"{path}{os.sep}" for path in (_OURS, Path(os.__file__).parent, *_ENVIRONMENT))
_KINDS = (*SOURCE_SUFFIXES, *BYTECODE_SUFFIXES, *EXTENSION_SUFFIXES)
_sources: dict[str, tuple[Path, str]] = {}  # module -> its file, and the SHA-256 of the source
_searches = 0  # for modules that were not imported yet


class _Watcher:
    """A finder of modules that finds none: it notes the sources of the user's modules, which others find."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        """Note the source of a module that is about to be imported."""
        global _searches  # noqa: PLW0603
        _searches += 1
        with suppress(Exception):  # whatever happens here, the import must not fail of it
            if name.partition(".")[0] in sys.stdlib_module_names or (path and all(map(is_installed, path))):
                return
            spec = PathFinder.find_spec(name, path, target)
            if spec is not None and spec.origin:
                _note(name, spec.origin, spec.loader)


def watch() -> None:
    """Note the sources of the user's modules: of those that are imported already, and of all that will be."""
    if not any(isinstance(finder, _Watcher) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher())
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and isinstance(file := vars(module).get("__file__"), str):
                with suppress(OSError):
                    _note(name, file, vars(module).get("__loader__"))


def source_hash(name: str, file: Path) -> str | None:
    """Return the SHA-256 of the source that a module was imported from; None where it was not seen."""
    known, sha256 = _sources.get(name, (None, None))
    return sha256 if known == file.resolve() else None


def source_now(file: Path, loader: Any) -> bytes | None:
    """Return what the file of a module holds now, which may lie in a zip file; None if it is gone."""
    with suppress(OSError):
        return file.read_bytes()
    with suppress(OSError, AttributeError, ValueError):
        if isinstance(archive := getattr(loader, "archive", None), str):
            file = file.resolve().relative_to(
                Path(archive).resolve()
            )  # it may know a link or a relative path
        content: bytes = loader.get_data(str(file))
        return content
    return None


def spec_of(name: str) -> tuple[Path, Any] | None:
    """Return the file that a module would be imported from, and its loader; nothing is imported."""
    path: Sequence[str] | None = None
    spec = None
    words = name.split(".")
    with suppress(Exception):  # finders may raise anything
        for index in range(len(words)):
            spec = PathFinder.find_spec(".".join(words[: index + 1]), path)
            if spec is None:
                return None
            path = spec.submodule_search_locations
    return None if spec is None or spec.origin is None else (Path(spec.origin).resolve(), spec.loader)


def is_module_file(file: Path) -> bool:
    """Return whether a file is one that Python imports, by its suffix."""
    return file.name.endswith(_KINDS)


def is_installed(path: str) -> bool:
    """Return whether a file or folder belongs to an installed package, to Python or to Trainwright."""
    text = path + os.sep
    return _SITE in text or _DIST in text or text.startswith(_HOMES)


def imported_so_far() -> tuple[int, str, int]:
    """Return what changes with each import: the number of modules, the name of the newest, and all searches.

    Comparing all names takes far longer once training has driven them out of the processor's caches.
    """
    return len(sys.modules), next(reversed(sys.modules)), _searches


def _note(name: str, file: str, loader: Any) -> None:
    if file.endswith(_KINDS) and not is_installed(file):
        import hashlib  # late: most processes import no module of the user's

        if (content := source_now(Path(file), loader)) is not None:
            _sources[name] = Path(file).resolve(), hashlib.sha256(content).hexdigest()
