"""The options of the model, readable without CatBoost; from a config, or from an estimator of the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from trainyard.config.schema import RunConfig, Section
from trainyard.errors import InputError, ModelError
from trainyard.frameworks.support.estimators import imported, task_of, validated
from trainyard.require import import_path, require
from trainyard.types import Task

Share = Annotated[float, Field(gt=0, le=1)]
Direction = Annotated[int, Field(ge=-1, le=1)]


class CatboostParams(Section):
    """Gradient boosted trees of CatBoost (Prokhorenkova et al., 2018); what is null is CatBoost's to choose."""

    n_estimators: int | None = Field(
        None, gt=0, description="boosting rounds; default: training.max_steps or training.epochs"
    )
    learning_rate: float = Field(0.1, gt=0, description="what a tree counts; it stays")
    objective: str | None = Field(
        None,
        description="Logloss, MultiClass, MultiClassOneVsAll, RMSE, MultiRMSE, MAE, Quantile:alpha=0.5, Huber:delta=1, MAPE, "
        "Poisson, Tweedie:variance_power=1.5 ..., or package.module:Class as CatBoost takes it; default: by the task; the "
        "loss is the cross entropy, the error of MAE, Quantile and MAPE, else the squared error",
    )
    metric: str | None = Field(
        None,
        description="package.module:Class as CatBoost takes it (eval_metric), reported as the loss: less must be better; "
        "default: by the objective; other metrics are listed as evaluation.metrics",
    )
    max_depth: int = Field(6, gt=0, le=16)
    grow_policy: Literal["SymmetricTree", "Depthwise", "Lossguide"] = Field(
        "SymmetricTree", description="how a tree grows"
    )
    min_child_samples: int | None = Field(
        None, gt=0, description="rows in a leaf, of trees that are not symmetric"
    )
    max_leaves: int | None = Field(None, gt=1, le=64, description="of a tree that grows Lossguide")
    reg_lambda: float = Field(3.0, ge=0, description="L2 on the leaves")
    random_strength: float = Field(1.0, ge=0, description="noise on the scores of splits")
    bootstrap_type: Literal["Bayesian", "Bernoulli", "MVS", "No"] | None = Field(
        None, description="how rows are drawn"
    )
    subsample: Share | None = Field(None, description="share of the rows, with Bernoulli and MVS")
    bagging_temperature: float | None = Field(None, ge=0, description="Bayesian: 0 is no sampling")
    sampling_frequency: Literal["PerTree", "PerTreeLevel"] | None = None
    colsample_bylevel: Share = Field(1.0, description="share of the features that a split sees")
    max_bin: int = Field(254, gt=0, le=65535, description="borders between the values of a feature")
    nan_mode: Literal["Min", "Max", "Forbidden"] = Field("Min", description="what a missing number counts as")
    boosting_type: Literal["Ordered", "Plain"] | None = None
    boost_from_average: bool | None = Field(None, description="begin with the targets' mean")
    leaf_estimation_method: Literal["Newton", "Gradient", "Exact"] | None = None
    leaf_estimation_iterations: int | None = Field(None, gt=0)
    score_function: Literal["Cosine", "L2", "NewtonCosine", "NewtonL2"] | None = Field(
        None, description="of a split"
    )
    one_hot_max_size: int | None = Field(
        None, gt=0, description="up to so many categories are split one against the rest"
    )
    max_ctr_complexity: int | None = Field(None, gt=0, description="categories that are combined")
    model_size_reg: float | None = Field(None, ge=0, description="penalty on statistics of categories")
    auto_class_weights: Literal["Balanced", "SqrtBalanced"] | None = Field(
        None, description="weigh rare classes up"
    )
    scale_pos_weight: float | None = Field(None, gt=0, description="weight of the second of two classes")
    monotone_constraints: list[Direction] | dict[str, Direction] | None = Field(
        None, description="1, -1 or 0 for each feature, in order or by name"
    )
    has_time: bool = Field(False, description="the rows stand in the order of time: no permutations")


_RENAMED = {
    "max_depth": "depth",
    "min_child_samples": "min_data_in_leaf",
    "reg_lambda": "l2_leaf_reg",
    "colsample_bylevel": "rsm",
}
# Of several names that an estimator has for an option, ours.
_SYNONYMS = {
    "iterations": "n_estimators",
    "num_boost_round": "n_estimators",
    "num_trees": "n_estimators",
    "eta": "learning_rate",
    "depth": "max_depth",
    "l2_leaf_reg": "reg_lambda",
    "rsm": "colsample_bylevel",
    "border_count": "max_bin",
    "loss_function": "objective",
    "eval_metric": "metric",
    "min_data_in_leaf": "min_child_samples",
    "num_leaves": "max_leaves",
    "random_seed": "random_state",
}
_UNUSED = {
    "random_state": "experiment.seed",
    "thread_count": "training.threads",
    "task_type": "training.device",
    "devices": "training.device",
}
_ROUNDS = 1000  # of an estimator that says nothing of them
_NEUTRAL = {
    "verbose",
    "silent",
    "logging_level",
    "verbose_eval",
    "metric_period",
    "train_dir",
    "allow_writing_files",
    "name",
}


@dataclass(frozen=True)
class Asked:
    """Options, and objects of the user's; `task` is what an estimator is for, `unused` its options that the run decides."""

    params: CatboostParams
    objective: Any = None
    metric: Any = None
    task: Task | None = None
    unused: Sequence[str] = ()


def native(params: CatboostParams) -> dict[str, Any]:
    """The options as CatBoost calls them, but for the objective."""
    given = params.model_dump(
        exclude_none=True, exclude={"n_estimators", "objective", "metric", "max_bin", "nan_mode"}
    )
    return {_RENAMED.get(name, name): value for name, value in given.items()}


def asked(config: RunConfig, model: Any = None) -> Asked:
    """What is asked for: by the estimator `model`, by that which `config.model.type` imports, or by the config's options.

    Raises:
        ModelError: it cannot be followed.
    """
    if model is None and ":" in config.model.type:
        model = imported(config)
    if model is not None:
        return _of_estimator(model)
    params = CatboostParams.model_validate(dict(config.model.params))
    return Asked(params, _object("objective", params.objective), _object("metric", params.metric))


def _object(option: str, path: str | None) -> Any:
    """What `package.module:Class` names, made; None where the objective is one of CatBoost's own (`Quantile:alpha=0.3`)."""
    if path is None or (option == "objective" and (":" not in path or "=" in path)):
        return None
    if ":" not in path:
        raise ModelError(
            f"model.params.{option}: {path} is no package.module:Class; list metrics in evaluation.metrics"
        )
    try:
        found = import_path(path)
    except InputError as error:
        raise ModelError(f"model.params.{option}: {error}") from error
    return found() if isinstance(found, type) else found


def _of_estimator(model: Any) -> Asked:
    library, name = require("catboost", "catboost"), type(model).__name__
    tasks: Mapping[type, Task] = {
        library.CatBoostClassifier: "classification",
        library.CatBoostRegressor: "regression",
    }
    task = task_of(model, tasks, "catboost")
    set_here = {
        key: value for key, value in model.get_params().items() if value is not None and key not in _NEUTRAL
    }
    given = {_SYNONYMS.get(key, key): value for key, value in set_here.items()}
    unused = [
        f"{key} ({instead} decides)" for key, instead in _UNUSED.items() if given.pop(key, None) is not None
    ]
    given.setdefault("n_estimators", _ROUNDS)
    objects = {
        key: given.pop(key) for key in ("objective", "metric") if not isinstance(given.get(key, ""), str)
    }
    if "metric" in given:
        raise ModelError(
            f"{name}(eval_metric={given['metric']!r}): list it in evaluation.metrics; the objective is the loss"
        )
    if given.get("objective") == type(model)().get_params().get("loss_function"):
        given.pop("objective", None)  # the usual one is chosen by the data
    return Asked(
        validated(CatboostParams, name, given), objects.get("objective"), objects.get("metric"), task, unused
    )
