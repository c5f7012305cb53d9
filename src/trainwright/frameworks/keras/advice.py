"""What is worth a search, by model."""

from __future__ import annotations

from collections.abc import Mapping

from trainwright.frameworks.base import Advice
from trainwright.frameworks.support.advice import BATCH, DROPOUT, RATE, WIDTHS
from trainwright.types import Suggestion

_NETWORK = {"training.learning_rate": RATE, "training.batch_size": BATCH}

SPACES: Mapping[str, Mapping[str, Suggestion]] = {
    "keras_mlp": {**_NETWORK, "model.hidden": WIDTHS, "model.dropout": DROPOUT},
    "keras_cnn": {
        **_NETWORK,
        "model.filters": Suggestion([[16, 32], [32, 64], [32, 64, 128]], "channels of the layers"),
        "model.dropout": DROPOUT,
    },
}

ADVICE = Advice(spaces=SPACES)
