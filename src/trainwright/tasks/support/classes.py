"""Metrics of class probabilities.

They agree with scikit-learn's functions of the same names. Edge cases:

- precision, recall and F1 of a class are 0.0 if their denominator is 0 (`zero_division=0`);
- macro and weighted means run over the classes that occur among the targets or the predictions;
- `mcc` is 0.0 if only one class occurs;
- `roc_auc` and `average_precision` are NaN if the targets contain a single class; with more than two classes
  they are one-vs-rest means over the classes that occur among the targets;
- `kappa` is NaN if targets and predictions contain only one and the same class;
- `f1`, `precision`, `recall`, `jaccard`, `specificity` and `average_precision` of two classes are those of
  the positive class (`Scores.positive`), as with scikit-learn's `pos_label`; of more classes they are macro
  means;
- `f1_binary`, `precision_binary` and `recall_binary` refer to the positive class, and are NaN unless there
  are two classes.

Weights of rows count as `sample_weight` does in scikit-learn, whose functions are not called: every
installation evaluates its runs, without scikit-learn where no extra brings it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright.tasks.base import Floats, Json, Scores
from trainwright.types import Array

Average = Literal["auto", "macro", "micro", "weighted", "binary"]  # auto: binary for two classes, else macro
AVERAGES: tuple[Average, ...] = ("macro", "micro", "weighted", "binary")

Field = Literal["precision", "recall", "f1", "jaccard", "specificity"]


class PerClass(NamedTuple):
    """Arrays (classes,): three metrics, the number of rows (`support`) and of predictions (`predicted`).

    Where rows have weights, the numbers are sums of these.
    """

    precision: Floats
    recall: Floats
    f1: Floats
    support: NDArray[np.int64] | Floats
    predicted: NDArray[np.int64] | Floats

    @property
    def jaccard(self) -> Floats:
        """The rows that were rightly predicted as the class, as a share of those that are or were."""
        return self.f1 / (2 - self.f1)

    @property
    def specificity(self) -> Floats:
        """The share of the rows of other classes that were not predicted as the class."""
        others, wrong = self.support.sum() - self.support, self.predicted - self.recall * self.support
        return ratio(others - wrong, others)

    def to_json(self, labels: Sequence[Any]) -> list[Json]:
        """Return a row for each class, for the report."""
        columns = zip(labels, self.precision, self.recall, self.f1, self.support, strict=True)
        return [
            {
                "label": label,
                "precision": float(precision),
                "recall": float(recall),
                "f1": float(f1),
                "support": int(support) if support == int(support) else float(support),
            }
            for label, precision, recall, f1, support in columns
        ]


def ratio(numerator: Array, denominator: Array) -> Floats:
    """Divide element by element as float64, with x/0 = 0.0."""
    denominator = np.asarray(denominator)
    out = np.zeros(np.broadcast(numerator, denominator).shape)
    return np.divide(numerator, denominator, out=out, where=denominator != 0)


def per_class(confusion: NDArray[np.int64] | Floats) -> PerClass:
    """Compute precision, recall and F1 of each class; `confusion`: (classes, classes) [true, predicted]."""
    hits, support, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    return PerClass(
        ratio(hits, predicted), ratio(hits, support), ratio(2 * hits, support + predicted), support, predicted
    )


def accuracy(scores: Scores) -> float:
    """Return the share of rows whose class was predicted."""
    return float(scores.mean(scores.predicted == scores.targets))


def is_correct(scores: Scores) -> Floats:
    """Return 1.0 for each row whose class was predicted, else 0.0, (rows,); their mean is `accuracy`."""
    correct: Floats = (scores.predicted == scores.targets).astype(np.float64)
    return correct


def balanced_accuracy(scores: Scores) -> float:
    """Return the mean recall of the classes that occur among the targets."""
    table = per_class(scores.confusion)
    return float(np.mean(table.recall[table.support > 0]))


def averaged(field: Field, average: Average) -> Callable[[Scores], float]:
    """Return the metric that averages one field of `PerClass`."""

    def metric(scores: Scores) -> float:
        if average == "micro":  # with one class and one prediction per row, all three equal the accuracy
            return accuracy(scores)
        table = per_class(scores.confusion)
        values: Floats = getattr(table, field)
        if average == "binary" or (average == "auto" and len(values) == 2):
            return float(values[scores.positive]) if len(values) == 2 else float("nan")
        if average == "weighted":
            return float(np.average(values, weights=table.support))
        return float(np.mean(values[(table.support > 0) | (table.predicted > 0)]))

    return metric


def rows_of_share(field: Field, average: Average) -> Callable[[Scores], int | None] | None:
    """Return the function that counts the rows of which a field of the positive class is a share.

    Recall is a share of the rows of the class, precision of those answered so, specificity of all others.
    """
    if field in {"f1", "jaccard"} or average not in {"auto", "binary"}:
        return None

    def count(scores: Scores) -> int | None:
        if scores.outputs.shape[1] != 2:
            return None
        table, positive = per_class(scores.confusion), scores.positive
        of_class = table.predicted if field == "precision" else table.support
        return int(of_class[1 - positive if field == "specificity" else positive])

    return count


def top_k_accuracy(k: int) -> Callable[[Scores], float]:
    """Return the metric that gives the share of rows whose class is among the k most probable.

    Of equally probable classes, the one with the lower index ranks first.
    """

    def metric(scores: Scores) -> float:
        own = scores.true_probability[:, None]
        earlier = np.arange(scores.outputs.shape[1]) < scores.targets[:, None]
        ahead = (scores.outputs > own) | ((scores.outputs == own) & earlier)
        return float(scores.mean(ahead.sum(axis=1) < k))

    return metric


def log_loss(scores: Scores) -> float:
    """Return the mean negative logarithm of the true class's probability, clipped to [eps, 1 - eps]."""
    logs = np.log(_clipped(scores))  # (rows,)
    return float(-np.mean(logs, dtype=np.float64) if scores.weights is None else -scores.mean(logs))


def negative_log_likelihood(scores: Scores) -> Floats:
    """Return the negative logarithm of the true class's probability, (rows,); its mean is `log_loss`."""
    values: Floats = -np.log(_clipped(scores)).astype(np.float64)
    return values


def _clipped(scores: Scores) -> Array:
    """Return the true class's probability, (rows,), clipped to [eps, 1 - eps]."""
    own = scores.true_probability
    epsilon = np.finfo(own.dtype).eps
    return np.asarray(np.clip(own, epsilon, 1 - epsilon))


def brier(scores: Scores) -> float:
    """Return the Brier score: squared errors of the probabilities, summed over classes (halved for two)."""
    return float(scores.mean(squared_probability_error(scores)))


def squared_probability_error(scores: Scores) -> Floats:
    """Return the squared errors of the probabilities, (rows,); their mean is `brier`."""
    errors = scores.outputs.astype(np.float64)
    errors[np.arange(len(errors)), scores.targets] -= 1.0
    total: Floats = np.sum(errors**2, axis=1)
    return total / 2 if scores.outputs.shape[1] == 2 else total  # the binary definition counts one class only


def mcc(scores: Scores) -> float:
    """Return the Matthews correlation coefficient, for any number of classes (Gorodkin, 2004)."""
    confusion = scores.confusion.astype(np.float64)
    true, predicted, rows = confusion.sum(axis=1), confusion.sum(axis=0), confusion.sum()
    covariance = np.trace(confusion) * rows - true @ predicted
    spread = (rows**2 - true @ true) * (rows**2 - predicted @ predicted)
    return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0


def kappa(scores: Scores) -> float:
    """Return Cohen's kappa (1960): the agreement of predictions and targets beyond chance."""
    shares = scores.confusion / scores.confusion.sum()
    chance = shares.sum(axis=1) @ shares.sum(axis=0)
    return float((np.trace(shares) - chance) / (1 - chance)) if chance < 1 else float("nan")


# Binary metrics get (is positive, score, weight or None), (rows,) each.
BinaryMetric = Callable[[NDArray[np.bool_], Array, Floats | None], float]


def _ranking(metric: BinaryMetric) -> Callable[[Scores], float]:
    """Extend a binary metric to classes.

    With two classes, it is of the positive one; with more, the result is the one-vs-rest mean.
    """

    def mean(scores: Scores) -> float:
        classes = np.unique(scores.targets)
        if len(classes) < 2:
            return float("nan")
        chosen = [scores.positive] if scores.outputs.shape[1] == 2 else classes
        return float(
            np.mean(
                [
                    metric(scores.targets == index, scores.outputs[:, index], scores.weights)
                    for index in chosen
                ]
            )
        )

    return mean


def binary_auc(positive: NDArray[np.bool_], values: Array, weights: Floats | None = None) -> float:
    """Return the probability that a positive row scores above a negative one (Mann-Whitney U).

    Ties count half. NaN if the weights of the positive or the negative rows are all 0.
    """
    if weights is not None:
        return _weighted_auc(positive, values, weights)
    _, distinct, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[distinct]  # from 1; ties share their mean rank
    hits = int(positive.sum())
    return float((ranks[positive].sum() - hits * (hits + 1) / 2) / (hits * (len(values) - hits)))


def _weighted_auc(positive: NDArray[np.bool_], values: Array, weights: Floats) -> float:
    _, distinct = np.unique(values, return_inverse=True)
    hits = np.bincount(distinct, weights=weights * positive)  # the weight of the positive rows at each value
    others = np.bincount(distinct, weights=weights * ~positive)
    below = np.cumsum(others) - others / 2  # ties count half
    pairs = hits.sum() * others.sum()
    return float(hits @ below / pairs) if pairs > 0 else float("nan")


def binary_average_precision(
    positive: NDArray[np.bool_], values: Array, weights: Floats | None = None
) -> float:
    """Return the mean of the precisions at all thresholds, weighted by the gain in recall.

    NaN if the weights of the positive rows are all 0.
    """
    _, threshold = np.unique(-values, return_inverse=True)  # thresholds in descending order; ties share one
    own = positive if weights is None else positive * weights
    hits, total = np.bincount(threshold, weights=own), np.cumsum(np.bincount(threshold, weights=weights))
    precision = np.divide(np.cumsum(hits), total, out=np.zeros(len(hits)), where=total > 0)
    return float(hits @ precision / hits.sum()) if hits.sum() > 0 else float("nan")


roc_auc = _ranking(binary_auc)
average_precision = _ranking(binary_average_precision)
