"""Settings of the whole process that scikit-learn changes: numbers of threads, and filters of warnings."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from trainwright.require import require

# Held while settings are changed for a time. Of two threads that do so at once, the one that ends last would
# restore what the other had set, for good. Each step of a learner holds it, too.
SETTINGS_LOCK = threading.RLock()


def thread_pools() -> Any:
    """Return threadpoolctl's view of the libraries of BLAS and OpenMP that this process has loaded."""
    return require("threadpoolctl", "sklearn").ThreadpoolController()


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
