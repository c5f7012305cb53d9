"""The state of a file, a folder or a variable, as runs record it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping

from trainwright.process.observation.unobserved import unobserved
from trainwright.redact import is_secret

MISSING, THERE = "missing", "there"  # instead of a hash
UNSET = "unset"
# Beginnings of names in a folder that say nothing about its content.
_OF_TOOLS = (
    *(
        "__pycache__",
        ".DS_Store",
        ".cache",
        ".coverage",
        ".git",
        ".idea",
        ".ipynb_checkpoints",
        ".mypy_cache",
    ),
    *(".nfs", ".pytest_cache", ".ruff_cache", ".venv", ".vscode", ".~lock"),
)
HashFile = Callable[[str], str]
# Variables that the user's code has set in runs: the values, and those before.
set_variables: dict[str, tuple[str, str | None]] = {}


def variable_state(name: str, variables: Mapping[str, str]) -> str | None:
    """Return what is noted of a variable; see `Observation`."""
    if is_secret(name.lower(), "x"):
        return None
    value = variables.get(name)
    if name in set_variables and set_variables[name][0] == value:
        value = set_variables[name][1]
    return (
        UNSET
        if value is None
        else hashlib.sha256(f"{name}={value}".encode(errors="replace")).hexdigest()[:16]
    )


def state_of(name: str, hash_file: HashFile, before: str = "") -> str:
    """Return what is noted of a file or folder as it is now; see `Observation.files`.

    Args:
        name: Its path.
        hash_file: Returns the SHA-256 (hex) of a file; raises OSError where it cannot be read.
        before: What was noted of it before.
    """
    with unobserved():
        try:
            if before == THERE:
                return THERE if os.path.lexists(name) else MISSING
            return _hash_of(name, hash_file)
        except (FileNotFoundError, NotADirectoryError):
            return MISSING
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"


def _hash_of(name: str, hash_file: HashFile) -> str:
    if name.endswith("@") and not os.path.lexists(name):
        return hashlib.sha256(os.fsencode(os.readlink(name[:-1]))).hexdigest()  # noqa: PTH115
    if name.endswith("/*"):
        return _content_of(name[:-2], hash_file)
    if name.endswith("/"):
        return hashlib.sha256("\0".join(names_in(name)).encode(errors="surrogateescape")).hexdigest()
    return hash_file(name)


def names_in(folder: str) -> list[str]:
    """Return the names in a folder, sorted, without what tools put there."""
    return sorted(name for name in os.listdir(folder) if not name.startswith(_OF_TOOLS))  # noqa: PTH208


def _content_of(folder: str, hash_file: HashFile) -> str:
    """Return the SHA-256 of the names and contents of the files in a folder."""
    whole = hashlib.sha256()
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda one: one.name):
            if entry.is_file():
                whole.update(f"{entry.name}\0{hash_file(entry.path)}\n".encode(errors="surrogateescape"))
    return whole.hexdigest()
