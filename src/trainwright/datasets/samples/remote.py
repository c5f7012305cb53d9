"""Data that are given by the URL of an object in a store, or of several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

from trainwright import plugins
from trainwright.datasets.samples.cache import data_cache
from trainwright.errors import CheckpointError, DataError
from trainwright.require import import_rule
from trainwright.stores.base import DataStore

WILD = "*?["


def fetched(url: str) -> Path:
    """Return a local copy of the object at a URL; see `DataCache`.

    Raises:
        InputError: The URL cannot be read, there is no such object, or no room for a copy.
    """
    store, _, key = _opened(url)
    if not key or key.endswith("/"):
        raise DataError(f"{url} names no object; give one of those below it")
    with _reading():
        return data_cache().file(store, key, url)


def urls_below(url: str) -> list[str]:
    """Return the URLs of the objects below a URL, as if it were a folder, sorted by path components.

    Raises:
        InputError: The URL cannot be read.
    """
    store, bucket, key = _opened(url)
    prefix = f"{key.rstrip('/')}/" if key else ""
    with _reading():
        return [f"{bucket}/{other}" for other in store.list(prefix) if not other.endswith("/")]


def urls_matching(pattern: str) -> list[str]:
    """Return the URLs of the objects that match a `glob` pattern, sorted; `**` matches any folders.

    Raises:
        InputError: The URL cannot be read, or the bucket is a pattern.
    """
    parts = pattern.split("/")  # scheme, nothing, bucket, ...
    fixed = next(i for i, part in enumerate(parts) if any(letter in part for letter in WILD))
    if fixed < 3:
        raise DataError(f"{pattern}: name the bucket; only what is in it can be a pattern")
    below = urls_below("/".join(parts[:fixed]))
    return sorted(url for url in below if matches(url.split("/")[fixed:], parts[fixed:], hidden=False))


def matches(names: Sequence[str], patterns: Sequence[str], *, hidden: bool = True) -> bool:
    """Return whether the names of a path match a pattern each; `**` matches any number of folders.

    Args:
        names: The names of the folders, and of the file.
        patterns: The pattern of each name.
        hidden: Whether `*` stands for names that begin with a dot, too.
    """
    if not patterns:
        return not names
    first, rest = patterns[0], patterns[1:]
    is_open = bool(names) and (hidden or first.startswith(".") or not names[0].startswith("."))
    if first == "**":
        more = is_open and matches(names[1:], patterns, hidden=hidden)
        return more or matches(names, rest, hidden=hidden)
    return is_open and fnmatchcase(names[0], first) and matches(names[1:], rest, hidden=hidden)


def _opened(url: str) -> tuple[DataStore, str, str]:
    """Return the store of a URL's bucket, the URL of the bucket, and the key there.

    Raises:
        InputError: No store has such URLs, or data cannot be read from it, or the URL holds credentials.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme == "file":
        raise DataError(f"{url}: give the path of a file on this machine, without file://")
    if not _has_data(scheme):
        known = ", ".join(f"{name}://" for name in plugins.names("store") if _has_data(name))
        raise DataError(f"{url}: data cannot be read from {scheme}://, only from files and from {known}")
    refuse_credentials(url)
    if (rule := import_rule()) is not None:
        rule.check_outside("data", f"{scheme}://{bucket}")
    store = cast(DataStore, plugins.adapter("store", scheme)(f"{scheme}://{bucket}"))
    return store, f"{scheme}://{bucket}", key


def refuse_credentials(path: str) -> None:
    """Refuse a path of data that is a URL with credentials, which the config of a run would keep.

    Raises:
        DataError: It has some.
    """
    _, _, rest = path.partition("://")
    if rest and "@" in rest.partition("/")[0]:
        raise DataError("the URL of data must not contain credentials; set them in the environment")


def _has_data(scheme: str) -> bool:
    return hasattr(plugins.find("store", scheme), "version")


@contextmanager
def _reading() -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise DataError(str(error)) from error
