"""Settings of the whole process that scikit-learn or its users change: options, threads, warning filters."""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from trainwright.process.environ import threads_in
from trainwright.require import require

# Held while settings are changed for a time. Of two threads that do so at once, the one that ends last would
# restore what the other had set, for good. Each step of a learner holds it, too.
SETTINGS_LOCK = threading.RLock()
# scikit-learn's settings after its import that numbers may depend on.
_DEFAULTS = {
    "assume_finite": False,
    "working_memory": 1024,
    "pairwise_dist_chunk_size": 256,
    "enable_cython_pairwise_dist": True,
    "array_api_dispatch": False,
    "transform_output": "default",
    "enable_metadata_routing": False,
    "skip_parameter_validation": False,
}


def thread_pools() -> Any:
    """Return threadpoolctl's view of the libraries of BLAS and OpenMP that this process has loaded."""
    return require("threadpoolctl", "sklearn").ThreadpoolController()


@lru_cache(maxsize=1)
def _pools(modules: int) -> Any:  # noqa: ARG001 - the key of the cache
    """Return `thread_pools()`, again only when the number of imported `modules` has changed.

    The call takes 3 ms, and only the import of a module loads another library.
    """
    return thread_pools()


def pin_threads(threads: int) -> None:
    """Set the number of threads of BLAS in this process, and of OpenMP in this thread.

    Raises:
        MissingExtraError: scikit-learn or threadpoolctl is not installed.
    """
    require("sklearn", "sklearn")  # which loads the libraries
    with SETTINGS_LOCK:
        thread_pools().limit(limits=threads)


@contextmanager
def settings_kept(pools: Any) -> Iterator[None]:
    """Let scikit-learn change settings within, while no other thread does, and restore them."""
    with SETTINGS_LOCK, warnings.catch_warnings(), pools.limit(limits=None):
        yield


def reset_settings() -> None:
    """Restore the initial settings of scikit-learn, and of the BLAS libraries that it limits."""
    require("sklearn", "sklearn").set_config(**_DEFAULTS)
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    given = (threads_in(os.environ.get(name, "")) for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"))
    _pools(len(sys.modules)).limit(limits=next(filter(None, given), processors) or 1)
