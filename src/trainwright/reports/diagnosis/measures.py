"""Measures of a run by which a change of its config is judged, in the run itself and in one that follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import numpy as np

from trainwright.reports.diagnosis.base import Changes, Expected, rows_of, series
from trainwright.reports.rundir import RunFiles, numbers, part

_PER_CLASS = "recall of "


def measured(run: RunFiles, measure: str) -> float | None:
    """Return a measure of a run; None where its records do not tell.

    Args:
        run: The run.
        measure: `train_loss` (at the end of the training), a metric of the run's result, `recall of LABEL`
            (on the rows that judge the model), `steps`, `alone` (how well the best
            single column tells the target), `apart` (how well the rows of splits are told apart) or `rows`
            (that judge the model).
    """
    if measure.startswith(_PER_CLASS):
        return _recall(run, measure.removeprefix(_PER_CLASS))
    if measure in _MEASURES:
        return _MEASURES[measure](run)
    return run.metrics.get(measure)


def expected(
    run: RunFiles, changes: Changes | str, measure: str, better: Literal["higher", "lower"], words: str
) -> Expected | None:
    """Return what changes, or a command, are expected to do; None without any or without a present value."""
    value = measured(run, measure) if changes else None
    return None if value is None else Expected(measure, better, value, words)


def ends(values: np.ndarray) -> tuple[float, float]:
    """Return the mean of the first tenth and of the last fifth."""
    count = len(values)
    first, last = values[: max(1, count // 10)], values[-max(1, count // 5) :]
    return float(first.mean()), float(last.mean())


def _train_loss(run: RunFiles) -> float | None:
    curve = run.history.curves.get("loss") or run.history.curves.get("train_loss")
    if curve is not None and len(curve.envelope.x) and not np.isfinite(curve.last):
        return float("inf")
    known = series(run, "loss", "train_loss")
    return None if known is None else ends(known.values)[1]


def _recall(run: RunFiles, label: str) -> float | None:
    for one in run.evaluations.get(run.judged_split, {}).get("per_class") or ():
        if str(one["label"]) == label:
            return float(one["recall"])
    return None


def _alone(run: RunFiles) -> float | None:
    return max((float(one["alone"]) for one in run.profile.get("suspects", ())), default=None)


def _apart(run: RunFiles) -> float | None:
    told = part(run.profile, "adversarial").values()
    return max((numbers(one)["auc"] for one in told), default=None)


def _rows(run: RunFiles) -> float | None:
    return rows_of(run).get(run.judged_split)


_MEASURES: Mapping[str, Callable[[RunFiles], float | None]] = {
    "train_loss": _train_loss,
    "steps": lambda run: float(run.steps),
    "alone": _alone,
    "apart": _apart,
    "rows": _rows,
}
