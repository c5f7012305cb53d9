"""The device that XGBoost computes on; found without another library."""

from __future__ import annotations

import ctypes

from trainyard.errors import ModelError
from trainyard.frameworks.xgboost.library import xgboost


def chosen_device(name: str) -> str:
    """`cpu`, `cuda` or `cuda:NUMBER` for a value of `training.device`.

    Raises:
        MissingExtraError: the library is not installed.
        ModelError: it cannot compute there.
    """
    if name == "cpu":
        return name
    lacking = _lacking()
    if name == "auto":
        return "cpu" if lacking else "cuda"
    if lacking:
        raise ModelError(f"training.device: {name} was asked for, but {lacking}; use cpu or auto")
    return name


def _lacking() -> str:
    """Why there is no CUDA, or nothing."""
    if not xgboost().build_info()["USE_CUDA"]:
        return "this xgboost was built without CUDA (the package xgboost-cpu is; xgboost has it)"
    return "" if _cuda_devices() else "there is no CUDA device"


def _cuda_devices() -> int:
    """How many the driver shows, with respect to CUDA_VISIBLE_DEVICES."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0
