"""What to begin with: LightGBM's proposal for a table, and what is worth a search."""

from __future__ import annotations

from collections.abc import Mapping

from trainwright.frameworks.base import Advice
from trainwright.frameworks.support.advice import (
    BOOSTED_RATE,
    COLUMNS,
    FEW_IN_LEAF,
    LEAF_PENALTY,
    LEAF_ROWS,
    LEAVES,
    boosted,
    least_in_leaf,
)
from trainwright.types import Proposal, Suggestion, TableShape

SPACE: Mapping[str, Suggestion] = {
    "model.learning_rate": BOOSTED_RATE,
    "model.num_leaves": LEAVES,
    "model.min_child_samples": LEAF_ROWS,
    "model.colsample_bytree": COLUMNS,
    "model.reg_lambda": LEAF_PENALTY,
}


def proposal(shape: TableShape) -> Proposal:
    """Return what a config for a table begins with: LightGBM's own defaults, but for leaves of few rows.

    On a hundred real tables (`benchmarks/proposals.py`), a lower learning rate, samples of the rows and
    smaller leaves each did more harm than good. LightGBM learns one target.
    """
    return boosted(
        {"num_leaves": 31, "min_child_samples": least_in_leaf(shape)},
        shape,
        FEW_IN_LEAF,
        default_rank=None if shape.several else 1,
    )


ADVICE = Advice(lambda shape: {"lightgbm": proposal(shape)}, {"lightgbm": SPACE})
