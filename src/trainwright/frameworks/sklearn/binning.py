"""Cache the binned rows and predictions that histogram gradient boosting recomputes whenever `fit` continues.

Both depend only on what stays the same between two steps, so caching them changes no bit. For 100,000 rows of
50 features they take as long as forty iterations. The cache replaces two internal methods while `fit` runs;
with a version of scikit-learn that does not have these methods, nothing is cached.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from trainwright.types import Array

_INTERNAL = ("_bin_data", "_raw_predict", "_predict_iterations")


class BinCache:
    """The binned training rows of one estimator, and the sums of its trees' values for these rows."""

    def __init__(self) -> None:
        self._mapper: Any = None
        self._binned: Array | None = None
        self._sums: Array | None = None
        self._iterations = 0  # included in `_sums`

    @contextmanager
    def reused(self, estimator: Any) -> Iterator[None]:
        """Make `fit` use the cache inside the context; all fits must be on the same rows."""
        if not all(hasattr(estimator, name) for name in _INTERNAL):
            yield
            return
        compute_bins = estimator._bin_data

        def bin_data(*args: Any, **kwargs: Any) -> Array:
            if self._binned is None:
                self._binned, self._mapper = compute_bins(*args, **kwargs), estimator._bin_mapper
            estimator._bin_mapper = self._mapper
            return self._binned

        estimator._bin_data = bin_data
        estimator._raw_predict = lambda rows, n_threads=None: self._raw_predictions(
            estimator, rows, n_threads
        )
        try:
            yield
        finally:
            del estimator._bin_data, estimator._raw_predict

    def _raw_predictions(self, estimator: Any, rows: Array, threads: int | None) -> Array:
        """Return (rows, trees per iteration): the sums over all iterations, added in their order."""
        if self._sums is None:
            start = estimator._baseline_prediction
            self._sums = np.zeros((rows.shape[0], start.shape[1]), dtype=start.dtype, order="F")
            self._sums += start
        new = estimator._predictors[self._iterations :]
        estimator._predict_iterations(rows, new, self._sums, True, threads)
        self._iterations += len(new)
        return self._sums.copy(order="F")
