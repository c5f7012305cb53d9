"""The labels of classes, in estimators that were fitted on their numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

# Packages and modules whose classifiers look up what they answer in `classes_`, and nothing else. Others also
# ask their parts for labels (AdaBoost), or keep them in encoders of their own (voting, stacking).
_LOOK_UP = (
    "sklearn.discriminant_analysis",
    "sklearn.dummy",
    "sklearn.ensemble._forest",
    "sklearn.ensemble._gb",
    "sklearn.ensemble._hist_gradient_boosting",
    "sklearn.linear_model",
    "sklearn.naive_bayes",
    "sklearn.neighbors",
    "sklearn.neural_network",
    "sklearn.svm",
    "sklearn.tree",
)
_ENCODERS = ("_label_encoder", "_label_binarizer")


def name_classes(estimator: Any, labels: NDArray[Any]) -> bool:
    """Make a fitted classifier answer with labels instead of their numbers.

    Args:
        estimator: The classifier, or a pipeline or search that ends in one.
        labels: (classes,) The label of each number.

    Returns:
        Whether it does; otherwise it is unchanged.
    """
    while (inner := _last(estimator)) is not None:
        estimator = inner
    module = type(estimator).__module__
    if not any(module == name or module.startswith(f"{name}.") for name in _LOOK_UP):
        return False
    for part in (estimator, *(vars(estimator).get(name) for name in _ENCODERS)):
        if np.array_equal(vars(part).get("classes_") if part is not None else (), np.arange(len(labels))):
            part.classes_ = labels
    return np.array_equal(estimator.classes_, labels)


def _last(estimator: Any) -> Any:
    """Return the last step of a pipeline, or the best one of a search; None: it is neither."""
    if steps := getattr(estimator, "steps", None):
        return steps[-1][1]
    return getattr(estimator, "best_estimator_", None)
