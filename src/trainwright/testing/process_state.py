"""State that a library may change for a whole process: thread counts, flags, generators, filters."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import sys
import warnings
from collections.abc import Callable, Mapping
from ctypes import c_int
from pathlib import Path
from typing import Any

import numpy as np

# The settings of each library that are compared; a library that is not imported yet is skipped.
_OF_TORCH: Mapping[str, Callable[[Any], object]] = {
    "threads": lambda torch: torch.get_num_threads(),
    "interop threads": lambda torch: torch.get_num_interop_threads(),
    "fast attention": lambda torch: torch.backends.mha.get_fastpath_enabled(),
    "deterministic": lambda torch: torch.get_deterministic_debug_mode(),
    "fills memory": lambda torch: torch.utils.deterministic.fill_uninitialized_memory,
    "cudnn": lambda torch: (torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
    "generator": lambda torch: torch.get_rng_state().tolist(),
    "dtype": lambda torch: torch.get_default_dtype(),
    "device": lambda torch: torch.get_default_device(),
    "gradients": lambda torch: torch.is_grad_enabled(),
}
_OF_KERAS: Mapping[str, Callable[[Any], object]] = {
    "floatx": lambda keras: (keras.config.floatx(), keras.config.epsilon(), keras.config.image_data_format()),
    "policy": lambda keras: keras.config.dtype_policy().name,
    "backend": lambda keras: keras.config.backend(),
}
_OF_TENSORFLOW: Mapping[str, Callable[[Any], object]] = {
    "threads": lambda tf: (
        tf.config.threading.get_intra_op_parallelism_threads(),
        tf.config.threading.get_inter_op_parallelism_threads(),
    ),
    "deterministic": lambda tf: (
        tf.config.experimental.is_op_determinism_enabled()
        if hasattr(tf.config.experimental, "is_op_determinism_enabled")
        else None
    ),
}
_LIBRARIES: Mapping[str, Mapping[str, Callable[[Any], object]]] = {
    "torch": _OF_TORCH,
    "keras": _OF_KERAS,
    "tensorflow": _OF_TENSORFLOW,
    "xgboost": {"config": lambda xgboost: xgboost.get_config()},
    "lightgbm": {
        "logger": lambda lightgbm: id(lightgbm.basic._LOGGER),
        "threads": lambda lightgbm: c_int.in_dll(lightgbm.basic._LIB, "LGBM_DEFAULT_NUM_THREADS").value,
    },
    "sklearn": {"config": lambda sklearn: sklearn.get_config()},
    "threadpoolctl": {
        "pools": lambda threadpoolctl: sorted(
            (pool["filepath"], pool["num_threads"]) for pool in threadpoolctl.threadpool_info()
        )
    },
}


def process_state() -> dict[str, str]:
    """Return what a library may change for the whole process, by name; long values are hashed."""
    state: dict[str, object] = {
        "random": random.getstate(),
        "numpy.random": np.random.get_state(legacy=True),
        "numpy.errors": np.geterr(),
        "environment": sorted(os.environ.items()),
        "warnings": warnings.filters,
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "folder": str(Path.cwd()),
        "path": sys.path,
    }
    for name, settings in _LIBRARIES.items():
        if (library := sys.modules.get(name)) is not None:
            state |= {f"{name} {key}": read(library) for key, read in settings.items()}
    return {name: _short(repr(value)) for name, value in state.items()}


def _short(text: str) -> str:
    return text if len(text) < 200 else hashlib.sha256(text.encode()).hexdigest()
