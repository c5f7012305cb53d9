"""The objectives of CatBoost."""

from __future__ import annotations

from collections.abc import Mapping

from trainwright.errors import ModelError
from trainwright.frameworks.boosting.objective import OF_TASK, Objective, check_fits
from trainwright.frameworks.catboost.params import CatboostSpec, alpha_of
from trainwright.types import DataInfo

_REGRESSION = {  # objective: link
    **dict.fromkeys(("RMSE", "MAE", "Quantile", "Expectile", "Huber", "MAPE", "LogCosh", "Lq"), "identity"),
    **dict.fromkeys(("Poisson", "Tweedie"), "exp"),
}
_MULTI_REGRESSION = {"MultiRMSE": "identity"}
_ERRORS = {"MAE": "absolute", "MAPE": "relative", "Quantile": "quantile"}  # of others: squared
_BINARY = {"Logloss": "sigmoid", "CrossEntropy": "sigmoid", "Focal": "sigmoid"}
_LABELS = {"MultiLogloss": "sigmoid", "MultiCrossEntropy": "sigmoid"}
_MULTICLASS = {"MultiClass": "softmax", "MultiClassOneVsAll": "sigmoid"}
# Task -> the objectives of one raw value of a row, those of several, and what the targets are.
_OF_TASK: Mapping[str, tuple[Mapping[str, str], Mapping[str, str], str]] = {
    "classification": (_BINARY, _MULTICLASS, "classes"),
    "multilabel": (_LABELS, _LABELS, "labels"),
    "regression": (_REGRESSION, _MULTI_REGRESSION, "values"),
}


def build_objective(spec: CatboostSpec, info: DataInfo) -> Objective:
    """Return the objective that the options name; the task's default if there is none or a custom one.

    Raises:
        ModelError: The objective does not fit the task, or higher values of the metric are better.
    """
    if spec.metric is not None and spec.metric.is_max_optimal():
        raise ModelError("model.params.metric: higher is better, but it is the loss; return its negative")
    requested = spec.params.objective
    make, (single, several, targets) = OF_TASK[info.task], _OF_TASK[info.task]
    allowed = single if make.width_of(info) == 1 else several
    name = next(iter(allowed)) if requested is None or spec.objective is not None else requested
    kind, _, options = name.partition(":")
    check_fits(kind, allowed, f"{info.outputs} {targets if info.outputs > 1 else targets[:-1]}", "Class")
    alpha = alpha_of(options) if kind == "Quantile" else 0.5
    return make(name, allowed[kind], info, _ERRORS.get(kind, "squared"), alpha)
