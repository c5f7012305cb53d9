"""Weight histograms, for trackers that show them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trainwright.callbacks.base import Callback
from trainwright.frameworks.base import Learner

_BINS = 30
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


class WeightHistograms(Callback):
    """Emit a histogram of every floating-point tensor of the model at each evaluation."""

    def __init__(self, learner: Learner, emit: Callable[[int, dict[str, Any]], None]) -> None:
        self._learner = learner
        self._emit = emit

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:  # noqa: ARG002
        """Emit the histograms."""
        histograms = {}
        for tensor in self._learner.state(weights_only=True):
            if tensor.dtype in _DTYPES and len(tensor.buffer):
                values = np.frombuffer(tensor.buffer, dtype=_DTYPES[tensor.dtype]).astype(np.float64)
                finite = values[np.isfinite(values)]
                counts, edges = np.histogram(finite, bins=_BINS)
                histograms[tensor.name.partition(".")[2]] = {
                    "edges": edges.tolist(),
                    "counts": counts.tolist(),
                    "sum": float(finite.sum()),
                    "sum_squares": float(np.square(finite).sum()),
                }
        self._emit(step, histograms)
