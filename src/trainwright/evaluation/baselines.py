"""Baselines of a model: the best constant answer, and a linear model of the same features."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from trainwright.datasets.base import ArraySplit, DataBundle, Split
from trainwright.datasets.samples.arrays import is_frame
from trainwright.evaluation.linear import MAX_FEATURES, MAX_ROWS, LinearModel
from trainwright.evaluation.metrics import (
    EvaluationResult,
    evaluate_predictions,
    find_metric,
    pinball_at,
    without_prefix,
)
from trainwright.plugins import task_for
from trainwright.records.journal import finite
from trainwright.tasks.base import Floats, Guess, Scores, Task
from trainwright.types import FEATURES, Array, Batch, DataInfo, Ids, Predictions, SplitName, weights_of

Json = dict[str, Any]
MAX_OUTPUTS = 20  # classes or values that the linear model has
PARTS = 1_000_000  # tokens or pixels that guesses learn from, and that they predict
LARGE = 100_000  # rows of a split that baselines predict; of more, evenly spaced ones
KEPT = 1_000_000  # outputs for a split, up to which the evaluations of baselines are kept


Baseline = Guess  # a task's own ones, and those that are made here


class Evaluated(NamedTuple):
    """The evaluations of the baselines on the rows of a split, which are the same for all runs of a study."""

    rows: EvaluationResult  # of a model on the same rows
    names: Sequence[str]  # of the metrics
    others: Sequence[tuple[Json, Scores]]  # of each baseline

    def is_of(self, result: EvaluationResult, names: Sequence[str], scores: Scores) -> bool:
        """Return whether the baselines would be evaluated alike beside another result."""
        own = (getattr(one, of) for of in ("ids", "targets", "weights") for one in (self.rows, result))
        alike = (self.rows.outputs.dtype, [*self.names]) == (result.outputs.dtype, [*names])
        alike = alike and all(other.positive == scores.positive for _, other in self.others)
        return alike and all(_equal(one, next(own)) for one in own)


def kept_evaluations(_: DataBundle) -> dict[SplitName, Evaluated]:
    """Return an empty table, in which `compared` keeps evaluations for all runs that share the data."""
    return {}


def _equal(one: Array | None, other: Array | None) -> bool:
    return one is other or (one is not None and other is not None and np.array_equal(one, other))


def spaced(count: int, most: int) -> Ids:
    """Return at most `most` evenly spaced positions among `count`."""
    if count <= most:
        return np.arange(count)
    return np.unique(np.linspace(0, max(0, count - 1), min(count, most)).astype(np.int64))


def fitted(bundle: DataBundle) -> list[Baseline]:
    """Return the baselines of a data set, fitted to its training rows; empty if there are none."""
    task, train = task_for(bundle.info), bundle.splits["train"]
    if task.has_parts and len(train):
        return [*task.guesses(train.take(_sample(train, task, len(train))))]
    if not isinstance(train, ArraySplit) or not len(train) or task.is_open:
        return []
    ids = spaced(len(train), LARGE)
    values = task.as_values(np.asarray(train.arrays[task.target])[ids])
    if values is None or values.shape[1] != bundle.info.outputs or not np.isfinite(values).all():
        return []
    weights = _some(weights_of(train.arrays, bundle.info), ids)
    if weights is not None and not weights.sum() > 0:
        return []
    constant = np.average(values, axis=0, weights=weights)
    made = [Baseline("constant", task.constant_in_words(constant), _constantly(constant))]
    linear = _linear(task, train)
    if linear is None:
        return made
    words = "a linear model of the same columns"
    return [*made, Baseline("linear", words, lambda rows, _: linear.predict(rows()[FEATURES]))]


def _constantly(constant: Floats) -> Callable[[Callable[[], Batch], Array], Array]:
    return lambda _, own: np.tile(constant, (len(own), 1))


def _sample(split: Split, task: Task, count: int) -> Ids:
    """Return evenly spaced rows among the first `count` of a split, of about `PARTS` parts in all."""
    size = split.take(np.zeros(1, np.int64))[task.target].size
    return spaced(count, max(1, PARTS // max(1, size)))


def _linear(task: Task, train: ArraySplit) -> LinearModel | None:
    """Return the linear model; None where the features are no table of a moderate number of numbers."""
    features: Any = train.arrays.get(FEATURES)
    is_table = (
        not is_frame(features)
        and features is not None
        and features.ndim == 2
        and features.dtype.kind in "fiub"
    )
    if not is_table or not 0 < features.shape[1] <= MAX_FEATURES or task.info.outputs > MAX_OUTPUTS:
        return None
    ids = spaced(len(train), MAX_ROWS)
    values = task.as_values(np.asarray(train.arrays[task.target])[ids])
    assert values is not None, "the caller checks it"
    return LinearModel(features[ids], values, task.predictions if task.gives_probabilities else None)


def compared(
    baselines: Sequence[Baseline],
    result: EvaluationResult,
    split: Split,
    info: DataInfo,
    known: dict[SplitName, Evaluated] | None = None,
    quantile: float | None = None,
) -> Json | None:
    """Compare the evaluation of a split with the baselines; None without any, or without rows.

    Args:
        baselines: The baselines.
        result: The evaluation.
        split: The rows.
        info: The description of the data.
        known: Where evaluations of the baselines are kept for other evaluations of the same rows.
        quantile: The quantile that the model predicts, by whose pinball loss it is judged; None: by its task.

    Returns:
        `rows`, and `baselines`: [{`name`, `words`, `metrics`, `gains`}], where `metrics` are those of the
        evaluation, and `gains` has for a metric the mean gain of the model over the baseline in each row
        (above 0: the model is better) and its standard error.
    """
    if not baselines or not len(result.ids) or not np.isfinite(result.outputs).all():
        return None
    task = task_for(info)
    is_large = task.has_parts and any(one.reads_rows for one in baselines)
    at = _sample(split, task, len(result.ids)) if is_large else spaced(len(result.ids), LARGE)
    own = result.scores(task).take(at)
    names = [without_prefix(name) for name in result.metrics]
    wanted = [name for name in dict.fromkeys([*names, *_judging(task, quantile)]) if name in task.metrics]
    before = None if known is None else known.get(result.split)
    if before is not None and before.is_of(result, wanted, own):
        others = before.others
    else:
        others = _evaluations(baselines, result, split, info, at, wanted)
        if known is not None and not task.has_parts and result.outputs.size <= KEPT:
            known[result.split] = Evaluated(result, wanted, others)
    entries = [
        {
            **{"name": one.name, "words": one.words, "metrics": metrics},
            "gains": dict(_gains(task, quantile, own, scores)),
        }
        for one, (metrics, scores) in zip(baselines, others, strict=True)
    ]
    return {"rows": len(at), "baselines": entries}


def _evaluations(
    baselines: Sequence[Baseline],
    result: EvaluationResult,
    split: Split,
    info: DataInfo,
    at: Ids,
    names: Sequence[str],
) -> list[tuple[Json, Scores]]:
    """Return the metrics of each baseline on the rows at some positions of an evaluation, and its scores."""
    rows, evaluations = cache(lambda: split.take(result.ids[at])), []
    for baseline in baselines:
        outputs = baseline.outputs(rows, result.outputs[at]).astype(result.outputs.dtype)
        part = Predictions(at, outputs, result.targets[at], 0.0, weights=_some(result.weights, at))
        other = evaluate_predictions([part], names, info, result.split)
        metrics = {
            name: finite(value) for name, value in other.metrics.items() if without_prefix(name) != "loss"
        }
        evaluations.append((metrics, other.scores(task_for(info))))
    return evaluations


def _some(values: Array | None, ids: Ids) -> Array | None:
    return None if values is None else values[ids]


def _judging(task: Task, quantile: float | None) -> Sequence[str]:
    return [pinball_at(quantile)] if quantile is not None else task.judged_by or (task.usual_metric,)


def at_quantile(baselines: Sequence[Baseline], bundle: DataBundle, quantile: float) -> list[Baseline]:
    """Return baselines for a model of a quantile: the best constant is that quantile of the training rows."""
    train = bundle.splits["train"]
    if not baselines or baselines[0].name != "constant" or not isinstance(train, ArraySplit):
        return [*baselines]
    task = task_for(bundle.info)
    values = task.as_values(np.asarray(train.arrays[task.target])[spaced(len(train), LARGE)])
    if values is None:
        return [*baselines]
    constant = np.quantile(values, quantile, axis=0)
    words = f"always predicting the {quantile:g} quantile of the training rows"
    return [Baseline("constant", words, _constantly(constant)), *baselines[1:]]


def _gains(task: Task, quantile: float | None, own: Scores, other: Scores) -> Iterable[tuple[str, Json]]:
    """Yield the mean gain over the other model and its standard error, for the metrics that decide."""
    for name in _judging(task, quantile):
        metric = find_metric(name, type(task))
        by_row = metric.by_row or metric.parts
        values = [by_row(scores) if by_row else None for scores in (own, other)]
        if values[0] is None or values[1] is None:
            continue
        gain = (values[0] - values[1]) * (1.0 if metric.mode == "max" else -1.0)  # (rows,)
        mean = float(own.mean(gain))
        error = float(np.sqrt(own.mean((gain - mean) ** 2) / max(1, len(gain) - 1)))
        yield name, {"mean": finite(mean), "error": finite(error)}
