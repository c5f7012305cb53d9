"""The figures and tables of probabilities of yes and no: ROC, precision and recall, calibration, lift, costs.

`positive` is (rows,) bool, `probability` (rows,) of the positive class, `weights` (rows,) float64 or None.
Curves have at most POINTS points, whatever the number of rows. scikit-learn's functions of the same figures
are not called: not every installation has it, and here one sort of the rows serves all figures of a class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainwright.tasks.base import Floats, Json
from trainwright.tasks.support.classes import binary_auc, binary_average_precision, ratio
from trainwright.types import Array

POINTS = 120
CURVES = 4  # classes that one figure shows; of more, those that are told apart worst
_BINS = 10  # of the calibration, with about equally many rows each
# Words for what probabilities say beyond the answers that follow from them.
OF_PROBABILITIES: Mapping[str, str] = {
    "worse": "Its probabilities are worse than the constant answer's: it is far too sure of wrong "
    "answers, so do not use them as they are.",
    "better": "Its probabilities do tell more than chance: rank rows by them, or answer from another "
    "threshold (below).",
}


class Answers(NamedTuple):
    """The answers for one class: its name, which rows are of it, and their probabilities of it."""

    name: str
    positive: NDArray[np.bool_]
    probability: Array
    weights: Floats | None = None


class _Counts(NamedTuple):
    """The weights of the rows at each threshold and above, (thresholds,), from the highest threshold down.

    `hits` are of the class, `alarms` of others; `own` and `ties` are those exactly at the threshold.
    """

    threshold: Floats
    hits: Floats
    alarms: Floats
    own: Floats
    ties: Floats

    @staticmethod
    def of(one: Answers) -> _Counts:
        """Return the counts at each distinct probability."""
        values, inverse = np.unique(-one.probability.astype(np.float64), return_inverse=True)
        weights = np.ones(len(inverse)) if one.weights is None else one.weights
        own, ties = (
            np.bincount(inverse, weights=weights * of).astype(np.float64, copy=False)
            for of in (one.positive, ~one.positive)
        )
        return _Counts(-values, np.cumsum(own), np.cumsum(ties), own, ties)

    @property
    def all_positive(self) -> float:
        return float(self.hits[-1])

    @property
    def all_negative(self) -> float:
        return float(self.alarms[-1])

    def area(self, one: Answers) -> float:
        """Return the area under the ROC curve; where rows have no weights, all sums here are exact."""
        if one.weights is not None:
            return binary_auc(one.positive, one.probability, one.weights)
        below = self.all_negative - self.alarms + self.ties / 2
        return float(self.own @ below / (self.all_positive * self.all_negative))

    def average_precision(self, one: Answers, precision: Floats) -> float:
        """Return the average precision, given the precision at each threshold."""
        if one.weights is not None:
            return binary_average_precision(one.positive, one.probability, one.weights)
        return float(self.own @ precision / self.all_positive)


def figures(answers: Sequence[Answers]) -> list[Json]:
    """Return the figures of the classes; those without a row of their own, or of others, are left out."""
    usable = [one for one in answers if one.positive.any() and not one.positive.all()]
    if not usable:
        return []
    counts = [_Counts.of(one) for one in usable]
    areas = [count.area(one) for count, one in zip(counts, usable, strict=True)]
    worst = sorted(np.argsort(np.nan_to_num(areas), kind="stable")[:CURVES].tolist())
    shown = [_Shown(usable[i], counts[i], areas[i]) for i in worst]
    left_out = len(usable) - len(shown)
    more = f" Shown: the {len(shown)} of {len(usable)} classes that it tells apart worst." if left_out else ""
    return [draw(shown, more) for draw in (_roc, _precision_recall, _calibration, _lift)]


class _Shown(NamedTuple):
    """The answers for a class that is shown, their counts, and the area under their ROC curve."""

    answers: Answers
    counts: _Counts
    area: float


def _roc(shown: Sequence[_Shown], more: str) -> Json:
    lines = []
    for one, counts, area in shown:
        alarms, hits = counts.alarms / counts.all_negative, counts.hits / counts.all_positive
        lines.append(_line(f"{one.name}: {area:.3f}", _from(0.0, alarms), _from(0.0, hits)))
    caption = (
        "As the threshold falls: upwards, the share of the class that is found; across, the share of the "
        "other rows that are wrongly taken for it. The number is the area below: 1 is perfect, 0.5 is chance."
    )
    return _figure("ROC", ("false positive rate", "recall"), lines, caption + more, exact=True)


def _precision_recall(shown: Sequence[_Shown], more: str) -> Json:
    lines = []
    for one, counts, _ in shown:
        precision = ratio(counts.hits, counts.hits + counts.alarms)
        area = counts.average_precision(one, precision)
        recall = counts.hits / counts.all_positive
        lines.append(_line(f"{one.name}: {area:.3f}", _from(0.0, recall), _from(precision[0], precision)))
    caption = (
        "Upwards, the share of the rows taken for the class that are of it; across, the share of its rows "
        "that are found. The number is the average precision: 1 is perfect."
    )
    return _figure("Precision and recall", ("recall", "precision"), lines, caption + more)


def _calibration(shown: Sequence[_Shown], more: str) -> Json:
    lines = [_line(one.name, *_reliability(one)) for one, _, _ in shown]
    caption = (
        "Rows in ten groups of rising probability. On the dashed line, what the model says is what happens; "
        "below it, the class is rarer than the model says."
    )
    return _figure(
        "Calibration", ("predicted probability", "observed share"), lines, caption + more, exact=True
    ) | {"points": True}


def _reliability(one: Answers) -> tuple[Floats, Floats]:
    """Return the mean probability of each group of rows, and the share of its rows that are of the class."""
    order = np.argsort(one.probability, kind="stable")
    bins = min(_BINS, len(order))
    # The first groups have one row more where the rows cannot be divided evenly.
    starts = np.arange(bins) * (len(order) // bins) + np.minimum(np.arange(bins), len(order) % bins)
    weights = np.ones(len(order)) if one.weights is None else one.weights[order]
    totals, said, true = (
        np.add.reduceat(weights * values, starts)
        for values in (1.0, one.probability[order].astype(np.float64), one.positive[order])
    )
    return ratio(said, totals)[totals > 0], ratio(true, totals)[totals > 0]


def _lift(shown: Sequence[_Shown], more: str) -> Json:
    lines = []
    for one, counts, _ in shown:
        total = counts.hits + counts.alarms
        share = total / total[-1]
        lift = ratio(counts.hits, total) / (counts.all_positive / total[-1])
        kept = share >= min(0.01, float(share[-1]))
        lines.append(_line(one.name, share[kept], lift[kept]))
    caption = (
        "If you take the rows with the highest probability first, the class is this many times as frequent "
        "among them as among all rows."
    )
    return _figure("Lift", ("share of the rows taken", "times as often as by chance"), lines, caption + more)


def _figure(
    title: str, labels: tuple[str, str], lines: list[Json], caption: str, *, exact: bool = False
) -> Json:
    """Return a figure of lines; `exact` draws the diagonal."""
    x, y = labels
    return {
        "kind": "lines",
        "title": title,
        "x": x,
        "y": y,
        "lines": lines,
        "exact": exact,
        "caption": caption,
    }


def _from(first: float, values: Floats) -> Floats:
    return np.concatenate([[first], values])


def _line(name: str, x: Floats, y: Floats) -> Json:
    kept = _spaced(len(x))
    return {"name": name, "x": x[kept].round(4).tolist(), "y": y[kept].round(4).tolist()}


@lru_cache(maxsize=64)
def _spaced(count: int, points: int = POINTS) -> NDArray[np.int64]:
    """Return at most `points` evenly spaced positions, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(count, points)).round().astype(np.int64))


def thresholds(one: Answers) -> Json | None:
    """Return what follows from each of at most POINTS thresholds; None where one of the answers is missing.

    Keys: `name`, `threshold`, `tp`, `fp`, `positive` and `negative` (all rows of each). A row is taken for
    the class from the threshold on. The first threshold takes no row for it.
    """
    if not one.positive.any() or one.positive.all():
        return None
    counts = _Counts.of(one)
    kept = _spaced(len(counts.threshold), POINTS - 1)
    return {
        "name": one.name,
        "threshold": [1.01, *(round(float(value), 6) for value in counts.threshold[kept])],
        "tp": [0.0, *counts.hits[kept].tolist()],
        "fp": [0.0, *counts.alarms[kept].tolist()],
        "positive": counts.all_positive,
        "negative": counts.all_negative,
    }
