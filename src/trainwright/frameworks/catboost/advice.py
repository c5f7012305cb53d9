"""What to begin with: CatBoost's proposal for a table, and what is worth a search."""

from __future__ import annotations

from collections.abc import Mapping

from trainwright.frameworks.base import Advice
from trainwright.frameworks.support.advice import BOOSTED_RATE, boosted, linear, logarithmic
from trainwright.types import Proposal, Suggestion, TableShape

SPACE: Mapping[str, Suggestion] = {
    "model.learning_rate": BOOSTED_RATE,
    "model.max_depth": Suggestion(linear(4, 9), "depth of a tree; matters most"),
    "model.reg_lambda": Suggestion(logarithmic(1.0, 30.0), "the penalty of large leaf values"),
    "model.random_strength": Suggestion(logarithmic(0.1, 10.0), "noise in the choice of splits"),
}


def proposal(shape: TableShape) -> Proposal:
    """Return what a config for a table begins with."""
    return boosted({"max_depth": 6}, shape, {}, default_rank=3, comparison_rank=4)


ADVICE = Advice(lambda shape: {"catboost": proposal(shape)}, {"catboost": SPACE})
