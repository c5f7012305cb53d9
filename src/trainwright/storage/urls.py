"""URLs of folders of runs, their stores, and where the working copies of their runs are.

The runs under a URL have their working copies in one folder of the cache (`TRAINWRIGHT_CACHE`, by default
`~/.cache/trainwright`), named by the hash of the URL.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from functools import cache
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from trainwright import plugins
from trainwright.errors import CheckpointError, InputError
from trainwright.safe_files import make_folders, read_regular, write_atomically
from trainwright.stores.base import Store

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_URL_FILE = ".url"  # beside the working copies of the runs under a URL


def is_url(runs_dir: Path | str) -> bool:
    """Return whether a folder of runs is given as a URL."""
    return isinstance(runs_dir, str) and _URL.match(runs_dir) is not None


def cache_folder() -> Path:
    """Return the folder of copies: `TRAINWRIGHT_CACHE`, or `trainwright` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return _absolute(os.environ.get("TRAINWRIGHT_CACHE") or str(Path(base) / "trainwright"))


@cache
def _absolute(path: str) -> Path:
    """Make a path absolute once: a run changes the working directory later."""
    return Path(path).absolute()


def working_folder(url: str) -> Path:
    """Return the folder with the working copies of the runs under a URL, created if necessary.

    Raises:
        InputError: No store has the URL's scheme, or the URL holds credentials, or the folder cannot be made.
    """
    url = url.rstrip("/")
    parts = urlsplit(url)
    if plugins.find("store", parts.scheme) is None:
        known = ", ".join(f"{name}://" for name in plugins.names("store"))
        raise InputError(f"no store has URLs that begin with {parts.scheme}://; there are: {known}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise InputError(
            "the URL of a folder of runs must not hold credentials or options: they come "
            "from the environment (for s3://, from AWS_ACCESS_KEY_ID and so on; see docs/stores.md)"
        )
    folder = cache_folder() / _hash(url)
    try:
        make_folders(folder)
        folder.chmod(0o700)  # a config may hold secrets
        if not (folder / _URL_FILE).exists():
            write_atomically(folder / _URL_FILE, url.encode())
    except OSError as error:
        raise InputError(
            f"cannot make the folder of working copies {folder}: {error.strerror}; "
            "set TRAINWRIGHT_CACHE to another folder"
        ) from error
    return folder


def url_of(runs_dir: Path) -> str | None:
    """Return the URL whose runs have their working copies in a folder, or None for any other folder.

    Only a folder in the cache counts, under the hash of its URL: any other one may come from someone else.
    """
    if runs_dir.absolute().parent != cache_folder():
        return None
    try:
        url = read_regular(runs_dir / _URL_FILE).decode()
    except (OSError, ValueError):
        return None
    return url if runs_dir.name == _hash(url) else None


def store_url(runs_dir: Path) -> str:
    """Return the URL of a folder of runs: that of its store, or of the folder on the local disk."""
    return url_of(runs_dir) or runs_dir.absolute().as_uri()


def run_url(path: Path) -> str | None:
    """Return the URL of the run with this working copy, or None for a run on the local disk."""
    url = url_of(path.absolute().parent.parent)
    return None if url is None else f"{url}/{path.parent.name}/{path.name}"


def refuse_lost_copy(path: Path) -> None:
    """Refuse to train in a working copy outside of the cache folder: nothing would reach the store.

    Raises:
        InputError: The run directory is such a copy.
    """
    if (path.absolute().parent.parent / _URL_FILE).exists():
        raise InputError(
            f"{path} is the working copy of a run in a store, and not in the cache folder {cache_folder()}: "
            "name the run by its URL, or set TRAINWRIGHT_CACHE as it was"
        )


def _hash(url: str) -> str:
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def open_store(url: str) -> Store:
    """Open the store of a URL for reading; `check_store` must follow before anything is committed."""
    return cast(Store, plugins.adapter("store", urlsplit(url).scheme)(url))


def check_store(store: Store, name: str) -> None:
    """Refuse a store that lets two conditional puts win.

    Raises:
        InputError: It does, or nothing can be stored there.
    """
    key = f"probe/{secrets.token_hex(8)}"
    try:
        store.put_if_absent(key, b"first")
        is_second = store.put_if_absent(key, b"second")
        is_sound = not is_second and store.get(key) == b"first"
        store.delete(key)
    except (OSError, CheckpointError) as error:
        raise InputError(f"{name} cannot be used as a store: {error}") from error
    if not is_sound:
        raise InputError(
            f"{name} lets a second conditional put win, so that two processes could both own a run; "
            "use a service that refuses it (those of Amazon, Google and Microsoft do)"
        )
