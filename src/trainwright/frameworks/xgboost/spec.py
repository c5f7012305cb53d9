"""The definition of a model, read from a config's options or from an XGBoost estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainwright.config.schema import RunConfig
from trainwright.errors import ModelError
from trainwright.frameworks.support.estimators import (
    estimator_of,
    takes_targets_first,
    task_of,
    translated_options,
    validated,
)
from trainwright.frameworks.xgboost.library import xgboost
from trainwright.frameworks.xgboost.params import METRICS, OBJECTIVES, Objective, XgboostParams
from trainwright.frameworks.xgboost.spellings import SPELLINGS
from trainwright.frameworks.xgboost.targets import targets_of
from trainwright.require import import_path, kind_of
from trainwright.types import Array, DataInfo

Gradients = Callable[[Array, Any], tuple[Array, Array]]  # (margins, matrix) -> first and second derivatives
Metric = Callable[[Array, Any], tuple[str, float]]  # (predictions, matrix) -> name, mean over the rows

# Objectives and metrics of values that depend on differences of outputs and targets alone.
_OF_DIFFERENCES = ("reg:squarederror", "reg:pseudohubererror", "reg:absoluteerror", "reg:quantileerror")
_METRICS_OF_DIFFERENCES = (None, "rmse", "mae", "mphe", "quantile")


@dataclass(frozen=True)
class ModelSpec:
    """The options of a model, and the user's functions for gradients and metric.

    With custom `gradients`, the built-in objective still turns margins into outputs. `task` is the
    estimator's, or None without one.
    """

    params: XgboostParams
    gradients: Gradients | None = None
    metric: Metric | None = None
    task: str | None = None

    def objective(self, info: DataInfo) -> str:
        """Return the built-in objective, which turns margins into outputs.

        It also gives the gradients, unless there are custom ones.

        Raises:
            ModelError: The objective does not fit the targets.
        """
        targets = targets_of(info)
        default = targets.objectives[0]
        objective = self.params.objective if self.params.objective in OBJECTIVES else default
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

    def loss(self, info: DataInfo) -> Objective:
        """Return the built-in metric that is reported as the loss, with its power.

        Raises:
            ModelError: The metric does not fit the objective's outputs.
        """
        objective, metric = self.objective(info), self.params.metric
        loss = OBJECTIVES[objective]
        if self.metric is None and metric is not None:
            if metric.split("@")[0] not in (allowed := _metrics_of(objective)):
                raise ModelError(
                    f"metric {metric} does not fit objective {objective}; allowed: {', '.join(allowed)}"
                )
            loss = Objective(
                info.task, OBJECTIVES["reg:tweedie"].metric if metric == "tweedie-nloglik" else metric
            )
        return loss._replace(metric=loss.metric.format(**self.params.model_dump()))


def _metrics_of(objective: str) -> list[str]:
    """Return the metrics that are meaningful for the outputs of a built-in objective."""
    multiclass = ("mlogloss", "merror")
    if objective == "multi:softprob":
        return list(multiclass)
    probability = () if objective.endswith(":logistic") else ("logloss", "error")
    quantile = () if objective == "reg:quantileerror" else ("quantile",)
    return [metric for metric in METRICS if metric not in (*multiclass, *probability, *quantile)]


def model_spec(config: RunConfig, model: Any = None) -> ModelSpec:
    """Return the spec of a run's model: of its estimator (see `estimator_of`), or of its options.

    Raises:
        ModelError: An option is wrong, or cannot be used in a run.
    """
    if (estimator := estimator_of(config, model)) is not None:
        return _from_estimator(estimator)
    return _with_functions(XgboostParams.model_validate(dict(config.model.params)))


def learns_differences(config: RunConfig, model: Any = None) -> bool:
    """Return whether a model learns the same of targets to which a constant is added, but for this constant.

    Raises:
        ModelError: An option is wrong.
    """
    by_user = model is not None or ":" in config.model.type
    spec = model_spec(config, model) if by_user else None
    params = XgboostParams.model_validate(dict(config.model.params)) if spec is None else spec.params
    has_functions = spec is not None and (spec.gradients is not None or spec.metric is not None)
    begins = params.base_score is not None or config.model.init_from is not None  # from values themselves
    of_differences = params.objective in (None, *_OF_DIFFERENCES) and params.metric in _METRICS_OF_DIFFERENCES
    return of_differences and not (has_functions or begins)


def _with_functions(params: XgboostParams) -> ModelSpec:
    objective = _function(params.objective)
    if takes_targets_first(objective):
        objective = _booster_objective(objective)
    return ModelSpec(params, objective, _function(params.metric))


def _function(path: str | None) -> Any:
    if path is None or ":" not in path or path in OBJECTIVES:
        return None
    function = import_path(path)
    if not callable(function) or isinstance(function, type):
        raise ModelError(f"{path!r} is not a function but {kind_of(function)}; give a function")
    return function


def _from_estimator(model: Any) -> ModelSpec:
    library = xgboost()
    name = type(model).__name__
    tasks: Mapping[type, str] = {library.XGBClassifier: "classification", library.XGBRegressor: "regression"}
    task = task_of(model, tasks, "xgboost")
    return _spec(model, translated_options(name, model.get_params(), SPELLINGS), task)


def _spec(model: Any, options: dict[str, Any], task: str) -> ModelSpec:
    """Return the spec of an estimator; `options` are those that are set and that apply in a run."""
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
    params = validated(XgboostParams, type(model).__name__, options)
    return ModelSpec(params, _booster_objective(objective), _booster_metric(metric), task)


def _booster_objective(objective: Any) -> Gradients | None:
    """Convert an estimator's objective (targets, margins) to a booster's (margins, matrix)."""
    if not callable(objective):
        return None
    return lambda margins, matrix: objective(matrix.get_label(), margins)


def _booster_metric(metric: Any) -> Metric | None:
    """Convert an estimator's metric (targets, predictions) to a booster's (predictions, matrix)."""
    if not callable(metric):
        return None
    return lambda predictions, matrix: ("metric", float(metric(matrix.get_label(), predictions)))
