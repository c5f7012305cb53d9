"""The paths that are no inputs: of the system, of Python, of libraries."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Any, Literal

from trainwright.process.module_sources import is_installed

_HOME = os.path.expanduser("~")  # noqa: PTH111
# Where the system, Python and libraries keep what is theirs.
_NOT_INPUTS = tuple(
    [f"/{name}/" for name in ("proc", "sys", "usr/lib", "usr/share", "lib", "etc/ssl", "etc/pki")]
    + [f"{_HOME}/{name}" for name in (".netrc", ".aws", ".azure", ".kube", ".ssh", ".gitconfig", ".docker")]
    + [f"{_HOME}/.config/{name}/" for name in ("gcloud", "matplotlib", "wandb")]
)
_SYSTEM_FILES = {
    f"/etc/{name}" for name in ("localtime", "mime.types", "hosts", "resolv.conf", "nsswitch.conf", "passwd")
}
# What tools keep for themselves in the user's folder of caches, and content in it that is an input.
_TOOLS = (
    *(
        "black",
        "clip",
        "fontconfig",
        "huggingface",
        "jedi",
        "matplotlib",
        "mesa_shader_cache",
        "mypy",
        "numba",
    ),
    *("nvidia", "pip", "pre-commit", "puccinialin", "ruff", "torch", "torch_extensions", "torchinductor"),
    *("trainwright", "triton", "uv", "vllm", "wandb"),
)
_CONTENT = ("huggingface/hub", "huggingface/datasets", "torch/hub")


def is_ignored(path: str) -> bool:
    """Return whether a path belongs to the system, to Python, to a library, or is neither file nor folder."""
    if f"{os.sep}.git{os.sep}" in path:  # what libraries read that ask which commit this is
        return True
    if path.startswith(_NOT_INPUTS) or path in _SYSTEM_FILES or is_installed(path):
        return True
    caches = os.environ.get("XDG_CACHE_HOME") or f"{_HOME}/.cache"
    if path.startswith(f"{caches}/"):
        within = path.removeprefix(f"{caches}/")
        if within.startswith(tuple(f"{one}/" for one in _TOOLS)):
            return not within.startswith(tuple(f"{one}/" for one in _CONTENT))
    return kind_of(path) == "other"


def kind_of(path: str) -> Literal["file", "folder", "pipe", "other"]:
    """Return what is there; `file` where nothing is."""
    with suppress(OSError):
        mode = os.stat(path).st_mode  # noqa: PTH116
        if stat.S_ISDIR(mode):
            return "folder"
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            return "pipe"
        return "file" if stat.S_ISREG(mode) else "other"
    return "file"


def absolute(path: Any, dir_fd: int | None = None) -> str:
    """Return an absolute path; links in it are kept, but where `..` leads out of one.

    Args:
        path: A path, or the descriptor of an open folder.
        dir_fd: The descriptor of the folder that the path is relative to; None or -1: the current one.

    Raises:
        OSError: The system does not tell which folder it is.
    """
    if isinstance(path, int):
        return os.readlink(f"/proc/self/fd/{path}")  # noqa: PTH115
    folder = os.getcwd() if dir_fd in (None, -1) else os.readlink(f"/proc/self/fd/{dir_fd}")  # noqa: PTH109, PTH115
    whole = os.path.join(folder, os.fsdecode(path))  # noqa: PTH118
    if "/.." not in whole:
        return os.path.normpath(whole)
    found = ""
    for word in whole.split("/"):
        if word == "..":
            found = os.path.dirname(os.path.realpath(found) if os.path.islink(found) else found)  # noqa: PTH114, PTH120
        elif word not in ("", "."):
            found = f"{found.rstrip('/')}/{word}"
    return found or "/"
