"""The objectives of LightGBM."""

from __future__ import annotations

from collections.abc import Mapping

from trainwright.errors import ModelError
from trainwright.frameworks.boosting.objective import OF_TASK, Objective, check_fits
from trainwright.frameworks.lightgbm.spec import LightgbmSpec
from trainwright.types import DataInfo

_REGRESSION = {  # objective: link
    "regression": "identity",
    "regression_l1": "identity",
    "huber": "identity",
    "fair": "identity",
    "quantile": "identity",
    "mape": "identity",
    "poisson": "exp",
    "gamma": "exp",
    "tweedie": "exp",
}
_ERRORS = {"regression_l1": "absolute", "mape": "absolute", "quantile": "quantile"}  # of others: squared
_BINARY = {"binary": "sigmoid"}
_MULTICLASS = {"multiclass": "softmax", "multiclassova": "sigmoid"}
# Task -> the objectives of one raw value of a row, those of several, and what the targets are.
_OF_TASK: Mapping[str, tuple[Mapping[str, str], Mapping[str, str], str]] = {
    "classification": (_BINARY, _MULTICLASS, "{} classes"),
    "regression": (_REGRESSION, {}, "values"),
}


def build_objective(spec: LightgbmSpec, info: DataInfo) -> Objective:
    """Return the objective that the options name, or the task's default.

    A custom one has the name `none`, and the link of the task's default.

    Raises:
        ModelError: The objective does not fit the task, or the data has several targets.
    """
    custom = spec.objective is not None
    make, (single, several, targets) = OF_TASK[info.task], _OF_TASK[info.task]
    allowed = single if make.width_of(info) == 1 else several
    if not allowed:
        raise ModelError(
            f"LightGBM takes one target, the data has {info.outputs}; train a model for each "
            "(data.target, and the others in data.exclude), or use xgboost, catboost or random_forest"
        )
    default = next(iter(allowed))
    name = default if custom else spec.params.objective or default
    check_fits(name, allowed, targets.format(info.outputs), "function")
    error = "squared" if custom else _ERRORS.get(name, "squared")
    return make("none" if custom else name, allowed[name], info, error, spec.params.alpha)
