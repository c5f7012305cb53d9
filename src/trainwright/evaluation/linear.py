"""A linear model in closed form or a few steps: the baseline that a model should beat, in milliseconds.

It is ridge regression, and for probabilities softmax or logistic regression by the fixed bound of the Hessian
of Böhning and Lindsay (1988), whose one factorization serves all steps.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainwright.tasks.base import Floats
from trainwright.types import Array

MAX_ROWS = 3000  # that it learns from
MAX_FEATURES = 100
_RIDGE = 1e-3  # for each row, on standardized features
_STEPS = 100
_SMALL = 1e-3  # change of the weights, from which the model is good enough
_BOUND = 0.5  # of the curvature of probabilities


class LinearModel:
    """A linear model of standardized features, where a missing value is the mean.

    Args:
        features: The features to learn from, (rows, features).
        targets: What to predict, (rows, outputs): values, or 0 and 1.
        link: Turns (rows, outputs) margins into predictions; None: they are the values.
    """

    def __init__(
        self, features: Array, targets: Floats, link: Callable[[Array], Array] | None = None
    ) -> None:
        numbers = np.asarray(features, np.float64)
        known = np.isfinite(numbers)
        counts = np.maximum(known.sum(axis=0), 1)
        self._mean = np.where(known, numbers, 0.0).sum(axis=0) / counts
        deviations = np.where(known, numbers - self._mean, 0.0)
        scale = np.sqrt((deviations**2).sum(axis=0) / counts)
        self._scale = np.where(scale > 1e-12, scale, 1.0)
        self._link = link
        self._fit(self._inputs(numbers), targets)

    def _fit(self, inputs: Floats, targets: Floats) -> None:
        steps, bound = (1, 1.0) if self._link is None else (_STEPS, _BOUND)
        ridge = np.full(inputs.shape[1], _RIDGE * len(inputs))
        ridge[-1] = 1e-9 * len(inputs)  # the constant is free
        inverse = np.linalg.inv(bound * inputs.T @ inputs + np.diag(ridge))
        self._weights: Floats = np.zeros((inputs.shape[1], targets.shape[1]))
        for _ in range(steps):
            errors = self._predictions(inputs) - targets  # (rows, outputs)
            gradient = inputs.T @ errors + ridge[:, None] * self._weights  # (features + 1, outputs)
            change = inverse @ gradient
            self._weights = self._weights - change
            if np.abs(change).max(initial=0.0) < _SMALL:
                break

    def _inputs(self, features: Array) -> Floats:
        """Return the standardized features and a constant, (rows, features + 1)."""
        scaled = (np.asarray(features, np.float64) - self._mean) / self._scale
        scaled = np.clip(np.where(np.isfinite(scaled), scaled, 0.0), -10, 10)
        return np.concatenate([scaled, np.ones((len(scaled), 1))], axis=1)

    def _predictions(self, inputs: Floats) -> Floats:
        margins = inputs @ self._weights
        return margins if self._link is None else np.asarray(self._link(margins), np.float64)

    def predict(self, features: Array) -> Floats:
        """Return (rows, outputs) predictions for (rows, features)."""
        return self._predictions(self._inputs(features))
