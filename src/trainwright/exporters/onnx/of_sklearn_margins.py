"""Linear classifiers and support vector machines in ONNX: their margins in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model._base import LinearClassifierMixin
from sklearn.svm import SVC, SVR, NuSVC, NuSVR

from trainwright.exporters.base import names_classes
from trainwright.exporters.onnx.graph import Graph, Value
from trainwright.types import DataInfo


def add_by_margins(graph: Graph, estimator: Any, info: DataInfo, features: Value) -> Value | None:
    """Add an estimator, and return its predictions, (rows, outputs) float64; None if it is no such thing.

    Trainwright's probabilities of a classifier that has none are the softmax, or of labels the sigmoid, of
    its margins.

    Args:
        graph: The graph.
        estimator: An estimator of scikit-learn.
        info: The description of the data.
        features: (rows, features) float64.
    """
    if isinstance(estimator, SVR | NuSVR) and isinstance(estimator.kernel, str):
        return _of_vectors(graph, estimator, features)
    margins_of = getattr(type(estimator), "decision_function", None)
    is_logistic = isinstance(estimator, LogisticRegression) and (
        len(estimator.classes_) == 2 or estimator.solver != "liblinear"
    )
    if margins_of is None or (hasattr(estimator, "predict_proba") and not is_logistic):
        return None
    if margins_of is LinearClassifierMixin.decision_function:
        weights, intercept = np.atleast_2d(estimator.coef_).T, np.reshape(estimator.intercept_, -1)
        if names_classes(info) and info.outputs == 2:  # the first class has a margin of 0
            weights, intercept = np.pad(weights, ((0, 0), (1, 0))), np.pad(intercept, (1, 0))
        parts = (graph.constant(weights, np.float64), graph.constant(intercept, np.float64))
        margins = graph.add("Gemm", features, *parts)
        return graph.add("Softmax", margins, axis=1) if names_classes(info) else graph.add("Sigmoid", margins)
    if isinstance(estimator, SVC | NuSVC) and isinstance(estimator.kernel, str):
        if len(estimator.classes_) > 2 and estimator.decision_function_shape != "ovr":
            return None
        margins = _of_pairs(graph, estimator, features)
    else:
        return None
    if info.outputs == 2:
        none = graph.add("Mul", margins, graph.constant(0.0))
        margins = graph.add("Concat", none, margins, axis=1)
    return graph.add("Softmax", margins, axis=1)


def _kernel(graph: Graph, estimator: Any, features: Value) -> Value:
    """Return the kernel of each row and support vector, (rows, vectors) float64."""
    vectors = np.asarray(estimator.support_vectors_)
    products = graph.add("MatMul", features, graph.constant(vectors.T, np.float64))
    kind, gamma = estimator.kernel, graph.constant(estimator._gamma, np.float64)
    if kind == "linear":
        return products
    if kind == "rbf":
        squares = graph.add("ReduceSumSquare", features, graph.constant([1], np.int64), keepdims=1)
        own = graph.constant((vectors**2).sum(axis=1)[None], np.float64)
        twice = graph.add("Mul", products, graph.constant(2.0))
        apart = graph.add("Sub", graph.add("Add", squares, own), twice)
        return graph.add("Exp", graph.add("Neg", graph.add("Mul", apart, gamma)))
    shifted = graph.add("Add", graph.add("Mul", products, gamma), graph.constant(float(estimator.coef0)))
    return (
        graph.add("Tanh", shifted)
        if kind == "sigmoid"
        else graph.add("Pow", shifted, graph.constant(float(estimator.degree)))
    )


def _of_vectors(graph: Graph, estimator: Any, features: Value) -> Value:
    """Return the weighted sum of a kernel, (rows, 1) float64."""
    weights = graph.constant(np.asarray(estimator.dual_coef_).T, np.float64)
    sums = graph.add("MatMul", _kernel(graph, estimator, features), weights)
    return graph.add("Add", sums, graph.constant(np.reshape(estimator.intercept_, (1, 1)), np.float64))


def _of_pairs(graph: Graph, estimator: Any, features: Value) -> Value:
    """Return the margins of classes from those of each pair of them: votes, and how sure these are."""
    count = len(estimator.classes_)
    if count == 2:
        return _of_vectors(graph, estimator, features)
    ends = np.concatenate([[0], np.cumsum(estimator.n_support_)])  # of the vectors of each class
    own = [slice(ends[i], ends[i + 1]) for i in range(count)]
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    dual = np.asarray(estimator.dual_coef_)  # (classes - 1, vectors)
    weights = np.zeros((dual.shape[1], len(pairs)))
    for number, (i, j) in enumerate(pairs):
        weights[own[i], number] = dual[j - 1, own[i]]
        weights[own[j], number] = dual[i, own[j]]
    sums = graph.add("MatMul", _kernel(graph, estimator, features), graph.constant(weights, np.float64))
    margins = graph.add("Add", sums, graph.constant(estimator.intercept_[None], np.float64))  # > 0: the first
    signs = np.zeros((len(pairs), count))
    for number, (i, j) in enumerate(pairs):
        signs[number, i], signs[number, j] = 1.0, -1.0
    sure = graph.add("MatMul", margins, graph.constant(signs))
    lost = graph.cast(graph.add("Less", margins, graph.constant(0.0)), TensorProto.DOUBLE)
    won = graph.add("Sub", graph.constant(1.0), lost)
    votes = graph.add(
        "Add",
        graph.add("MatMul", won, graph.constant((signs > 0).astype(np.float64))),
        graph.add("MatMul", lost, graph.constant((signs < 0).astype(np.float64))),
    )
    size = graph.add(
        "Mul", graph.add("Add", graph.add("Abs", sure), graph.constant(1.0)), graph.constant(3.0)
    )
    return graph.add("Add", votes, graph.add("Div", sure, size))
