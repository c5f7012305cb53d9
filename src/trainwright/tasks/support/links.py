"""Inverse link functions: from a model's raw outputs to probabilities."""

from __future__ import annotations

import numpy as np

from trainwright.types import Array


def softmax(margins: Array) -> Array:
    """Return the softmax of (rows, classes) margins, in their dtype."""
    powers = np.exp(margins - margins.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def sigmoid(margins: Array) -> Array:
    """Return the logistic function of margins of any shape, in their dtype."""
    return np.asarray(1 / (1 + np.exp(-margins)))
