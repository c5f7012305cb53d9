"""The trees of scikit-learn's estimators."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.exporters.base import names_classes
from trainwright.exporters.trees import AT_MOST, MEMBER, Branch, Ensemble, Leaf, Tree
from trainwright.types import DataInfo


def averaged(estimator: Any) -> list[Any] | None:
    """Return the trees of a tree or forest, whose mean it predicts; None if it is neither, or for labels."""
    from sklearn.ensemble._forest import BaseForest
    from sklearn.tree import BaseDecisionTree

    if getattr(estimator, "n_outputs_", 1) != 1 and hasattr(estimator, "classes_"):
        return None
    if isinstance(estimator, BaseDecisionTree):
        return [estimator.tree_]
    return [one.tree_ for one in estimator.estimators_] if isinstance(estimator, BaseForest) else None


def boosted(estimator: Any, info: DataInfo) -> Ensemble:
    """Return the trees of histogram gradient boosting, whose splits are by numbers and by categories."""
    reading = _Columns(estimator)
    trees = [
        reading.tree(one, target) for of_round in estimator._predictors for target, one in enumerate(of_round)
    ]
    width = estimator.n_trees_per_iteration_
    if names_classes(info):
        link = "sigmoid" if width == 1 else "softmax"
    else:
        link = "exp" if estimator.loss in ("poisson", "gamma") else "identity"
    return Ensemble(trees, width, link, np.ravel(estimator._baseline_prediction).astype(np.float64))


class _Columns:
    """The columns of histogram gradient boosting, which has those of categories first, in other codes."""

    def __init__(self, estimator: Any) -> None:
        self._known, self._places = estimator._bin_mapper.make_known_categories_bitsets()
        encoder, is_category = estimator._preprocessor, estimator.is_categorical_
        self._order, self._codes = np.arange(estimator.n_features_in_), []
        if encoder is not None:
            self._order = np.concatenate([np.flatnonzero(is_category), np.flatnonzero(~is_category)])
            self._codes = encoder.named_transformers_["encoder"].categories_

    def tree(self, predictor: Any, target: int) -> Tree:
        """Return a tree."""
        nodes: list[Branch | Leaf] = []
        for node in predictor.nodes:
            left, right, missing_left = (
                int(node["left"]),
                int(node["right"]),
                bool(node["missing_go_to_left"]),
            )
            feature = int(node["feature_idx"])
            if node["is_leaf"]:
                nodes.append(Leaf(target, float(node["value"])))
            elif not node["is_categorical"]:
                threshold, own = float(node["num_threshold"]), int(self._order[feature])
                nodes.append(Branch(AT_MOST, own, threshold, left, right, missing_left))
            else:
                bits = _members(predictor.raw_left_cat_bitsets[node["bitset_idx"]])
                nodes.append(self._by_category(feature, bits, left, right, missing_left))
        return nodes

    def _by_category(self, feature: int, bits: set[int], left: int, right: int, missing_left: bool) -> Branch:
        """Return a split by categories, where one that training did not have goes where missing ones go."""
        every = _members(self._known[self._places[feature]])
        chosen = every - bits if missing_left else every & bits
        values = sorted(int(self._codes[feature][one]) for one in chosen)
        yes, no = (right, left) if missing_left else (left, right)
        return Branch(
            MEMBER, int(self._order[feature]), 0.0, yes, no, missing_is_yes=False, categories=values
        )


def _members(bitset: Any) -> set[int]:
    """Return the numbers of a bitset, (8,) uint32."""
    return {32 * i + bit for i, word in enumerate(bitset.tolist()) for bit in range(32) if word >> bit & 1}
