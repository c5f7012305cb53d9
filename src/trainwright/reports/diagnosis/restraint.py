"""Options that restrain a model: the line of config that mends overfitting, by what the model has."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from trainwright.reports.diagnosis.base import setting
from trainwright.reports.framework import framework_of
from trainwright.reports.rundir import RunFiles, part

_DECAY, _MOST_DROPOUT, _DEPTH = 0.1, 0.5, 4
_FEWER = "data.features: [COLUMN, COLUMN]   # fewer columns leave less to learn by heart"


def restraint(run: RunFiles) -> str:
    """Return the line of config that holds a model back more than its settings do."""
    params, model = part(run.settings, "model", "params"), str(setting(run, "model.type"))
    if (framework := framework_of(run)) is not None:
        decays = "weight_decay" in framework.training_keys(model, params)
        if decays and (line := _of_network(run)) is not None:
            return line
        unrestrained = framework.advice.unrestrained
        if model in unrestrained and not params.get("penalty"):
            return unrestrained[model]
    for option, stronger in _STRONGER.items():
        for name, current in params.items():
            # An option of a step of a pipeline is called `logisticregression__C`.
            if name.rpartition("__")[2] == option and (value := stronger(current)) is not None:
                return f"model.params.{name}: {value:g}"
    return _FEWER


def _of_network(run: RunFiles) -> str | None:
    """Return a line of weight decay, or of dropout where there is much decay already."""
    decay = setting(run, "training.weight_decay")
    if not isinstance(decay, int | float) or not decay:
        return f"training.weight_decay: {_DECAY}"
    if decay < _DECAY or "dropout" not in part(run.settings, "model", "params"):
        return f"training.weight_decay: {10 * decay:g}"
    return None


def _depth(current: Any) -> float | None:
    if not _is_number(current) or current <= 0 or current > _DEPTH:
        return _DEPTH
    return current - 1 if current > 1 else None


def _dropout(current: Any) -> float | None:
    return min(_MOST_DROPOUT, current + 0.2) if _is_number(current) and current < _MOST_DROPOUT else None


def _times(factor: float) -> Callable[[Any], float | None]:
    return lambda current: factor * current if _is_number(current) and 0 < current < math.inf else None


def _at_least(least: float, factor: float) -> Callable[[Any], float | None]:
    return lambda current: max(least, factor * current) if _is_number(current) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


# Option -> a value that holds the model back more; None where this one cannot. The first that a model has.
_STRONGER: Mapping[str, Callable[[Any], float | None]] = {
    "dropout": _dropout,
    "max_depth": _depth,
    "C": _times(0.1),
    "alpha": _at_least(1e-3, 10),
    "reg_lambda": _at_least(1.0, 10),
    "n_neighbors": _times(3),
    "l2_regularization": _at_least(1.0, 10),
    "min_samples_leaf": _at_least(5, 2),
    "var_smoothing": _times(1000),
    "reg_param": _at_least(0.1, 2),
    "max_samples": _times(0.5),
}
