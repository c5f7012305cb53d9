"""The paths that are no inputs: of the system, of Python, of libraries."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Any

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
_CACHES = (
    "huggingface/hub",
    "huggingface/datasets",
    "torch/hub",
)  # of content, in the user's folder of caches


def is_ignored(path: str) -> bool:
    """Return whether a path belongs to the system, to Python, to a library, or is neither file nor folder."""
    if f"{os.sep}.git{os.sep}" in path:  # what libraries read that ask which commit this is
        return True
    if path.startswith(_NOT_INPUTS) or path in _SYSTEM_FILES or is_installed(path):
        return True
    caches = os.environ.get("XDG_CACHE_HOME") or f"{_HOME}/.cache"
    if path.startswith(f"{caches}/") and not path.startswith(tuple(f"{caches}/{one}/" for one in _CACHES)):
        return True
    with suppress(OSError):
        mode = os.stat(path).st_mode  # noqa: PTH116
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    return False


def absolute(path: Any) -> str:
    """Return an absolute path; links in it are kept."""
    return os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - it resolves no links
