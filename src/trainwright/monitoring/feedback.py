"""Quality by labels that come later, beside that of the run's own evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainwright.evaluation.intervals import intervals
from trainwright.evaluation.metrics import (
    LOSS,
    EvaluationResult,
    adds_up,
    find_metric,
    mode_of,
    without_prefix,
)
from trainwright.plugins import task_for
from trainwright.records.journal import finite
from trainwright.types import Array, DataInfo


def quality(
    outputs: Array,
    targets: Array,
    info: DataInfo,
    metrics: Sequence[str],
    expected: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Return metrics of rows whose targets are known, with 95% intervals, by name.

    Each has `value`, `low`, `high` and `method` (None where there is no interval), the `expected` value, and
    whether it is `worse` than that by more than the noise of the rows: the whole interval is. There are none
    of no rows; rows whose outputs are not finite are left out.

    Args:
        outputs: (rows, ...) as `Predictor.outputs` returns them.
        targets: (rows, ...) as `Predictor.encoded_targets` returns them.
        info: The description of the run's data.
        metrics: The names of metrics, such as `evaluation.metrics.wanted_metrics` returns.
        expected: The metrics of the run's own evaluation by name (`f1`), to compare with.
    """
    task = task_for(info)
    usable = np.isfinite(outputs).all(axis=tuple(range(1, outputs.ndim)))
    result = EvaluationResult("test", {}, outputs[usable], targets[usable], np.flatnonzero(usable))
    if not len(result.ids):
        return {}
    bare = [without_prefix(name) if ":" not in name else name for name in metrics]
    names = [name for name in bare if name != LOSS and not adds_up(name)]
    scores, known = result.scores(task), intervals(result, info, names)
    found = {}
    for name in names:
        interval = known.get(name, {"low": None, "high": None, "method": None})
        value = finite(float(find_metric(name, type(task)).function(scores)))
        compared = _compared(name, interval, (expected or {}).get(without_prefix(name)))
        found[without_prefix(name)] = {"value": value, **interval, **compared}
    return found


def _compared(name: str, interval: Mapping[str, Any], expected: float | None) -> dict[str, Any]:
    if expected is None or interval["low"] is None:
        return {"expected": expected, "worse": None}
    is_loss = mode_of(name) == "min"
    worse = float(interval["low"]) > expected if is_loss else float(interval["high"]) < expected
    return {"expected": expected, "worse": worse}
