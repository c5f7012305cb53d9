"""The definition of a model, read from a config's options or from an XGBoost estimator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trainwright.config.schema import RunConfig
from trainwright.errors import ModelError
from trainwright.frameworks.boosting import estimators
from trainwright.frameworks.boosting.estimators import (
    ModelSpec,
    booster_objective,
    task_of,
    translated_options,
    validated,
)
from trainwright.frameworks.xgboost.library import xgboost
from trainwright.frameworks.xgboost.params import METRICS, OBJECTIVES, Objective, XgboostParams
from trainwright.frameworks.xgboost.spellings import SPELLINGS
from trainwright.frameworks.xgboost.targets import targets_of
from trainwright.require import import_path, kind_of
from trainwright.types import DataInfo

# Of XGBoost's: the objective is called with (margins, matrix) and returns first and second derivatives, the
# metric with (predictions, matrix) and returns a name and the mean over the rows.
XgboostSpec = ModelSpec[XgboostParams]

# Objectives and metrics of values that depend on differences of outputs and targets alone.
_OF_DIFFERENCES = ("reg:squarederror", "reg:pseudohubererror", "reg:absoluteerror", "reg:quantileerror")
_METRICS_OF_DIFFERENCES = (None, "rmse", "mae", "mphe", "quantile")


def built_in_objective(params: XgboostParams, info: DataInfo) -> str:
    """Return the built-in objective, which turns margins into outputs.

    It also gives the gradients, unless there is a custom one.

    Raises:
        ModelError: The objective does not fit the targets.
    """
    targets = targets_of(info)
    default = targets.objectives[0]
    objective = params.objective if params.objective in OBJECTIVES else default
    assert objective is not None
    if objective not in targets.objectives:
        raise ModelError(
            f"objective {objective} does not fit targets of {targets}: leave it out, or set {default}"
        )
    if objective == "reg:quantileerror" and info.outputs > 1:
        raise ModelError(
            f"objective {objective} takes one target, the data has {info.outputs}; set another objective"
        )
    return objective


def reported_loss(spec: XgboostSpec, info: DataInfo) -> Objective:
    """Return the built-in metric that is reported as the loss, with its power.

    Raises:
        ModelError: The metric does not fit the objective's outputs.
    """
    objective, metric = built_in_objective(spec.params, info), spec.params.metric
    loss = OBJECTIVES[objective]
    if spec.metric is None and metric is not None:
        if metric.split("@")[0] not in (allowed := _metrics_of(objective)):
            raise ModelError(
                f"metric {metric} does not fit objective {objective}; allowed: {', '.join(allowed)}"
            )
        loss = Objective(
            info.task, OBJECTIVES["reg:tweedie"].metric if metric == "tweedie-nloglik" else metric
        )
    return loss._replace(metric=loss.metric.format(**spec.params.model_dump()))


def _metrics_of(objective: str) -> list[str]:
    """Return the metrics that are meaningful for the outputs of a built-in objective."""
    multiclass = ("mlogloss", "merror")
    if objective == "multi:softprob":
        return list(multiclass)
    probability = () if objective.endswith(":logistic") else ("logloss", "error")
    quantile = () if objective == "reg:quantileerror" else ("quantile",)
    return [metric for metric in METRICS if metric not in (*multiclass, *probability, *quantile)]


def model_spec(config: RunConfig, model: Any = None) -> XgboostSpec:
    """Return the spec of a run's model; see `estimators.model_spec`."""
    return estimators.model_spec(config, model, XgboostParams, _of_estimator, _custom)


def learns_differences(spec: XgboostSpec, config: RunConfig) -> bool:
    """Return whether objective and metric are of differences, and nothing begins from values themselves."""
    params = spec.params
    begins = params.base_score is not None or config.model.init_from is not None
    of_differences = params.objective in (None, *_OF_DIFFERENCES) and params.metric in _METRICS_OF_DIFFERENCES
    return of_differences and not begins and spec.objective is None and spec.metric is None


def _custom(option: str, path: str | None) -> Any:
    if path is None or ":" not in path or path in OBJECTIVES:
        return None
    function = import_path(path)
    if not callable(function) or isinstance(function, type):
        raise ModelError(f"{path!r} is not a function but {kind_of(function)}; give a function")
    return booster_objective(function) if option == "objective" else function


def _of_estimator(model: Any) -> XgboostSpec:
    library, name = xgboost(), type(model).__name__
    task = task_of(model, library.XGBClassifier, library.XGBRegressor, "xgboost")
    options = translated_options(name, model.get_params(), SPELLINGS)
    objective, metric = options.pop("objective", None), options.pop("metric", None)
    if model.get_num_boosting_rounds() == 1:  # of a random forest, whose n_estimators are trees of a round
        options["n_estimators"] = 1
    if (trees := model.get_xgb_params().get("num_parallel_tree")) is not None:
        options["num_parallel_tree"] = trees  # set for a random forest: its n_estimators
    # The class's default objective is left out: the data decides.
    if isinstance(objective, str) and objective != type(model)().objective:
        options["objective"] = objective
    if isinstance(metric, Sequence) and not isinstance(metric, str):
        raise ModelError(
            f"eval_metric={metric!r}: only one is reported as the loss; list the others in evaluation.metrics"
        )
    if isinstance(metric, str):
        options["metric"] = metric
    params = validated(XgboostParams, name, options)
    objective = booster_objective(objective, of_estimator=True)
    return ModelSpec(params, objective, _booster_metric(metric), task)


def _booster_metric(metric: Any) -> Any:
    """Convert an estimator's metric (targets, predictions) to a booster's (predictions, matrix)."""
    if not callable(metric):
        return None
    return lambda predictions, matrix: ("metric", float(metric(matrix.get_label(), predictions)))
