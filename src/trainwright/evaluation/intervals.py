"""The 95% intervals of the metrics of an evaluation, over its rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainwright.evaluation.metrics import LOSS, EvaluationResult, adds_up, find_metric, without_prefix
from trainwright.evaluation.significance import normal_interval, quantile_interval
from trainwright.order import random_keys, stream_seed
from trainwright.plugins import task_for
from trainwright.records.journal import finite
from trainwright.tasks.base import Floats, Metric, Scores
from trainwright.types import DataInfo

Json = dict[str, Any]
_RESAMPLES = 200
_MOST_ROWS = 5000  # of a resample
_PARTS = 2_000_000  # outputs of a resample, beyond which there is no bootstrap: a step of training costs less
_STREAM = 3
_Z = 1.959963984540054
_FEWEST = 2


def intervals(result: EvaluationResult, info: DataInfo, names: list[str]) -> Json:
    """Return the interval of each metric for which there is one: {`low`, `high`, `method`}.

    Shares of rows have Wilson's interval (1927), other means over rows the normal one, and all other metrics
    that of the bootstrap (200 resamples of the rows, at most 5000 of them, by counter-based keys). Recall,
    precision and specificity of a class are shares of some of the rows: given how many these are, Wilson's
    interval holds the share also where none or all are right (Brown, Cai and DasGupta, "Interval Estimation
    for a Binomial Proportion", 2001). The bootstrap has an interval of no width there, which is left out.
    """
    task = task_for(info)
    if len(result.ids) < _FEWEST or not np.isfinite(result.outputs).all():
        return {}
    scores, made = result.scores(task), {}
    for name in names:
        if (bare := without_prefix(name)) == LOSS or adds_up(bare) or bare not in task.metrics:
            continue
        told = _interval(find_metric(bare, type(task)), scores)
        if told is not None and all(np.isfinite(told[:2])):
            low, high = np.clip(told[:2], *find_metric(bare, type(task)).bounds)
            made[name] = {"low": finite(float(low)), "high": finite(float(high)), "method": told[2]}
    return made


def _interval(metric: Metric, scores: Scores) -> tuple[float, float, str] | None:
    values = metric.by_row(scores) if metric.by_row and scores.weights is None else None
    rows = metric.share(scores) if metric.share and scores.weights is None else None
    if rows is not None:
        return (*wilson(metric.function(scores), rows), "Wilson") if rows else None
    if values is None:
        return _bootstrap(metric, scores)
    if ((values == 0) | (values == 1)).all():
        return (*wilson(float(values.mean()), len(values)), "Wilson")
    return (*normal_interval(values), "normal")


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95% interval of a share of `count` rows."""
    middle = (share + _Z * _Z / (2 * count)) / (1 + _Z * _Z / count)
    reach = _Z * np.sqrt(share * (1 - share) / count + _Z * _Z / (4 * count * count)) / (1 + _Z * _Z / count)
    return float(middle - reach), float(middle + reach)


def _bootstrap(metric: Metric, scores: Scores) -> tuple[float, float, str] | None:
    rows = len(scores.targets)
    drawn = min(rows, _MOST_ROWS)
    if scores.outputs.size // max(1, rows) * drawn > _PARTS:
        return None
    value, values = metric.function(scores), []
    for index in range(_RESAMPLES):
        ids = random_keys(stream_seed(0, _STREAM, index), drawn) % np.uint64(rows)
        part = scores.take(ids.astype(np.int64))
        if part.weights is None or part.weights.sum() > 0:
            values.append(metric.function(part))
    low, high = quantile_interval(_scaled(np.array(values), value, np.sqrt(drawn / rows)))
    return None if low == high else (low, high, "bootstrap")


def _scaled(values: Floats, value: float, factor: float) -> Floats:
    """Return resampled values as spread as those of all rows are, where fewer were drawn."""
    return values if factor == 1 else value + factor * (values - np.nanmean(values))
