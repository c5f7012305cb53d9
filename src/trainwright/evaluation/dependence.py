"""Partial dependence: the mean output over the rows when one column has the same value in all of them.

Method: Friedman, "Greedy function approximation" (2001), by brute force with the model's own predictions. The
spread shows whether the rows agree. It is that of the rows' individual curves, each shifted so that its mean
is the mean of all curves (centered ICE: Goldstein et al., "Peeking inside the black box", 2015).
"""

from __future__ import annotations

import numpy as np

from trainwright.evaluation.explained import Column, ExplainedModel, Floats, Json, rounded_all
from trainwright.tasks.base import UNBOUNDED, Bounds
from trainwright.types import Array

GRID = 20  # maximum number of points; if there are more categories, those with the most rows
SAMPLE = 500  # rows
MAX_LINES = 4  # outputs with a curve; if there are more classes, those with the most rows
QUANTILES = (0.1, 0.9)  # of the rows' curves


def partial_dependence(explained: ExplainedModel, column: Column) -> Json | None:
    """Compute the partial dependence curves of a column, which costs at most 20 predictions of 500 rows.

    Returns:
        JSON with the keys `name`, `kind` (`number` or `category`), `grid` (values in the column's original
        units, or category names) and `outputs`: [{`name`, `mean`, `low`, `high`}], each curve (grid,); `low`
        and `high` are the 10% and 90% quantiles of the rows' centered curves, of
        probabilities within 0 and 1. None if the column has a single value in the sample.
    """
    grid = _grid(explained, column)
    if len(grid) < 2:
        return None
    features = explained.features[:SAMPLE].copy()
    curves = np.empty((len(grid), len(features), len(explained.shown_outputs)))
    for point, value in enumerate(grid):
        features[:, column.features] = value
        curves[point] = explained.outputs(features)
    values = column.values(_rows_with(explained, column, grid))
    labels = [column.categories[int(code)] for code in values] if column.categories else rounded_all(values)
    kept = explained.most_frequent(MAX_LINES)
    bounds = (0.0, 1.0) if explained.task.gives_probabilities else UNBOUNDED
    return {
        "name": column.name,
        "kind": "category" if column.categories else "number",
        "grid": labels,
        "outputs": [
            _curve(curves[:, :, i], output.name, bounds)
            for i, output in enumerate(explained.shown_outputs)
            if len(explained.shown_outputs) <= MAX_LINES or output.position in kept
        ],
    }


def _curve(curves: Floats, name: str, bounds: Bounds) -> Json:
    """Return the mean and the quantiles of the rows' curves (grid, rows) of one output as JSON."""
    # Shifted curves of probabilities may leave 0 to 1.
    low, high = np.clip(np.quantile(curves - curves.mean(axis=0) + curves.mean(), QUANTILES, axis=1), *bounds)
    return {
        "name": name,
        "mean": rounded_all(curves.mean(axis=1)),
        "low": rounded_all(low),
        "high": rounded_all(high),
    }


def _grid(explained: ExplainedModel, column: Column) -> Array:
    """Return (grid, features of the column): the values to set the column to, ascending.

    Only values that occur in the sample are used.
    """
    own = explained.features[:, column.features]
    values = column.values(explained.features)
    known, own = values[np.isfinite(values)], own[np.isfinite(values)]
    distinct, first, rows = np.unique(known, return_index=True, return_counts=True)
    if len(distinct) <= GRID:
        return own[first]
    if column.categories:
        return own[first[np.sort(np.argsort(-rows, kind="stable")[:GRID])]]
    # Leave out the extremes: a rare one would stretch the axis.
    chosen = np.unique(np.quantile(known, np.linspace(0.02, 0.98, GRID), method="inverted_cdf"))
    if len(chosen) < GRID // 4:  # most rows share a few values
        chosen = distinct[np.linspace(0, len(distinct) - 1, GRID).astype(np.int64)]
    return own[first[np.searchsorted(distinct, chosen)]]


def _rows_with(explained: ExplainedModel, column: Column, grid: Array) -> Array:
    """Return (grid, n): complete rows of features, with the column set to each value of the grid."""
    rows = np.repeat(explained.features[:1], len(grid), axis=0)
    rows[:, column.features] = grid
    return rows
