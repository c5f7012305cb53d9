"""What to begin with: XGBoost's proposal for a table, and what is worth a search."""

from __future__ import annotations

from collections.abc import Mapping

from trainwright.frameworks.base import Advice
from trainwright.frameworks.support.advice import (
    BOOSTED_RATE,
    COLUMNS,
    LEAF_PENALTY,
    ROWS,
    SAMPLED_ROWS,
    boosted,
    linear,
    logarithmic,
)
from trainwright.types import Proposal, Suggestion, TableShape

SPACE: Mapping[str, Suggestion] = {
    "model.learning_rate": BOOSTED_RATE,
    "model.max_depth": Suggestion(linear(2, 10), "depth of a tree; matters most"),
    "model.min_child_weight": Suggestion(logarithmic(1.0, 100.0), "weight of a leaf: more is smoother"),
    "model.subsample": ROWS,
    "model.colsample_bytree": COLUMNS,
    "model.reg_lambda": LEAF_PENALTY,
}


def proposal(shape: TableShape) -> Proposal:
    """Return what a config for a table begins with."""
    return boosted({"max_depth": 6, "subsample": 0.8}, shape, SAMPLED_ROWS, default_rank=2, comparison_rank=6)


ADVICE = Advice(lambda shape: {"xgboost": proposal(shape)}, {"xgboost": SPACE})
