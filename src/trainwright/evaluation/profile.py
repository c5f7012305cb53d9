"""Describe the data of a run for its report: distributions in each split, and what is suspect about them.

The result is written to `evaluation/data.json`. It depends only on the data, and looks at a sample of evenly
spaced rows, so it takes well under a second whatever the size of the data.

- A column's *shift* is the Kolmogorov-Smirnov distance of its values in validation or test from training; of
  categories the total variation distance.
- *Alone* says how well a column by itself tells the target, from 0 to 1: of a binary target the Gini
  coefficient of its ranks, else the variance that groups of its values explain. Close to 1, it may be the
  target itself.
- *Adversarial validation*: a linear model learns to tell the rows of a split from training rows; its area
  under the ROC curve on other rows is near 0.5 where the rows are alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from trainwright.datasets.base import ArraySplit, DataBundle
from trainwright.datasets.samples.arrays import is_frame
from trainwright.evaluation.baselines import spaced
from trainwright.evaluation.explained import Column, data_columns
from trainwright.evaluation.frames import FrameMatrix
from trainwright.evaluation.linear import MAX_FEATURES, LinearModel
from trainwright.plugins import task_for
from trainwright.require import require
from trainwright.tasks.base import Floats
from trainwright.tasks.support.classes import binary_auc
from trainwright.tasks.support.links import softmax
from trainwright.types import FEATURES, SPLITS, Array, Batch, DataInfo

Json = dict[str, Any]
VERSION = 1
SAMPLE = 2000  # rows of each split
MAX_COLUMNS = 200  # that are looked at
MAX_SHOWN = 12  # columns whose distribution is kept: those that shift most
MAX_BARS = 16  # of a histogram; categories beyond are one bar
_ENOUGH = 40  # rows of a split, from which it is compared
_GROUPS = 20  # of the values of a number that explain a target


class _Samples(NamedTuple):
    """A sample of each split: features (rows, n), and targets as `Task.as_values` returns them."""

    features: Mapping[str, Array]
    targets: Mapping[str, Floats]
    columns: Sequence[Column]


def profile(bundle: DataBundle) -> Json | None:
    """Describe the data; None where the splits are not in memory, or the target has no values.

    Returns:
        `version`, `rows` by split, `features` (their number), `target` and `columns`: distributions with
        `name`, `edges` or `labels`, `counts` by split (and `missing`), `shift` by split, and `alone` of
        columns; `suspects`: names and `alone` of the columns that tell the target best; `adversarial`: by
        split its `auc`, standard `error`, and the `columns` that differ most with their shift.
    """
    samples = _sampled(bundle)
    if samples is None:
        return None
    described = [_column(column, samples) for column in samples.columns[:MAX_COLUMNS]]
    described.sort(key=lambda one: (-max(one["shift"].values(), default=0.0), -one["alone"]))
    suspects = sorted(described, key=lambda one: -one["alone"])[:3]
    return {
        "version": VERSION,
        "rows": {name: len(split) for name, split in bundle.splits.items()},
        "features": int(np.prod(bundle.info.input_shape)),
        "target": _target(bundle.info, samples),
        "columns": described[:MAX_SHOWN],
        "more": max(0, len(samples.columns) - MAX_SHOWN),
        "suspects": [{"name": one["name"], "alone": one["alone"]} for one in suspects],
        "adversarial": {
            name: told
            for name in samples.features
            if name != "train" and (told := _told_apart(samples, name, described)) is not None
        },
    }


def _sampled(bundle: DataBundle) -> _Samples | None:
    task = task_for(bundle.info)
    if task.is_open:
        return None
    batches: dict[str, Batch] = {}
    targets: dict[str, Floats] = {}
    for name in SPLITS:
        split = bundle.splits.get(name)
        if split is None or not len(split):
            continue
        if not isinstance(split, ArraySplit):
            return None
        batches[name] = split.take(spaced(len(split), SAMPLE))
        values = task.as_values(np.asarray(batches[name][task.target]))
        if values is None:
            return None
        targets[name] = values
    if not all(FEATURES in batch for batch in batches.values()):
        return _Samples({}, targets, ())
    return _Samples(*_as_columns(bundle, {name: batch[FEATURES] for name, batch in batches.items()}, targets))


def _as_columns(
    bundle: DataBundle, features: dict[str, Any], targets: Mapping[str, Floats]
) -> tuple[Mapping[str, Array], Mapping[str, Floats], Sequence[Column]]:
    """Return the numeric features, the targets, and the columns that the features were computed from."""
    first = next(iter(features.values()))
    if is_frame(first):
        pandas: Any = require("pandas", "tabular")
        matrix = FrameMatrix(pandas.concat(list(features.values()), ignore_index=True))
        ends = np.cumsum([len(rows) for rows in features.values()])[:-1]
        parts = np.split(np.asarray(matrix.matrix), ends)
        return dict(zip(features, parts, strict=True)), targets, matrix.columns
    if first.ndim != 2 or first.dtype.kind not in "fiub":
        return {}, targets, ()
    return features, targets, data_columns(bundle.info, bundle.preparation)


def _column(column: Column, samples: _Samples) -> Json:
    """Return the distribution of a column in each split, and how well it alone tells the target."""
    values = {name: column.values(features) for name, features in samples.features.items()}
    if np.isnan(column.mean):  # several features that no single number stands for
        values = {name: features[:, column.features[0]] for name, features in samples.features.items()}
    drawn = _categories(column.categories, values) if column.categories else _histogram(values)
    missing = {name: float(np.isnan(rows).mean()) for name, rows in values.items()}
    alone = _alone(values["train"], samples.targets["train"], is_category=bool(column.categories))
    shown = {"missing": missing} if any(missing.values()) else {}
    return {"name": column.name, **drawn, **shown, "alone": round(alone, 4)}


def _histogram(values: Mapping[str, Floats]) -> Json:
    """Return counts between the 1st and 99th percentile; what is beyond counts in the outer bars."""
    known = {name: rows[np.isfinite(rows)] for name, rows in values.items()}
    pooled = np.concatenate(list(known.values()))
    low, high = np.quantile(pooled, [0.01, 0.99]) if len(pooled) else (0.0, 1.0)
    few = np.unique(pooled[:1000])
    if high <= low:
        low, high = low - 0.5, high + 0.5
    bars = min(MAX_BARS, max(2, len(few)))
    edges = np.linspace(low, high, bars + 1)
    counts = {
        name: np.bincount(
            np.clip(np.searchsorted(edges, rows, side="right") - 1, 0, bars - 1), minlength=bars
        ).tolist()
        for name, rows in known.items()
    }
    shift = {name: _distance(known["train"], rows) for name, rows in known.items() if name != "train"}
    return {"edges": [float(f"{edge:.6g}") for edge in edges], "counts": counts, "shift": shift}


def _distance(first: Floats, second: Floats) -> float:
    """Return the Kolmogorov-Smirnov distance of two samples; 0 where chance explains it (p > 0.01)."""
    if min(len(first), len(second)) < _ENOUGH:
        return 0.0
    at = np.concatenate([first, second])
    shares = [np.searchsorted(np.sort(part), at, side="right") / len(part) for part in (first, second)]
    distance = float(np.abs(shares[0] - shares[1]).max())
    return round(distance, 4) if distance > 1.63 * np.sqrt(1 / len(first) + 1 / len(second)) else 0.0


def _categories(names: Sequence[str], values: Mapping[str, Floats]) -> Json:
    """Return the counts of the most frequent categories; the others, and missing ones, are the last bar."""
    codes = {
        name: np.where(np.isfinite(rows), rows, len(names)).astype(np.int64) for name, rows in values.items()
    }
    counts = {name: np.bincount(rows, minlength=len(names) + 1) for name, rows in codes.items()}
    total = np.sum(list(counts.values()), axis=0)
    top = np.argsort(-total[:-1], kind="stable")[: MAX_BARS - 1]
    rest = np.setdiff1d(np.arange(len(total)), top)
    labels = [names[i] for i in top]
    bars = {name: [*count[top].tolist(), int(count[rest].sum())] for name, count in counts.items()}
    if not total[rest].sum():
        bars = {name: bar[:-1] for name, bar in bars.items()}
    else:
        labels.append("other or missing")
    return {"labels": labels, "counts": bars, "shift": _variation(bars)}


def _variation(counts: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return the total variation distance of each split from training; 0 where chance explains it."""
    totals = {name: max(1, sum(rows)) for name, rows in counts.items()}
    shares = {name: np.array(rows) / totals[name] for name, rows in counts.items()}
    distances = {}
    for name in [split for split in counts if split != "train"]:
        distance = float(np.abs(shares[name] - shares["train"]).sum() / 2)
        chance = np.sqrt(len(shares[name]) * (1 / totals[name] + 1 / totals["train"]) / (2 * np.pi))
        is_clear = distance > 2 * chance and min(totals[name], totals["train"]) >= _ENOUGH
        distances[name] = round(distance, 4) if is_clear else 0.0
    return distances


def _target(info: DataInfo, samples: _Samples) -> Json:
    """Return the distribution of the target: of the classes, or of the first of the values."""
    if task_for(info).gives_probabilities:
        labels = [str(label) for label in info.classes or range(info.outputs)]
        ones = {name: values.sum(axis=0) for name, values in samples.targets.items()}
        order = np.argsort(-ones["train"], kind="stable")[:MAX_BARS]
        counts = {name: [int(count[i]) for i in order] for name, count in ones.items()}
        names = [labels[i] for i in order]
        return {"name": info.target, "labels": names, "counts": counts, "shift": _variation(counts)}
    name = str(info.target_names[0]) if info.target_names else info.target
    return {"name": name, **_histogram({split: values[:, 0] for split, values in samples.targets.items()})}


def _alone(values: Floats, targets: Floats, *, is_category: bool) -> float:
    """Return how well (rows,) values tell (rows, outputs) targets by themselves, from 0 to 1."""
    known = np.isfinite(values)
    if known.sum() < _ENOUGH or known.mean() < 0.5:
        return 0.0
    values, targets = values[known], targets[known]
    binary = targets.shape[1] <= 2 and bool(((targets == 0) | (targets == 1)).all())
    if binary and not is_category:
        return _gini(values, targets[:, -1] > 0)
    groups = np.unique(values if is_category else _ranked(values), return_inverse=True)[1]
    count = int(groups.max()) + 1
    if count > len(values) // 4:
        return 0.0
    explained = _explained(groups, count, targets)
    if targets.shape[1] == 1 and not binary:
        return max(explained, abs(_rank_correlation(values, targets[:, 0])) ** 2)
    return explained


def _ranked(values: Floats) -> Array:
    """Return which of the groups of equally many rows each value is in."""
    edges = np.quantile(values, np.linspace(0, 1, _GROUPS + 1)[1:-1])
    return np.searchsorted(edges, values, side="right")


def _gini(values: Floats, positive: Array) -> float:
    if positive.all() or not positive.any():
        return 0.0
    return abs(2 * binary_auc(positive, values) - 1)


def _explained(groups: Array, count: int, targets: Floats) -> float:
    """Return the share of the targets' variance between the groups, adjusted for their number."""
    sizes = np.maximum(np.bincount(groups, minlength=count), 1)
    means = np.stack(
        [np.bincount(groups, weights=column, minlength=count) / sizes for column in targets.T], axis=1
    )
    within = float(((targets - means[groups]) ** 2).sum()) / max(1, len(targets) - count)
    total = float(((targets - targets.mean(axis=0)) ** 2).sum()) / max(1, len(targets) - 1)
    return max(0.0, 1 - within / total) if total > 0 else 0.0


def _rank_correlation(first: Floats, second: Floats) -> float:
    ranks = [np.unique(values, return_inverse=True)[1].astype(np.float64) for values in (first, second)]
    if any(rank.std() == 0 for rank in ranks):
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _told_apart(samples: _Samples, name: str, described: Sequence[Json]) -> Json | None:
    """Return how well a linear model tells the rows of a split from training rows; None for too few."""
    train, other = samples.features["train"], samples.features[name]
    if min(len(train), len(other)) < 2 * _ENOUGH or not 0 < train.shape[1] <= MAX_FEATURES:
        return None
    rows = np.concatenate([train, other]).astype(np.float64)
    mean = np.nanmean(np.where(np.isfinite(train), train, np.nan), axis=0)
    inputs = np.concatenate([rows, (rows - np.nan_to_num(mean)) ** 2], axis=1)
    is_other = np.arange(len(rows)) >= len(train)
    learns = np.arange(len(rows)) % 2 == 0
    targets = np.stack([~is_other, is_other], axis=1).astype(np.float64)
    model = LinearModel(inputs[learns], targets[learns], softmax)
    score = model.predict(inputs[~learns])[:, 1]
    auc = binary_auc(is_other[~learns], score)
    one, two = int(is_other[~learns].sum()), int((~is_other[~learns]).sum())
    shifted = sorted(described, key=lambda column: -column["shift"].get(name, 0.0))[:3]
    return {
        "auc": round(auc, 4),
        "error": round(float(np.sqrt((one + two + 1) / (12 * one * two))), 4),
        "columns": [{"name": one["name"], "shift": one["shift"].get(name, 0.0)} for one in shifted],
    }
