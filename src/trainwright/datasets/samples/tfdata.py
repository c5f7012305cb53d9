"""Read `tf.data.Dataset` objects of (features, target) pairs into arrays, without importing TensorFlow."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.errors import DataError
from trainwright.types import Array

_INFINITE = -1  # tf.data.INFINITE_CARDINALITY


def is_tf_dataset(part: Any) -> bool:
    """Return whether this is a `tf.data.Dataset`, judged by its methods."""
    return all(hasattr(part, name) for name in ("as_numpy_iterator", "element_spec", "cardinality"))


def from_tf_dataset(part: Any, what: str) -> tuple[Array, Array]:
    """Return features (rows, ...) and targets, (rows,) or (rows, outputs), in the order of the dataset.

    A dataset counts as batched if both first dimensions are unknown, or equal. It is read once: a dataset
    that shuffles without a seed gives other rows to each process, and a run cannot be resumed on other rows.

    Args:
        part: The dataset.
        what: Its name in messages.

    Raises:
        DataError: Its elements are not pairs, their shapes differ, or it never ends.
    """
    spec = part.element_spec
    if not (isinstance(spec, tuple) and len(spec) == 2 and all(hasattr(one, "shape") for one in spec)):
        raise DataError(
            f"{what}: a tf.data.Dataset must yield (features, target) pairs of one tensor each, but yields "
            f"{spec}"
        )
    if int(part.cardinality()) == _INFINITE:
        raise DataError(
            f"{what}: the tf.data.Dataset never ends; remove its repeat(), because Trainwright counts the "
            "epochs"
        )
    pairs = list(part.as_numpy_iterator())
    if not pairs:
        raise DataError(f"{what}: the tf.data.Dataset is empty")
    try:
        join = np.concatenate if _is_batched(*spec) else np.stack
        features, targets = (join([np.asarray(pair[i]) for pair in pairs]) for i in range(2))
    except ValueError as error:
        raise DataError(
            f"{what}: the elements of the tf.data.Dataset differ in shape: {error}; pad or "
            "crop them to one shape"
        ) from error
    return features, _texts(targets)


def _is_batched(features: Any, target: Any) -> bool:
    ranks = [spec.shape.rank for spec in (features, target)]
    if None in ranks or 0 in ranks:
        return False
    first, second = (spec.shape.as_list()[0] for spec in (features, target))
    return bool(first == second)


def _texts(targets: Array) -> Array:
    """Decode class names, which are bytes."""
    return (
        np.array([value.decode() for value in targets], dtype=object)
        if targets.dtype.kind in "OS"
        else targets
    )
