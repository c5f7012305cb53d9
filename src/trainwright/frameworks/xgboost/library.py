"""The import of XGBoost, the device that it computes on, and the translation of its errors."""

from __future__ import annotations

import ctypes
import re
from typing import Any

from trainwright.errors import ModelError
from trainwright.frameworks.boosting.calls import HINT, translator
from trainwright.require import require

# The time, source file and line before the library's message.
_LOG_PREFIX = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


def xgboost() -> Any:
    """Import and return `xgboost`.

    A process that runs nothing but Trainwright does not import scikit-learn along with it: only XGBoost's
    estimators need it.

    Raises:
        MissingExtraError: XGBoost is not installed.
    """
    return require("xgboost", "xgboost", spare="sklearn")


def _readable(text: str) -> tuple[str, str]:
    """Return the message without the C++ stack, and a hint."""
    return _LOG_PREFIX.sub("", (text.splitlines() or [""])[0]), HINT


translated = translator("XGBoostError", _readable)


def chosen_device(name: str, method: str = "hist") -> str:
    """Return `cpu`, `cuda` or `cuda:NUMBER` for a value of `training.device`.

    `auto` prefers CUDA, where XGBoost has every tree method but `exact`.

    Raises:
        MissingExtraError: XGBoost is not installed.
        ModelError: XGBoost cannot compute on that device.
    """
    if name == "cpu" or (name == "auto" and method == "exact"):
        return "cpu"
    if method == "exact":
        raise ModelError(
            f"training.device: {name} given, but tree_method: exact grows trees on the CPU alone; use hist, "
            "or training.device: cpu"
        )
    reason = _cuda_unavailable()
    if name == "auto":
        return "cpu" if reason else "cuda"
    if reason:
        raise ModelError(f"training.device: {name} is not available: {reason}; use cpu or auto")
    return name


def _cuda_unavailable() -> str:
    """Return why CUDA cannot be used, or an empty string."""
    if not xgboost().build_info()["USE_CUDA"]:
        return "this xgboost was built without CUDA (install the package xgboost instead of xgboost-cpu)"
    return "" if _cuda_devices() else "there is no CUDA device"


def _cuda_devices() -> int:
    """Return how many devices the driver reports; it respects CUDA_VISIBLE_DEVICES."""
    count = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0
