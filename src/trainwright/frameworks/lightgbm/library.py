"""The import of LightGBM, the translation of its errors, and its number of threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import c_int
from typing import Any

from trainwright.frameworks.boosting.calls import HINT, translator
from trainwright.require import require


def lightgbm() -> Any:
    """Import and return `lightgbm`, and check that its weights can be stored.

    Raises:
        MissingExtraError: LightGBM or safetensors is not installed.
    """
    require("safetensors", "lightgbm")
    return require("lightgbm", "lightgbm", spare="sklearn")


def _readable(text: str) -> tuple[str, str]:
    """Return the first line, or what it means, and a hint."""
    message = (text.splitlines() or [""])[0].rstrip(".")
    if "num_features" in message:
        return "no feature can be split", "give more rows, or lower model.params.min_child_samples"
    if "was not enabled in this build" in message or "OpenCL" in message:
        hint = "use training.device: cpu, device_type: gpu (OpenCL), or a LightGBM built for the device"
        return message, hint
    return message, HINT


translated = translator("LightGBMError", _readable)


class ThreadNumber:
    """LightGBM's number of threads, which is one for the whole process.

    Every call that takes `num_threads` sets it, and the call itself reads it several times. One that reads
    two numbers writes beyond the end of its buffers, which has a slot for each thread. So a prediction that
    runs at the same time as others must be given the number that is set already, and a new one is set only
    while none is running.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._users = 0
        self._is_wanted = False  # whether `set` waits; then there are no new users

    def set(self, library: Any, number: int) -> None:
        """Set the number when the last user has left."""
        with self._changed:
            self._is_wanted = True
            try:
                self._changed.wait_for(lambda: not self._users)
                _variable(library).value = number
            finally:
                self._is_wanted = False
                self._changed.notify_all()

    @contextmanager
    def kept(self, library: Any) -> Iterator[int]:
        """Yield the `num_threads` for calls that leave the number as it is (0: OpenMP's own number)."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_wanted)
            self._users += 1
            number = max(0, _variable(library).value)
        try:
            yield number
        finally:
            with self._changed:
                self._users -= 1
                self._changed.notify_all()


THREAD_NUMBER = ThreadNumber()


def _variable(library: Any) -> c_int:
    # Declared in LightGBM's header utils/openmp_wrapper.h; the Python package has no function that reads it.
    return c_int.in_dll(library.basic._LIB, "LGBM_DEFAULT_NUM_THREADS")
