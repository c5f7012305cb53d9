"""Permutation importance: how much a metric worsens when one column of the data is shuffled among the rows.

Method: Breiman, "Random forests" (2001); for any model Fisher, Rudin and Dominici, "All models are wrong, but
many are useful" (2019). The features made from one column are shuffled together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainwright.evaluation.explained import Column, ExplainedModel, Floats, Json, rounded
from trainwright.evaluation.metrics import mode_of, without_prefix
from trainwright.order import permutation, stream_seed

REPEATS = 5
MAX_ROWS = 1_000_000  # rows predicted for all columns together; with many columns the sample is smaller
MIN_SAMPLE = 100  # rows
_SHUFFLE_STREAM = 1  # number of this random stream within an explanation


def permutation_importance(
    explained: ExplainedModel, metric: str, chosen: Sequence[Column], repeats: int = REPEATS
) -> Json | None:
    """Compute the permutation importance of columns.

    It costs `1 + repeats * columns` predictions of the sample.

    Args:
        explained: The model and the sample.
        metric: The bare name of a metric, its import path, or `loss`.
        chosen: The columns to shuffle.
        repeats: Number of times that each column is shuffled.

    Returns:
        JSON with the keys `metric`, `mode` (`min` or `max`), `baseline` (the metric of the unshuffled
        sample), `rows`, `repeats`, and `features`: [{`name`, `mean`, `std`}], largest mean first. `mean` is
        how much the metric worsens, averaged over the repeats: above 0 if the model needs the column. `std`
        is the population standard deviation over the repeats. None if the metric of the sample is not finite.
    """
    rows = min(len(explained.features), max(MIN_SAMPLE, MAX_ROWS // max(1, repeats * len(chosen))))
    part = ExplainedModel(
        explained.predict,
        explained.info,
        explained.columns,
        explained.features[:rows],
        explained.targets[:rows],
        explained.seed,
    )
    baseline = part.score(part.features, metric)
    if not np.isfinite(baseline):
        return None
    mode = mode_of(metric)
    sign = 1.0 if mode == "max" else -1.0
    losses = {column.name: sign * (baseline - _shuffled(part, metric, column, repeats)) for column in chosen}
    order = sorted(losses, key=lambda name: -float(np.nan_to_num(losses[name].mean())))
    return {
        "metric": without_prefix(metric),
        "mode": mode,
        "baseline": rounded(baseline),
        "rows": rows,
        "repeats": repeats,
        "features": [
            {
                "name": name,
                "mean": rounded(float(losses[name].mean())),
                "std": rounded(float(losses[name].std())),
            }
            for name in order
        ],
    }


def _shuffled(explained: ExplainedModel, metric: str, column: Column, repeats: int) -> Floats:
    """Return (repeats,) values of the metric, each with the column shuffled again."""
    features, columns = explained.features.copy(), column.features
    own = features[:, columns]  # (rows, features of the column), a copy
    scores = np.empty(repeats)
    for repeat in range(repeats):
        features[:, columns] = own[
            permutation(stream_seed(explained.seed, _SHUFFLE_STREAM, columns[0], repeat), len(own))
        ]
        scores[repeat] = explained.score(features, metric)
    return scores
