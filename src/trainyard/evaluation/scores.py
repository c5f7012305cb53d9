"""The outputs and targets that metrics are computed from, with cached intermediate results."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from trainyard.types import Array


@dataclass(frozen=True, eq=False)
class Scores:
    """Outputs and targets of at least one row; all values are finite.

    Classification: `outputs` (rows, classes) probabilities, `targets` (rows,) int64 class indices.
    Regression: both (rows, outputs) float64.
    """

    outputs: Array
    targets: Array

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """(rows,) int64: the most probable class of each row; of equally probable ones the first."""
        best: NDArray[np.int64] = np.argmax(self.outputs, axis=1)
        return best

    @cached_property
    def confusion(self) -> NDArray[np.int64]:
        """(classes, classes) int64: `[i, j]` counts the rows of class i that were predicted as class j."""
        classes = self.outputs.shape[1]
        counts = np.bincount(self.targets * classes + self.predicted, minlength=classes * classes)
        return counts.astype(np.int64, copy=False).reshape(classes, classes)

    @cached_property
    def true_probability(self) -> Array:
        """(rows,), in the dtype of the outputs: the predicted probability of the true class."""
        return np.take_along_axis(self.outputs, self.targets[:, None], axis=1)[:, 0]
