"""The trees of scikit-learn's estimators, which compare features of float32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble._bagging import BaseBagging
from sklearn.ensemble._forest import BaseForest
from sklearn.tree import BaseDecisionTree

from trainwright.exporters.base import names_classes
from trainwright.exporters.trees import AT_MOST, MEMBER, Branch, Ensemble, Leaf, Tree
from trainwright.types import Array, DataInfo


class Fitted(NamedTuple):
    """A tree whose leaves hold several values.

    Attributes:
        nodes: Its nodes; the values of their leaves are 0.
        values: What the nodes hold, (nodes, values) float64: a value, shares of classes, or of each label.
        weights: The weights of the training rows in each node, (nodes,) float64.
    """

    nodes: Tree
    values: Array
    weights: Array


def fitted(estimator: Any, values: Array | None = None, columns: Array | None = None) -> Fitted:
    """Return the tree of a decision tree.

    Args:
        estimator: The decision tree.
        values: What its nodes hold; default: the predictions of the estimator.
        columns: The column of each of its features; None: they are the same.
    """
    tree = estimator.tree_
    nodes = _nodes(tree, np.zeros(tree.node_count), columns=columns)
    return Fitted(nodes, values_of(estimator) if values is None else values, tree.weighted_n_node_samples)


def averaged(estimator: Any) -> list[Fitted] | None:
    """Return the trees whose mean an estimator predicts; None if it is no tree, forest or bag of trees."""
    if isinstance(estimator, BaseDecisionTree):
        return [fitted(estimator)]
    if isinstance(estimator, BaseForest):
        return [fitted(one) for one in estimator.estimators_]
    if not isinstance(estimator, BaseBagging) or not are_trees(estimator.estimators_):
        return None
    found = []
    for one, columns in zip(estimator.estimators_, estimator.estimators_features_, strict=True):
        values = values_of(one)
        if hasattr(estimator, "classes_"):  # its trees know the classes of their own rows
            own, values = values, np.zeros((len(values), len(estimator.classes_)))
            values[:, np.asarray(one.classes_, np.int64)] = own
        found.append(fitted(one, values, np.asarray(columns)))
    return found


def are_trees(estimators: Sequence[Any]) -> bool:
    """Return whether estimators are decision trees."""
    return all(isinstance(one, BaseDecisionTree) for one in estimators)


def values_of(estimator: Any) -> Array:
    """Return the predictions of a tree's nodes, (nodes, outputs): shares of classes, or of each label."""
    values = estimator.tree_.value  # (nodes, outputs, classes)
    if not hasattr(estimator, "classes_") or estimator.n_outputs_ == 1:
        return np.asarray(values.reshape(len(values), -1))
    labels = [
        values[:, i, 1] if len(known) == 2 else np.full(len(values), float(known[0]))
        for i, known in enumerate(estimator.classes_)
    ]
    return np.stack(labels, axis=1)


def gradient_boosted(estimator: Any, info: DataInfo) -> Ensemble | None:
    """Return the trees of gradient boosting, whose sums begin with a constant; None: with an estimator."""
    if not (estimator.init_ == "zero" or isinstance(estimator.init_, DummyClassifier | DummyRegressor)):
        return None
    start = np.ravel(estimator._raw_predict_init(np.zeros((1, estimator.n_features_in_), np.float32)))
    trees = [
        _nodes(one.tree_, estimator.learning_rate * one.tree_.value[:, 0, 0], target)
        for of_round in estimator.estimators_
        for target, one in enumerate(of_round)
    ]
    link = "identity" if not names_classes(info) else "sigmoid" if len(start) == 1 else "softmax"
    is_exponential = names_classes(info) and estimator.loss == "exponential"  # half of the logit
    return Ensemble(trees, len(start), link, start.astype(np.float64), factor=2.0 if is_exponential else 1.0)


def _nodes(tree: Any, values: Array, target: int = 0, columns: Array | None = None) -> Tree:
    """Return the nodes of a `sklearn.tree._tree.Tree`.

    Args:
        tree: The tree.
        values: What each node adds to a sum, (nodes,).
        target: The sum.
        columns: The column of each feature; None: they are the same.
    """
    features = tree.feature if columns is None else columns[np.maximum(tree.feature, 0)]
    missing_left = getattr(tree, "missing_go_to_left", np.zeros(tree.node_count))
    of_nodes = (tree.children_left, tree.children_right, features, tree.threshold, missing_left, values)
    return [
        Leaf(target, value)
        if left < 0
        else Branch(AT_MOST, feature, threshold, left, right, missing_is_yes=bool(missing))
        for left, right, feature, threshold, missing, value in zip(
            *(one.tolist() for one in of_nodes), strict=True
        )
    ]


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
