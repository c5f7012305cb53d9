"""Advice on networks: a proposal for a table to begin with, and the options that are worth a search."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trainwright.frameworks.base import Advice
from trainwright.frameworks.support.advice import BATCH, DROPOUT, RATE, WIDTHS, linear, logarithmic
from trainwright.types import Proposal, Suggestion, TableShape

_NETWORK = {
    "training.learning_rate": RATE,
    "training.optimizer.weight_decay": Suggestion(logarithmic(1e-6, 1e-1), "pulls weights to zero"),
}
_TRANSFORMER = {
    **_NETWORK,
    "model.num_layers": Suggestion(linear(1, 6), "depth"),
    "model.hidden_size": Suggestion([64, 128, 256], "width; a multiple of num_heads"),
    "model.dropout": Suggestion(linear(0.0, 0.3), DROPOUT.why),
}

SPACES: Mapping[str, Mapping[str, Suggestion]] = {
    "mlp": {
        **_NETWORK,
        "training.batch_size": BATCH,
        "model.hidden": WIDTHS,
        "model.dropout": DROPOUT,
    },
    "transformer": _TRANSFORMER,
    "gpt": _TRANSFORMER,
}


def proposals(shape: TableShape) -> Mapping[str, Proposal]:
    """Return what a config for a table begins with: a network with about 20 steps per epoch."""
    rows = shape.rows
    # A power of two from 8 to 256; at most a third of the rows.
    batch = int(max(1, min(2 ** int(np.clip(np.log2(max(rows / 20, 1)), 3, 8)), rows // 3)))
    training = {"epochs": 50, "batch_size": batch, "learning_rate": 1e-3}
    stop = {"early_stopping": {"metric": "val_loss", "patience": 10}}
    model = {"hidden": [128, 64], "dropout": 0.1}
    return {"mlp": Proposal(model, training | stop, default_rank=5, comparison_rank=5)}


ADVICE = Advice(proposals, SPACES)
