"""Options that restrain a model: more of them mends overfitting, less of them underfitting."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from trainwright.reports.diagnosis.base import NO_CHANGES, Changes, params_of, series, setting
from trainwright.reports.diagnosis.changes import (
    advised,
    default_of,
    is_number,
    training_default,
    training_keys,
)
from trainwright.reports.framework import framework_of
from trainwright.reports.rundir import RunFiles

_DECAY, _MOST_DROPOUT, _DEPTH = 0.1, 0.5, 4
_NUMBER = re.compile(r"[0-9.]+")
_FEW_UNITS = 8  # in all hidden layers
_TIMES = 3.0  # the default: from here on, an option holds a model back much


def restraint(run: RunFiles) -> Changes:
    """Return the change that holds a model back more than its settings do; none where no option is known.

    Of a model that is trained in steps, the best one by the validation rows is kept, from before it overfits:
    none of these options made it better by more than chance.
    """
    if series(run, "val_loss") is not None:
        return NO_CHANGES
    return advised(run, *_stronger(run))


def _stronger(run: RunFiles) -> Iterator[dict[str, Any]]:
    params, model, framework = params_of(run), str(setting(run, "model.type")), framework_of(run)
    if framework is not None and model in framework.advice.unrestrained and not params.get("penalty"):
        key, _, value = framework.advice.unrestrained[model].partition(": ")
        yield {key: float(value) if _NUMBER.fullmatch(value) else value}
        return
    for option, stronger in _STRONGER.items():
        for name, current in params.items():
            # An option of a step of a pipeline is called `logisticregression__C`.
            if name.rpartition("__")[2] == option and (more := stronger(current)) is not None:
                yield {f"model.params.{name}": more}


def relaxed(run: RunFiles) -> Changes:
    """Return the changes that give options that hold a model back much their defaults."""
    changes: dict[str, Any] = {}
    decay, smoothing = setting(run, "training.weight_decay"), setting(run, "training.label_smoothing")
    keys = training_keys(run)
    if "weight_decay" in keys and is_number(decay) and decay > _DECAY:
        changes["training.weight_decay"] = training_default("weight_decay")
    if "label_smoothing" in keys and is_number(smoothing) and smoothing > _TIMES * 0.1:
        changes["training.label_smoothing"] = training_default("label_smoothing")
    for name, current in params_of(run).items():
        usual = default_of(run, name)
        if name == "hidden" and isinstance(current, list) and 0 < sum(current) < _FEW_UNITS:
            changes["model.params.hidden"] = usual
        is_known = name in _HELD_BACK and is_number(current) and (is_number(usual) or usual is None)
        if is_known and _HELD_BACK[name](float(current), usual):
            changes[f"model.params.{name}"] = usual
    return advised(run, changes) if changes else NO_CHANGES


def _depth(current: Any) -> float | None:
    if not is_number(current) or current <= 0 or current > _DEPTH:
        return _DEPTH
    return current - 1 if current > 1 else None


def _at_least(least: float, factor: float) -> Callable[[Any], float | None]:
    return lambda current: max(least, factor * current) if is_number(current) else None


def _less(current: float, usual: float | None) -> bool:
    """Return whether a value is much less than a default, of which None means no limit."""
    return usual is None or current * _TIMES < usual


def _more(current: float, usual: float | None) -> bool:
    return usual is not None and current > _TIMES * max(usual, 1e-9)


def _shallow(current: float, usual: float | None) -> bool:
    return 0 < current < 3 and (usual is None or usual <= 0 or current < usual)


# Option -> a value that holds the model back more; None where this one cannot. The first that a model has.
_STRONGER: Mapping[str, Callable[[Any], float | None]] = {
    "max_depth": _depth,
    "C": lambda current: min(1.0, 0.1 * current) if is_number(current) and current > 0 else None,
    "alpha": _at_least(1e-3, 10),
    "n_neighbors": lambda current: 3 * current if is_number(current) else None,
    "min_samples_leaf": _at_least(5, 2),
    "reg_param": _at_least(0.1, 2),
}
# Option -> whether a value, beside the default, holds a model back so much that it may learn too little.
_HELD_BACK: Mapping[str, Callable[[float, float | None], bool]] = {
    "dropout": lambda current, _: current > _MOST_DROPOUT,
    "max_depth": _shallow,
    "num_leaves": _less,
    "max_leaves": lambda current, _: 0 < current < 4,
    "max_leaf_nodes": _less,
    "n_estimators": lambda current, usual: usual is not None and current * _TIMES < usual,
    "C": _less,
    "alpha": _more,
    "reg_lambda": _more,
    "reg_alpha": lambda current, _: current > _TIMES,
    "l2_regularization": lambda current, _: current > _TIMES,
    "min_samples_leaf": lambda current, usual: _more(current, usual) or 0.05 < current < 1,
    "min_samples_split": lambda current, usual: _more(current, usual) or 0.1 < current < 1,
    "min_child_samples": _more,
    "min_child_weight": _more,
    "n_neighbors": lambda current, usual: usual is not None and current > 10 * usual,
    "gamma": lambda current, usual: usual == 0 and current > _TIMES,
}
