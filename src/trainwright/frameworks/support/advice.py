"""Proposals for tables and ranges to search that several frameworks share.

Ranges are round numbers, about a factor of ten to both sides of what the libraries use where a scale is
logarithmic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainwright.types import Proposal, Suggestion, TableShape

_MANY_ROWS = 100_000  # from here on, rounds are evaluated less often
_PATIENCE = 50  # rounds without improvement
_LEAST = 20  # rows of a leaf, as by default in LightGBM and scikit-learn

LEARNING_RATE = 0.1  # of boosted trees
FEW_IN_LEAF = {"min_child_samples": "fewer where rows are few, or columns many"}
SAMPLED_ROWS = {"subsample": "a share of the rows for each tree: trees differ, and their sum varies less"}


def boosted(
    options: Mapping[str, Any],
    shape: TableShape,
    reasons: Mapping[str, str],
    *,
    default_rank: int | None,
    comparison_rank: int | None = None,
) -> Proposal:
    """Return the proposal of boosted trees: as many rounds as improve the validation loss."""
    many = shape.rows >= _MANY_ROWS
    rounds = 500 if shape.classes > 20 else 2000  # a round has a tree for each of several classes
    every = 10 if many else 1
    return Proposal(
        {"n_estimators": rounds, "learning_rate": LEARNING_RATE, **options},
        {"early_stopping": {"metric": "val_loss", "patience": _PATIENCE // every}},
        {"every_n_steps": every} if many else {},
        reasons,
        default_rank,
        comparison_rank,
    )


def least_in_leaf(shape: TableShape) -> int:
    """Return the minimum number of rows in a leaf: of 100 rows or fewer, 20 in a leaf allow few splits.

    Where there are more features than rows, most are of one category each, which few rows have.
    """
    return 3 if shape.features > shape.rows else int(np.clip(shape.rows // 5, 3, _LEAST))


def logarithmic(low: float, high: float) -> dict[str, Any]:
    """Return a range on a logarithmic scale, as in `tuning.space`."""
    return {"low": low, "high": high, "log": True}


def linear(low: float, high: float) -> dict[str, Any]:
    """Return a range, as in `tuning.space`."""
    return {"low": low, "high": high}


RATE = Suggestion(logarithmic(1e-4, 3e-2), "the step size; matters most")
BATCH = Suggestion([32, 64, 128, 256], "rows of a step")
DROPOUT = Suggestion(linear(0.0, 0.5), "share of activations left out in training")
WIDTHS = Suggestion([[64], [256], [128, 64], [256, 256], [256, 128, 64]], "widths of the layers")
BOOSTED_RATE = Suggestion(
    logarithmic(1e-2, 0.3), "the share of each tree that is added; less needs more trees"
)
ROWS = Suggestion(linear(0.5, 1.0), "share of the rows for each tree")
COLUMNS = Suggestion(linear(0.5, 1.0), "share of the columns for each tree")
LEAF_PENALTY = Suggestion(logarithmic(1e-3, 10.0), "the penalty of large leaf values")
LEAVES = Suggestion(logarithmic(7, 255), "leaves of a tree; matters most")
LEAF_ROWS = Suggestion(logarithmic(5, 100), "rows of a leaf: more is smoother")
