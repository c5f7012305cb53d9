"""Metrics of class probabilities.

They agree with scikit-learn's functions of the same names. Rules for what is 0/0:

- precision, recall and F1 of a class are 0.0 where their denominator is 0 (`zero_division=0`);
- macro and weighted means are over the classes that occur among the targets or the predictions;
- `mcc` is 0.0 where only one class occurs;
- `roc_auc`, `average_precision` and `kappa` are NaN where only one class occurs among the targets (`kappa`: and the
  predictions); with more than two classes the first two are means, one class against the rest, over those that occur
  among the targets;
- `f1_binary`, `precision_binary`, `recall_binary` speak of the second class, and are NaN unless there are two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainyard.evaluation.scores import Scores
from trainyard.types import Array

Floats = NDArray[np.float64]
Average = Literal["macro", "micro", "weighted", "binary"]
AVERAGES: tuple[Average, ...] = ("macro", "micro", "weighted", "binary")


class PerClass(NamedTuple):
    """One value for each class; `support` counts its rows, `predicted` how often it was predicted."""

    precision: Floats
    recall: Floats
    f1: Floats
    support: NDArray[np.int64]
    predicted: NDArray[np.int64]


def ratio(numerator: Array, denominator: Array) -> Floats:
    """Division with x/0 = 0.0."""
    out = np.zeros(np.broadcast_shapes(np.shape(numerator), np.shape(denominator)))
    return np.divide(numerator, denominator, out=out, where=np.asarray(denominator) != 0)


def per_class(confusion: NDArray[np.int64]) -> PerClass:
    """Precision, recall and F1 of each class, from a (classes, classes) confusion matrix."""
    hits, support, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    return PerClass(
        ratio(hits, predicted), ratio(hits, support), ratio(2 * hits, support + predicted), support, predicted
    )


def accuracy(scores: Scores) -> float:
    return float(np.mean(scores.predicted == scores.targets))


def balanced_accuracy(scores: Scores) -> float:
    table = per_class(scores.confusion)
    return float(np.mean(table.recall[table.support > 0]))


def averaged(field: Literal["precision", "recall", "f1"], average: Average) -> Callable[[Scores], float]:
    """The metric that averages one column of `PerClass`."""

    def metric(scores: Scores) -> float:
        if (
            average == "micro"
        ):  # every row has one class and one prediction, so that all three are the accuracy
            return accuracy(scores)
        table = per_class(scores.confusion)
        values: Floats = getattr(table, field)
        if average == "binary":
            return float(values[1]) if len(values) == 2 else float("nan")
        if average == "weighted":
            return float(np.average(values, weights=table.support))
        return float(np.mean(values[(table.support > 0) | (table.predicted > 0)]))

    return metric


def top_k_accuracy(k: int) -> Callable[[Scores], float]:
    """The share of rows whose class is among the k most probable ones; of equals the first counts as the greater."""

    def metric(scores: Scores) -> float:
        own = scores.true_probability[:, None]
        earlier = np.arange(scores.outputs.shape[1]) < scores.targets[:, None]
        ahead = (scores.outputs > own) | ((scores.outputs == own) & earlier)
        return float(np.mean(ahead.sum(axis=1) < k))

    return metric


def log_loss(scores: Scores) -> float:
    own = scores.true_probability
    epsilon = np.finfo(own.dtype).eps
    return float(-np.mean(np.log(np.clip(own, epsilon, 1 - epsilon)), dtype=np.float64))


def brier(scores: Scores) -> float:
    errors = scores.outputs.astype(np.float64)
    errors[np.arange(len(errors)), scores.targets] -= 1.0
    total = float(np.mean(np.sum(errors**2, axis=1)))
    return (
        total / 2 if scores.outputs.shape[1] == 2 else total
    )  # the usual definition for two classes counts one of them


def mcc(scores: Scores) -> float:
    confusion = scores.confusion.astype(np.float64)
    true, predicted, rows = confusion.sum(axis=1), confusion.sum(axis=0), confusion.sum()
    covariance = np.trace(confusion) * rows - true @ predicted
    spread = (rows**2 - true @ true) * (rows**2 - predicted @ predicted)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def kappa(scores: Scores) -> float:
    shares = scores.confusion / scores.confusion.sum()
    chance = shares.sum(axis=1) @ shares.sum(axis=0)
    return float((np.trace(shares) - chance) / (1 - chance)) if chance < 1 else float("nan")


def _ranking(metric: Callable[[NDArray[np.bool_], Array], float]) -> Callable[[Scores], float]:
    """Of a metric of (positive rows, scores): the second of two classes, or the mean of one against the rest."""

    def mean(scores: Scores) -> float:
        classes = np.unique(scores.targets)
        if len(classes) < 2:
            return float("nan")
        chosen = [1] if scores.outputs.shape[1] == 2 else classes
        return float(np.mean([metric(scores.targets == index, scores.outputs[:, index]) for index in chosen]))

    return mean


def _auc(positive: NDArray[np.bool_], values: Array) -> float:
    """The chance that a positive row is ranked above a negative one; equals count half (Mann-Whitney U)."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[
        place
    ]  # equals share the mean of their ranks, which are from 1
    hits = int(positive.sum())
    return float((ranks[positive].sum() - hits * (hits + 1) / 2) / (hits * (len(values) - hits)))


def _average_precision(positive: NDArray[np.bool_], values: Array) -> float:
    """The mean of the precisions at each threshold, weighted by the recall gained there."""
    _, place = np.unique(
        -values, return_inverse=True
    )  # thresholds from the highest down; equals fall together
    hits = np.bincount(place, weights=positive)
    precision = np.cumsum(hits) / np.cumsum(np.bincount(place))
    return float(hits @ precision / hits.sum())


roc_auc = _ranking(_auc)
average_precision = _ranking(_average_precision)
