"""Undo what a run changes in its process, so that the next run there finds it as good as fresh."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import locale
import logging
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from functools import cache, lru_cache
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from trainwright import plugins
from trainwright.process.module_sources import imported_so_far, is_installed

log = logging.getLogger("trainwright")
# Parameters of glibc's mallopt(3), and values of theirs.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER, _GREATEST_MMAP = -1, 32 * 1024**2
_USUAL_TRIM = 2 * _GREATEST_MMAP  # what glibc sets by itself along with that threshold
_MUCH = 16 * 1024**2  # free bytes

# scikit-learn sets these when it is imported, for every OpenMP library that this process loads later.
_OF_THE_PROCESS = ("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK")


@contextlib.contextmanager
def as_fresh_process() -> Iterator[None]:
    """Run what is inside in a process that is as good as a fresh one, and undo its changes at the end.

    The user's modules that it imports are forgotten: the next run imports its own, which may have the same
    names, and whatever they compute or draw when they are imported is done again.
    """
    _reset_libraries()
    before = imported_so_far()
    known = _modules(before)
    undo = [_environment(), _search_path(), _signal_handlers(), _others()]
    with warnings.catch_warnings(), _garbage_of_its_own():
        try:
            yield
        finally:
            for restore in undo:
                restore()
            _forget_modules(set() if imported_so_far() == before else set(sys.modules) - known)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Wait until no other thread of this process trains a run.

    Random streams, numbers of threads and flags of libraries are those of the process: two runs at once would
    have other bits than each alone. One that trains another, in a callback, goes on after it.
    """
    turn = _turn
    if not turn.acquire(blocking=False):
        log.info("another thread of this process trains a run; this one waits for it")
        turn.acquire()
    try:
        yield
    finally:
        turn.release()


def _begin_as_child() -> None:
    """Let a forked child train: the thread that trains is in its parent, and has the turn there."""
    global _turn  # noqa: PLW0603
    _turn = threading.RLock()


_turn = threading.RLock()
os.register_at_fork(after_in_child=_begin_as_child)


@contextlib.contextmanager
def keeping_freed_memory() -> Iterator[None]:
    """Keep freed memory for the next step, and return it to the system at the end, if it is much.

    This has an effect with glibc only, which by default returns memory and asks for it again within each
    step. The system then clears thousands of pages per step, which can take a tenth of its time. Blocks
    beyond 32 MiB are returned all the same.
    """
    library = _c_library()
    is_set = os.environ.keys() & {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"}  # by the user
    if is_set or library is None or not hasattr(library, "mallopt"):
        yield
        return
    library.mallopt(_MMAP_THRESHOLD, _GREATEST_MMAP)  # it would rise to this by itself
    library.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        library.mallopt(_TRIM_THRESHOLD, _USUAL_TRIM)
        if _free_memory(library) >= _MUCH:  # to return less, and ask for it again, costs time
            library.malloc_trim(0)


@cache
def _c_library() -> ctypes.CDLL | None:
    """Return the C library where it may be glibc, loaded once."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    if hasattr(library, "mallinfo2"):
        library.mallinfo2.restype = _Mallinfo
    return library


class _Mallinfo(ctypes.Structure):
    """The result of mallinfo2(3): ten numbers."""

    _fields_: ClassVar = [
        ("before", ctypes.c_size_t * 8),
        ("free", ctypes.c_size_t),
        ("top", ctypes.c_size_t),
    ]


def _free_memory(library: ctypes.CDLL) -> float:
    """Return the bytes that the allocator has to itself; infinity if it does not say."""
    if not hasattr(library, "mallinfo2"):
        return math.inf
    return int(library.mallinfo2().free)


@contextlib.contextmanager
def _garbage_of_its_own() -> Iterator[None]:
    """Collect only garbage of what is inside: to look at what libraries hold takes 0.1 s each time."""
    if gc.get_freeze_count():  # someone else has frozen what there is
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _reset_libraries() -> None:
    """Give the libraries of frameworks that are imported the settings that they have after their import."""
    # Ours are called like their libraries, so that no adapter is imported to find out.
    imported = [name for name in plugins.BUILT_IN["framework"] if name in sys.modules]
    registered = (
        plugin for plugin in plugins.installed() if plugin.kind == "framework" and not plugin.ignored
    )
    used = (plugin for plugin in registered if plugin.target.partition(":")[0] in sys.modules)
    for name in [*imported, *(plugin.name for plugin in used if plugins.error_of(plugin) is None)]:
        framework = plugins.adapter("framework", name)
        if any(module in sys.modules for module in framework.library.modules):
            framework.reset()


def _environment() -> Callable[[], None]:
    """Return what restores the environment variables."""
    before = dict(os.environ)

    def restore() -> None:
        for name in set(os.environ) - set(before) - set(_OF_THE_PROCESS):
            del os.environ[name]
        if os.environ != before:
            os.environ.update(before)
        time.tzset()

    return restore


def _search_path() -> Callable[[], None]:
    """Return what restores the folders that modules are imported from."""
    before = list(sys.path)

    def restore() -> None:
        sys.path[:] = before

    return restore


def _signal_handlers() -> Callable[[], None]:
    """Return what restores the signal handlers, as far as they were set in Python."""
    if threading.current_thread() is not threading.main_thread():  # no other thread may set them
        return lambda: None
    before = {number: signal.getsignal(number) for number in _signals()}

    def restore() -> None:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)

    return restore


@cache
def _signals() -> list[int]:
    """Return the numbers of the signals that there are; to list them takes longer than to look at each."""
    return [int(number) for number in signal.valid_signals()]


def _others() -> Callable[[], None]:
    """Return what restores NumPy's settings, the locale, the processors, the way processes start."""
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    errors, language = np.geterr(), locale.setlocale(locale.LC_ALL)
    start = multiprocessing.get_start_method(allow_none=True)
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None

    def restore() -> None:
        if np.random.get_bit_generator() is not generator:  # type: ignore[attr-defined]
            np.random.set_bit_generator(generator)  # type: ignore[attr-defined]
        np.seterr(**errors)
        locale.setlocale(locale.LC_ALL, language)
        multiprocessing.set_start_method(start, force=True)
        if processors is not None and os.sched_getaffinity(0) != processors:
            os.sched_setaffinity(0, processors)

    return restore


def _forget_modules(names: Collection[str]) -> None:
    """Forget modules of the user's; libraries, and the packages that plugins come from, stay."""
    registered = {plugin.target.partition(":")[0].partition(".")[0] for plugin in plugins.installed()}
    for name in names:
        if name.partition(".")[0] not in registered and _is_users(sys.modules.get(name)):
            del sys.modules[name]
    folders = sys.path_importer_cache
    for finder in _finders(len(folders), next(reversed(folders), "")):
        finder.invalidate_caches()  # a file may have been written a moment ago
    gc.collect()  # what the run has computed with may fill the memory of a device


@lru_cache(maxsize=1)
def _modules(so_far: tuple[int, str, int]) -> frozenset[str]:  # noqa: ARG001 - the key of the cache
    """Return the names of the modules."""
    return frozenset(sys.modules)


@lru_cache(maxsize=1)
def _finders(folders: int, newest: str) -> list[Any]:  # noqa: ARG001 - the key of the cache
    """Return what finds modules in folders of the user's; those of libraries take long to tell apart."""
    found = {folder: finder for folder, finder in sys.path_importer_cache.items() if not is_installed(folder)}
    return [finder for finder in found.values() if hasattr(finder, "invalidate_caches")]


def _is_users(module: ModuleType | None) -> bool:
    """Return whether a module is Python source of the user's, or a folder of such modules."""
    file = getattr(module, "__file__", None)
    paths = [file] if file else list(getattr(module, "__path__", ()))
    is_source = file is None or file.endswith(".py")
    return bool(paths) and is_source and not any(map(is_installed, paths))
