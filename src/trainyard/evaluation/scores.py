"""The outputs of a model beside the targets, and what several metrics need of them, computed once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainyard.types import Array


@dataclass(frozen=True, eq=False)
class Scores:
    """What metrics are computed from.

    Classification: `outputs` (rows, classes) probabilities, `targets` (rows,) int64 class indices. Regression: both
    (rows, outputs), in float64. All values are finite, and there is at least one row.
    """

    outputs: Array
    targets: Array

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """(rows,) int64: the most probable class of each row, the first one of equals."""
        best: NDArray[np.int64] = np.argmax(self.outputs, axis=1)
        return best

    @cached_property
    def confusion(self) -> NDArray[np.int64]:
        """(classes, classes) int64: `[i, j]` counts the rows of class i that were taken for class j."""
        classes = self.outputs.shape[1]
        counts = np.bincount(self.targets * classes + self.predicted, minlength=classes * classes)
        return counts.astype(np.int64, copy=False).reshape(classes, classes)

    @cached_property
    def true_probability(self) -> Array:
        """(rows,) float32: the probability that was given to the true class."""
        return np.take_along_axis(self.outputs, self.targets[:, None], axis=1)[:, 0]
