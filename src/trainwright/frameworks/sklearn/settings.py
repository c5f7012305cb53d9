"""The settings of scikit-learn that code of the user's may change for the whole process."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import Any

from trainwright.require import require

# What scikit-learn has after its import, as far as numbers may depend on it.
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


def reset() -> None:
    """Give scikit-learn, and the libraries of BLAS that it limits, the settings that they had at first."""
    require("sklearn", "sklearn").set_config(**_DEFAULTS)
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = next(filter(None, map(os.environ.get, ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"))), processors)
    _pools(len(sys.modules)).limit(limits=int(threads or 1))


@lru_cache(maxsize=1)
def _pools(modules: int) -> Any:  # noqa: ARG001 - the key of the cache
    """Return the libraries of BLAS and OpenMP in this process.

    Finding them takes 3 ms. A new one comes with the import of a module, so we search again only when the
    number of `modules` has changed.
    """
    return require("threadpoolctl", "sklearn").ThreadpoolController()
