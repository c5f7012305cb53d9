"""What a model is made from: a config's options, or an estimator of the library with options of its own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainyard.config.schema import RunConfig
from trainyard.errors import ModelError
from trainyard.frameworks.support.estimators import imported, task_of, validated
from trainyard.frameworks.xgboost.library import xgboost
from trainyard.frameworks.xgboost.params import METRICS, OBJECTIVES, Objective, XgboostParams
from trainyard.require import import_path
from trainyard.types import Array, DataInfo, Task

Gradients = Callable[[Array, Any], tuple[Array, Array]]  # (margins, matrix) -> first and second derivatives
Metric = Callable[[Array, Any], tuple[str, float]]  # (predictions, matrix) -> name, mean over the rows

# What an estimator says of a run, and the config says here.
_ELSEWHERE = {
    "device": "set training.device",
    "early_stopping_rounds": "set training.early_stopping",
    "callbacks": "give them to trainyard.train",
}
_UNUSED = {"n_jobs": "training.threads", "random_state": "experiment.seed"}
_NEUTRAL = {"enable_categorical", "importance_type", "verbosity", "validate_parameters"}


@dataclass(frozen=True)
class Recipe:
    """Options, and functions of the user's that stand for the objective and the metric; `objective` still has the link.

    `task` is what an estimator is for, `unused` its options that the run decides.
    """

    params: XgboostParams
    gradients: Gradients | None = None
    metric: Metric | None = None
    task: Task | None = None
    unused: Sequence[str] = ()

    def objective(self, info: DataInfo) -> str:
        """The built-in objective that turns margins into outputs, and gives the gradients unless `gradients` does.

        Raises:
            ModelError: it is not for such targets.
        """
        usual = (
            "reg:squarederror"
            if info.task == "regression"
            else "binary:logistic"
            if info.outputs == 2
            else "multi:softprob"
        )
        chosen = self.params.objective if self.params.objective in OBJECTIVES else usual
        assert chosen is not None
        if OBJECTIVES[chosen].task != info.task or (chosen == "binary:logistic" and info.outputs != 2):
            targets = f"{info.outputs} classes" if info.task == "classification" else "values"
            raise ModelError(
                f"objective {chosen} is not for targets of {targets}: leave it out, or give {usual}"
            )
        if chosen == "reg:quantileerror" and info.outputs > 1:
            raise ModelError(
                f"objective {chosen} is for one value, the targets have {info.outputs}; give another"
            )
        return chosen

    def loss(self, info: DataInfo) -> Objective:
        """The built-in metric that is reported as the loss, and its power.

        Raises:
            ModelError: it is not for the objective's outputs.
        """
        objective, metric = self.objective(info), self.params.metric
        found = OBJECTIVES[objective]
        if self.metric is None and metric is not None:
            if metric.split("@")[0] not in (allowed := _metrics_of(objective)):
                raise ModelError(
                    f"metric {metric} is not for objective {objective}; allowed: {', '.join(allowed)}"
                )
            found = Objective(
                info.task, OBJECTIVES["reg:tweedie"].metric if metric == "tweedie-nloglik" else metric
            )
        return found._replace(metric=found.metric.format(**self.params.model_dump()))


def _metrics_of(objective: str) -> list[str]:
    """Those that the library computes from the outputs of a built-in objective, and that mean something there."""
    of_classes = ("mlogloss", "merror")
    if objective == "multi:softprob":
        return list(of_classes)
    of_shares = () if objective.endswith(":logistic") else ("logloss", "error")
    of_quantiles = () if objective == "reg:quantileerror" else ("quantile",)
    return [metric for metric in METRICS if metric not in (*of_classes, *of_shares, *of_quantiles)]


def resolve(config: RunConfig, model: Any = None) -> Recipe:
    """The recipe of a run: of the estimator `model`, of that which `config.model.type` imports, or of the config's options.

    Raises:
        ModelError: it cannot be followed.
    """
    if model is None and ":" in config.model.type:
        model = imported(config)
    if model is not None:
        return _from_estimator(model)
    return _with_functions(XgboostParams.model_validate(dict(config.model.params)))


def _with_functions(params: XgboostParams) -> Recipe:
    return Recipe(params, _function(params.objective), _function(params.metric))


def _function(path: str | None) -> Any:
    if path is None or ":" not in path or path in OBJECTIVES:
        return None
    found = import_path(path)
    if not callable(found) or isinstance(found, type):
        raise ModelError(f"{path!r} is a {type(found).__name__}; a function is needed")
    return found


def _from_estimator(model: Any) -> Recipe:
    library = xgboost()
    name = type(model).__name__
    tasks: Mapping[type, Task] = {library.XGBClassifier: "classification", library.XGBRegressor: "regression"}
    task = task_of(model, tasks, "xgboost")
    given = {
        key: value for key, value in model.get_params().items() if value is not None and key not in _NEUTRAL
    }
    for key, instead in _ELSEWHERE.items():
        if key in given:
            raise ModelError(f"{name}({key}=...) has no place in a run: {instead}")
    unused = [
        f"{key} ({instead} decides)" for key, instead in _UNUSED.items() if given.pop(key, None) is not None
    ]
    missing = given.pop("missing", math.nan)
    if not (isinstance(missing, float) and math.isnan(missing)):
        raise ModelError(
            f"{name}(missing={missing!r}): missing values are NaN in all frameworks; mark them so in the data"
        )
    return replace(_recipe(model, given, task), unused=unused)


def _recipe(model: Any, given: dict[str, Any], task: Task) -> Recipe:
    """`given` are the options of the estimator that are set, and that a run leaves to it."""
    objective, metric = given.pop("objective", None), given.pop("eval_metric", None)
    if model.n_estimators is not None or model.get_num_boosting_rounds() == 1:
        given["n_estimators"] = model.get_num_boosting_rounds()
    if (trees := model.get_xgb_params().get("num_parallel_tree")) is not None:
        given["num_parallel_tree"] = trees  # that of a random forest, whose n_estimators it is
    if (
        isinstance(objective, str) and objective != type(model)().objective
    ):  # the usual one is chosen by the data
        given["objective"] = objective
    if isinstance(metric, Sequence) and not isinstance(metric, str):
        raise ModelError(
            f"eval_metric={metric!r}: one is reported as the loss; list the others as evaluation.metrics"
        )
    if isinstance(metric, str):
        given["metric"] = metric
    params = validated(XgboostParams, type(model).__name__, given)
    return Recipe(params, _of_targets(objective), _named(metric), task)


def _of_targets(objective: Any) -> Gradients | None:
    """An estimator's objective gets the targets first; a booster's the margins, and the matrix with the targets."""
    if not callable(objective):
        return None
    return lambda margins, matrix: objective(matrix.get_label(), margins)


def _named(metric: Any) -> Metric | None:
    if not callable(metric):
        return None
    return lambda predictions, matrix: ("metric", float(metric(matrix.get_label(), predictions)))
