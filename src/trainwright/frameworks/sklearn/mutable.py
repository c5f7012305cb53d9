"""State that predictions change: parts of some estimators, and settings of the process."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainwright.frameworks.sklearn.storage import LIBRARIES

# The packages whose objects predictions do not change, but for some estimators.
_UNCHANGED = {"functools", *LIBRARIES}
# Estimators of scikit-learn that change themselves when they transform rows.
_CHANGED = {"IterativeImputer", "KBinsDiscretizer"}
# Beginnings of the import paths of estimators for whose predictions scikit-learn sets the number of BLAS
# threads, or the filters of warnings (in each of joblib's tasks).
_CHANGE_SETTINGS = (
    "sklearn.cluster.",
    "sklearn.compose._column_transformer.",
    "sklearn.decomposition._dict_learning.",
    "sklearn.decomposition._lda.",
    "sklearn.ensemble._bagging.",
    "sklearn.ensemble._forest.",
    "sklearn.ensemble._iforest.",
    "sklearn.manifold.",
    "sklearn.multioutput.",
    "sklearn.neighbors.",
    "sklearn.pipeline.FeatureUnion",
    "sklearn.semi_supervised.",
)


class MutableParts:
    """The parts of an estimator that a prediction may change.

    They are the user's own objects, which may, for example, draw from a generator that they keep, and a few
    estimators of scikit-learn. Predictions on copies depend neither on earlier ones nor on other threads.
    """

    def __init__(self, estimator: Any) -> None:
        self._fixed: dict[int, Any] = {}  # estimators without such a part, by `id`
        self._seen: dict[int, bool] = {}
        self._any = self._is_mutable(estimator)

    def copied(self, estimator: Any) -> Any:
        """Return a copy that shares all other parts with the estimator; itself, if there are no such parts.

        Args:
            estimator: The estimator that this object was made of.
        """
        return copy.deepcopy(estimator, dict(self._fixed)) if self._any else estimator

    def _is_mutable(self, value: Any) -> bool:
        """Return whether a prediction may change a value or a part of it."""
        from sklearn.base import BaseEstimator

        if id(value) not in self._seen:
            self._seen[id(value)] = False  # ends cycles
            changes = not isinstance(value, type) and not _is_unchanged(value)
            inside = [self._is_mutable(part) for part in _parts(value)]  # all of them, for `_fixed`
            self._seen[id(value)] = changes or any(inside)
            if isinstance(value, BaseEstimator) and not self._seen[id(value)]:
                self._fixed[id(value)] = value
        return self._seen[id(value)]


def changes_settings(estimator: Any) -> bool:
    """Return whether predictions of an estimator may change settings of the process for a moment."""
    seen: set[int] = set()

    def visit(value: Any) -> bool:
        if id(value) in seen:
            return False
        seen.add(id(value))
        path = f"{type(value).__module__}.{type(value).__qualname__}"
        return path.startswith(_CHANGE_SETTINGS) or any(visit(part) for part in _parts(value))

    return visit(estimator)


def _is_unchanged(value: Any) -> bool:
    """Return whether predictions change no object of this type."""
    kind = type(value)
    return kind.__module__.partition(".")[0] in _UNCHANGED and kind.__name__ not in _CHANGED


def _parts(value: Any) -> Iterator[Any]:
    """Yield the items of a container, or the attributes of an estimator or object of scikit-learn."""
    from sklearn.base import BaseEstimator

    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        yield from value
    elif isinstance(value, np.ndarray):
        yield from value.flat if value.dtype == object else ()
    elif isinstance(value, BaseEstimator) or type(value).__module__.startswith("sklearn."):
        yield from getattr(value, "__dict__", {}).values()
