"""Data that the runs of a study share: read and prepared once for all runs that prepare them alike.

They are kept in the user's cache of data, in a file that each run maps into its memory: the workers of a
machine read and prepare once, and hold one copy. What cannot be kept in a file (data frames) is kept in
memory, by each process for itself.

The key of data covers all that they depend on, the content of their files included: what has changed is read
again, as it would be without this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from trainwright.config.schema import DataConfig
from trainwright.datasets.base import DataBundle, Dataset, KnownSources, LoadRequest
from trainwright.datasets.samples.bundle_files import FORMAT, BundleFile, copied, packed, write
from trainwright.datasets.samples.cache import DataCache, data_cache
from trainwright.datasets.samples.file_hashes import hashes_of
from trainwright.digest import sha256_json
from trainwright.errors import DataError, InputError
from trainwright.process.machine import available_memory
from trainwright.redact import redacted
from trainwright.require import import_paths
from trainwright.runs.code_identity import own_hash
from trainwright.runs.environment import imported_packages, machine_identity
from trainwright.types import FeatureForm

log = logging.getLogger("trainwright")
_MOST = 32  # preparations that a process remembers: those of folds, or of values that a search tries
_MEMORY_SHARE = 0.25  # of the memory that is available, for what cannot be mapped


class _Kept(NamedTuple):
    """Data of one key: a function that returns them for a run, their size in memory, and their properties."""

    bundle: Callable[[], DataBundle]
    bytes: int
    known: dict[str, Any]


@dataclass
class SharedData:
    """The data that the runs of this process share, by what they depend on; the newest come last."""

    _kept: dict[str, _Kept] = field(default_factory=dict)
    _imported: set[str] = field(default_factory=set)  # distributions, to read data

    def bundle(self, dataset: Dataset, config: DataConfig, request: LoadRequest) -> DataBundle:
        """Return the data of a run, read now or before.

        Raises:
            DataError, MissingExtraError: As `Dataset.load`.
        """
        key = _key(dataset, config, request.form)
        if key is None:
            return dataset.load(request)
        kept = self._kept.pop(key, None) or self._made(key, dataset, config, request)
        if kept is None:
            return dataset.load(request)
        self._kept[key] = kept
        self._forget()
        bundle = kept.bundle()
        bundle.share(kept.known)
        return bundle

    def _made(self, key: str, dataset: Dataset, config: DataConfig, request: LoadRequest) -> _Kept | None:
        """Read the data, unless a file holds them; None if their source has changed meanwhile."""
        cache, identity = data_cache(), f"data {key}"
        path: Path | None = None
        is_usable = type(dataset).__module__.startswith("trainwright.")  # a user's code is not in the key
        with ExitStack() as stack:
            if is_usable:
                try:
                    stack.enter_context(cache.making(identity))
                    path = cache.found(identity)
                except (DataError, OSError) as error:
                    log.info("%s; each process reads its data", error)
                    is_usable = False
            if path is None:
                bundle = self._read(dataset, request)
                if _key(dataset, config, request.form) != key:
                    return None
                if not is_usable or (path := _written(cache, identity, bundle, config)) is None:
                    return _in_memory(bundle)
        return _Kept(BundleFile(path).bundle, 0, {})

    def _read(self, dataset: Dataset, request: LoadRequest) -> DataBundle:
        """Read the data, and note what is imported for that: a run that maps them depends on it, too."""
        before = imported_packages()
        bundle = dataset.load(request)
        self._imported |= set(imported_packages()) - set(before)
        return replace(bundle, packages=sorted(self._imported))

    def _forget(self) -> None:
        """Forget the data that were used least recently, but for the newest, where they are too many."""
        while len(self._kept) > _MOST or (len(self._kept) > 1 and self._fill_the_memory()):
            del self._kept[next(iter(self._kept))]

    def _fill_the_memory(self) -> bool:
        held = sum(kept.bytes for kept in self._kept.values())
        return held > 0 and held > _MEMORY_SHARE * (available_memory() or float("inf"))


def _written(cache: DataCache, identity: str, bundle: DataBundle, config: DataConfig) -> Path | None:
    """Write data into the cache, and return the file; None if it cannot hold them, or has no room."""
    if (data := packed(bundle)) is None:
        return None
    what = f"the prepared data of {redacted(config.path or config.train_path or config.type)}"
    try:
        return cache.made(identity, what, data.bytes, lambda new: write(new, data))
    except DataError as error:
        log.info("%s; each process keeps them in its memory", error)
        return None


def _in_memory(bundle: DataBundle) -> _Kept:
    """Keep data in memory; each run has a copy of the arrays, which it may change."""
    size = sum(
        int(getattr(array, "nbytes", 0) if not hasattr(array, "memory_usage") else array.memory_usage().sum())
        for split in bundle.splits.values()
        for array in getattr(split, "arrays", {}).values()
    )
    return _Kept(lambda: replace(bundle, splits=copied(bundle.splits)), size, {})


_shared: ContextVar[SharedData | None] = ContextVar("shared_data", default=None)


@contextmanager
def sharing_data() -> Iterator[None]:
    """Have the runs inside share the data that they prepare alike."""
    if _shared.get() is not None:
        yield
        return
    token = _shared.set(SharedData())
    try:
        yield
    finally:
        _shared.reset(token)


def loaded(dataset: Dataset, config: DataConfig, request: LoadRequest) -> DataBundle:
    """Return the data of a run: those that it shares with others, or read for it alone.

    Raises:
        DataError, MissingExtraError: As `Dataset.load`.
    """
    shared = _shared.get()
    return dataset.load(request) if shared is None else shared.bundle(dataset, config, request)


def _key(dataset: Dataset, config: DataConfig, form: FeatureForm) -> str | None:
    """Return what identifies all that the data depend on; None if that is not known."""
    section = config.model_dump(mode="json")
    if not isinstance(dataset, KnownSources) or any(import_paths(section)):
        return None
    try:
        if (sources := dataset.sources()) is None:
            return None
        hashes = hashes_of(sources)
    except InputError:
        return None  # reading them says what is wrong
    ours = [FORMAT, own_hash(frozenset())]
    return sha256_json([ours, machine_identity(), section, list(form), list(sources), hashes])
