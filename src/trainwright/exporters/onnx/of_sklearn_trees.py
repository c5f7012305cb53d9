"""Ensembles of scikit-learn's trees in ONNX, which compare features of float32 as the library does.

`skl2onnx` compares float64 in some of them, and does not end where a tree has a split on missing values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.ensemble import AdaBoostClassifier
from sklearn.ensemble._gb import BaseGradientBoosting

from trainwright.exporters.onnx.graph import Graph, Value
from trainwright.exporters.onnx.trees import add_averaged_trees, add_ensemble
from trainwright.exporters.trees.sklearn import are_trees, averaged, fitted, gradient_boosted, values_of
from trainwright.types import DataInfo


def add_single_trees(graph: Graph, estimator: Any, info: DataInfo, features: Value) -> Value | None:
    """Add an ensemble of trees, and return its predictions, (rows, outputs); None if it is no such thing.

    Args:
        graph: The graph.
        estimator: An estimator of scikit-learn.
        info: The description of the data.
        features: (rows, features) float32.
    """
    if isinstance(estimator, BaseGradientBoosting):
        ensemble = gradient_boosted(estimator, info)
        return None if ensemble is None else add_ensemble(graph, ensemble, info, features)
    if isinstance(estimator, AdaBoostClassifier):
        return _voted(graph, estimator, features)
    trees = averaged(estimator)
    return None if trees is None else add_averaged_trees(graph, trees, features)


def _voted(graph: Graph, estimator: Any, features: Value) -> Value | None:
    """Add AdaBoost, whose trees have weighted votes; None if its estimators are no trees."""
    if not are_trees(estimator.estimators_):
        return None
    count = estimator.n_classes_
    weights = estimator.estimator_weights_[: len(estimator.estimators_)]
    shares = len(weights) * weights / weights.sum()  # of a sum, as the trees are averaged
    trees = []
    for one, weight in zip(estimator.estimators_, shares, strict=True):
        chosen = values_of(one).argmax(axis=1)[:, None] == np.arange(count)  # (nodes, classes)
        trees.append(fitted(one, np.where(chosen, weight, -weight / (count - 1))))
    votes = add_averaged_trees(graph, trees, features)
    # With two classes the votes are -d and d, whose halves scikit-learn takes twice.
    return graph.add(
        "Softmax", graph.add("Div", votes, graph.constant(max(1, count - 1), np.float32)), axis=1
    )
