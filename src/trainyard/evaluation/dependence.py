"""Partial dependence: the mean output over the rows when one column has the same value in all of them.

Friedman, "Greedy function approximation" (2001). The spread says whether the rows agree: that of their own curves, each moved
so that its mean is the mean of all (Goldstein et al., "Peeking inside the black box", 2015). By brute force, with the
model's own predictions.
"""

from __future__ import annotations

import numpy as np

from trainyard.evaluation.subject import Floats, Json, Source, Subject, briefs
from trainyard.types import Array

GRID = 20  # points; of more categories those with the most rows
SAMPLE = 500
MAX_LINES = 4  # outputs with a curve of their own; of more classes those with the most rows
QUANTILES = (0.1, 0.9)


def partial_dependence(subject: Subject, source: Source) -> Json | None:
    """The curve of a column; None where it has only one value in the sample.

    Costs at most 20 predictions of 500 rows. Keys: `name`, `kind` (`number` or `category`), `grid` (values in the column's
    own unit, or names of categories), `outputs`: [{`name`, `mean`, `low`, `high`: (grid,), the latter two the quantiles 10%
    and 90% of the rows' curves around the mean}].
    """
    settings = _settings(subject, source)
    if len(settings) < 2:
        return None
    features = subject.features[:SAMPLE].copy()
    curves = np.empty((len(settings), len(features), len(subject.shown)))
    for point, setting in enumerate(settings):
        features[:, source.columns] = setting
        curves[point] = subject.outputs(features)
    values = source.values(_placed(subject, source, settings))
    names = [source.categories[int(code)] for code in values] if source.categories else briefs(values)
    kept = subject.frequent(MAX_LINES)
    return {
        "name": source.name,
        "kind": "category" if source.categories else "number",
        "grid": names,
        "outputs": [
            _curve(curves[:, :, i], output.name)
            for i, output in enumerate(subject.shown)
            if len(subject.shown) <= MAX_LINES or output.place in kept
        ],
    }


def _curve(curves: Floats, name: str) -> Json:
    low, high = np.quantile(curves - curves.mean(axis=0) + curves.mean(), QUANTILES, axis=1)
    return {"name": name, "mean": briefs(curves.mean(axis=1)), "low": briefs(low), "high": briefs(high)}


def _settings(subject: Subject, source: Source) -> Array:
    """(grid, columns): what the column is set to, as features; ascending. Only what occurs in the sample."""
    own = subject.features[:, source.columns]
    values = source.values(subject.features)
    known, own = values[np.isfinite(values)], own[np.isfinite(values)]
    distinct, first, rows = np.unique(known, return_index=True, return_counts=True)
    if len(distinct) <= GRID:
        return own[first]
    if source.categories:
        return own[first[np.sort(np.argsort(-rows, kind="stable")[:GRID])]]
    # the ends are left out: a rare extreme would stretch the axis
    chosen = np.unique(np.quantile(known, np.linspace(0.02, 0.98, GRID), method="inverted_cdf"))
    if len(chosen) < GRID // 4:  # most rows have the same value
        chosen = distinct[np.linspace(0, len(distinct) - 1, GRID).astype(np.int64)]
    return own[first[np.searchsorted(distinct, chosen)]]


def _placed(subject: Subject, source: Source, settings: Array) -> Array:
    """(grid, n): rows of features that hold the settings."""
    rows = np.repeat(subject.features[:1], len(settings), axis=0)
    rows[:, source.columns] = settings
    return rows
