"""Ensembles of scikit-learn's trees in ONNX, which compare features of float32 as the library does.

`skl2onnx` compares float64 in some of them, and does not end where a tree has a split on missing values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto
from sklearn.ensemble import AdaBoostClassifier
from sklearn.ensemble._bagging import BaseBagging
from sklearn.ensemble._forest import BaseForest
from sklearn.ensemble._gb import BaseGradientBoosting
from sklearn.tree import BaseDecisionTree

from trainwright.exporters.onnx.graph import Graph, Value
from trainwright.exporters.onnx.trees import Fitted, add_averaged_trees, add_link, add_trees
from trainwright.exporters.trees import AT_MOST, Branch, Leaf, Tree
from trainwright.types import Array, DataInfo


def add_single_trees(graph: Graph, estimator: Any, info: DataInfo, features: Value) -> Value | None:
    """Add an ensemble of trees, and return its predictions, (rows, outputs); None if it is no such thing.

    Args:
        graph: The graph.
        estimator: An estimator of scikit-learn.
        info: The description of the data.
        features: (rows, features) float32.
    """
    if isinstance(estimator, BaseGradientBoosting):
        return _boosted(graph, estimator, info, features)
    if isinstance(estimator, AdaBoostClassifier):
        return _voted(graph, estimator, features)
    trees = _averaged(estimator)
    return None if trees is None else add_averaged_trees(graph, trees, features)


def _averaged(estimator: Any) -> list[Fitted] | None:
    """Return the trees whose mean an estimator predicts; None if it is no tree, forest or bag of trees."""
    if isinstance(estimator, BaseDecisionTree):
        return [Fitted(estimator.tree_, _values(estimator))]
    if isinstance(estimator, BaseForest):
        return [Fitted(one.tree_, _values(one)) for one in estimator.estimators_]
    if not isinstance(estimator, BaseBagging) or not _are_trees(estimator.estimators_):
        return None
    found = []
    for one, columns in zip(estimator.estimators_, estimator.estimators_features_, strict=True):
        values = _values(one)
        if hasattr(estimator, "classes_"):  # its trees know the classes of their own rows
            own, values = values, np.zeros((len(values), len(estimator.classes_)))
            values[:, np.asarray(one.classes_, np.int64)] = own
        found.append(Fitted(one.tree_, values, np.asarray(columns)))
    return found


def _are_trees(estimators: Sequence[Any]) -> bool:
    return all(isinstance(one, BaseDecisionTree) for one in estimators)


def _values(estimator: Any) -> Array:
    """Return the predictions of a tree's nodes, (nodes, outputs): shares of classes, or of each label."""
    values = estimator.tree_.value  # (nodes, outputs, classes)
    if not hasattr(estimator, "classes_") or estimator.n_outputs_ == 1:
        return np.asarray(values.reshape(len(values), -1))
    labels = [
        values[:, i, 1] if len(known) == 2 else np.full(len(values), float(known[0]))
        for i, known in enumerate(estimator.classes_)
    ]
    return np.stack(labels, axis=1)


def _boosted(graph: Graph, estimator: Any, info: DataInfo, features: Value) -> Value | None:
    """Add gradient boosting, which begins with a constant; None if it begins with an estimator."""
    begins = estimator.init_
    if not (isinstance(begins, str) or type(begins).__name__ in ("DummyClassifier", "DummyRegressor")):
        return None
    start = estimator._raw_predict_init(np.zeros((1, estimator.n_features_in_), np.float32))  # (1, width)
    trees = [
        _tree(one.tree_, target, estimator.learning_rate)
        for of_round in estimator.estimators_
        for target, one in enumerate(of_round)
    ]
    raw = add_trees(graph, trees, start.shape[1], graph.cast(features, TensorProto.DOUBLE))
    raw = graph.add("Add", raw, graph.constant(start, np.float64))
    if not hasattr(estimator, "classes_"):
        return raw
    if estimator.loss == "exponential":  # half of the logit
        raw = graph.add("Add", raw, raw)
    return add_link(graph, raw, "sigmoid" if start.shape[1] == 1 else "softmax", info)


def _tree(tree: Any, target: int, rate: float) -> Tree:
    nodes: list[Branch | Leaf] = []
    missing_left = getattr(tree, "missing_go_to_left", np.zeros(tree.node_count))
    for i in range(tree.node_count):
        left, right = int(tree.children_left[i]), int(tree.children_right[i])
        if left < 0:
            nodes.append(Leaf(target, rate * float(tree.value[i, 0, 0])))
        else:
            feature, threshold = int(tree.feature[i]), float(tree.threshold[i])
            nodes.append(Branch(AT_MOST, feature, threshold, left, right, bool(missing_left[i])))
    return nodes


def _voted(graph: Graph, estimator: Any, features: Value) -> Value | None:
    """Add AdaBoost, whose trees have weighted votes; None if its estimators are no trees."""
    if not _are_trees(estimator.estimators_):
        return None
    count = estimator.n_classes_
    weights = estimator.estimator_weights_[: len(estimator.estimators_)]
    shares = len(weights) * weights / weights.sum()  # of a sum, as the trees are averaged
    trees = []
    for one, weight in zip(estimator.estimators_, shares, strict=True):
        chosen = _values(one).argmax(axis=1)[:, None] == np.arange(count)  # (nodes, classes)
        trees.append(Fitted(one.tree_, np.where(chosen, weight, -weight / (count - 1))))
    votes = add_averaged_trees(graph, trees, features)
    # With two classes the votes are -d and d, whose halves scikit-learn takes twice.
    return graph.add(
        "Softmax", graph.add("Div", votes, graph.constant(max(1, count - 1), np.float32)), axis=1
    )
