"""Permutation importance: what a metric loses when a column of the data is shuffled among the rows.

Breiman, "Random forests" (2001); for any model: Fisher, Rudin and Dominici, "All models are wrong, but many are useful"
(2019). The features that were made of one column are shuffled together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trainyard.evaluation.metrics import mode_of
from trainyard.evaluation.subject import Floats, Json, Source, Subject, brief
from trainyard.order import permutation, stream_seed

REPEATS = 5
MAX_ROWS = (
    1_000_000  # that the model predicts, for all columns together; with many columns the sample is smaller
)
MIN_SAMPLE = 100
_SHUFFLE = 1  # of the streams of an explanation


def permutation_importance(
    subject: Subject, metric: str, chosen: Sequence[Source], repeats: int = REPEATS
) -> Json | None:
    """How much worse a metric (or `loss`) gets: above 0 where the model needs the column; None where the metric is NaN.

    Costs `1 + repeats * columns` predictions of the sample. Keys: `metric`, `mode` (`min` or `max`), `baseline` (of the
    sample), `rows`, `repeats`, `features`: [{`name`, `mean`, `std` (of the population, over the repeats)}], the greatest mean
    first.
    """
    rows = min(len(subject.features), max(MIN_SAMPLE, MAX_ROWS // max(1, repeats * len(chosen))))
    part = Subject(
        subject.predict,
        subject.info,
        subject.sources,
        subject.features[:rows],
        subject.targets[:rows],
        subject.seed,
    )
    baseline = part.score(part.features, metric)
    if not np.isfinite(baseline):
        return None
    mode = mode_of(metric)
    sign = 1.0 if mode == "max" else -1.0
    losses = {source.name: sign * (baseline - _shuffled(part, metric, source, repeats)) for source in chosen}
    order = sorted(losses, key=lambda name: -float(np.nan_to_num(losses[name].mean())))
    return {
        "metric": metric,
        "mode": mode,
        "baseline": brief(baseline),
        "rows": rows,
        "repeats": repeats,
        "features": [
            {"name": name, "mean": brief(float(losses[name].mean())), "std": brief(float(losses[name].std()))}
            for name in order
        ],
    }


def _shuffled(subject: Subject, metric: str, source: Source, repeats: int) -> Floats:
    """(repeats,): the metric with the column shuffled."""
    features, columns = subject.features.copy(), source.columns
    own = features[:, columns]
    scores = np.empty(repeats)
    for repeat in range(repeats):
        features[:, columns] = own[
            permutation(stream_seed(subject.seed, _SHUFFLE, columns[0], repeat), len(own))
        ]
        scores[repeat] = subject.score(features, metric)
    return scores
