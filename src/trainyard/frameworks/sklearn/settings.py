"""The settings of scikit-learn that code of the user's may change for the whole process."""

from __future__ import annotations

import os

from trainyard.require import require

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
    require("threadpoolctl", "sklearn").threadpool_limits(limits=int(threads or 1))
