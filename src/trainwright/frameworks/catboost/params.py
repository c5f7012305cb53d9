"""The options of CatBoost models, from a config or an estimator; imported without catboost."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from trainwright.config.fields import Section
from trainwright.config.schema import RunConfig
from trainwright.errors import ModelError
from trainwright.frameworks.boosting import estimators
from trainwright.frameworks.boosting.estimators import (
    ModelSpec,
    import_custom,
    task_of,
    translated_options,
    validated,
)
from trainwright.frameworks.catboost.spellings import SPELLINGS
from trainwright.require import require
from trainwright.tasks.support.class_weights import of_classes
from trainwright.types import DataInfo

Share = Annotated[float, Field(gt=0, le=1)]
Direction = Annotated[int, Field(ge=-1, le=1)]


class CatboostParams(Section):
    """Options of CatBoost's boosted trees (Prokhorenkova et al., 2018); null is CatBoost's default."""

    n_estimators: int | None = Field(
        None, gt=0, description="boosting rounds, each a step; default: training.max_steps or training.epochs"
    )
    learning_rate: float = Field(0.1, gt=0, description="factor on each tree's contribution; constant")
    objective: str | None = Field(
        None,
        description="Logloss, MultiClass, MultiClassOneVsAll, RMSE, MultiRMSE, MAE, Quantile:alpha=0.5, "
        "Huber:delta=1, MAPE, Poisson, Tweedie:variance_power=1.5 ..., or package.module:Class as CatBoost "
        "takes it; default: by the task; the loss is the cross entropy, the error of MAE, Quantile and MAPE, "
        "else the squared error",
    )
    metric: str | None = Field(
        None,
        description="reported as the loss, so lower must be better: package.module:Class, as CatBoost takes "
        "it (eval_metric); default: by the objective; others go in evaluation.metrics",
    )
    max_depth: int = Field(6, gt=0, le=16, description="maximum depth of a tree")
    grow_policy: Literal["SymmetricTree", "Depthwise", "Lossguide"] = Field(
        "SymmetricTree", description="how a tree is grown"
    )
    min_child_samples: int | None = Field(
        None, gt=0, description="Depthwise and Lossguide: minimum number of rows in a leaf"
    )
    max_leaves: int | None = Field(
        None, gt=1, le=64, description="Lossguide: maximum number of leaves of a tree"
    )
    reg_lambda: float = Field(3.0, ge=0, description="L2 penalty on leaf values")
    random_strength: float = Field(1.0, ge=0, description="amount of noise on the scores of splits")
    bootstrap_type: Literal["Bayesian", "Bernoulli", "MVS", "No"] | None = Field(
        None, description="how rows are sampled"
    )
    subsample: Share | None = Field(None, description="Bernoulli and MVS: fraction of the rows drawn")
    bagging_temperature: float | None = Field(
        None, ge=0, description="Bayesian: spread of the weights; 0: none"
    )
    sampling_frequency: Literal["PerTree", "PerTreeLevel"] | None = Field(
        None, description="whether rows are sampled for each tree or each level"
    )
    colsample_bylevel: Share = Field(1.0, description="fraction of the features drawn for each split")
    max_bin: int = Field(
        254, gt=0, le=65535, description="maximum number of borders between bins of a feature"
    )
    nan_mode: Literal["Min", "Max", "Forbidden"] = Field(
        "Min", description="whether missing numbers are lowest, highest or an error"
    )
    boosting_type: Literal["Ordered", "Plain"] | None = Field(
        None, description="Ordered: compute residuals on permutations, against overfitting on small data"
    )
    boost_from_average: bool | None = Field(None, description="start from the mean of the targets")
    leaf_estimation_method: Literal["Newton", "Gradient", "Exact"] | None = Field(
        None, description="how leaf values are computed"
    )
    leaf_estimation_iterations: int | None = Field(
        None, gt=0, description="iterations of Newton or Gradient for leaf values"
    )
    score_function: Literal["Cosine", "L2", "NewtonCosine", "NewtonL2"] | None = Field(
        None, description="criterion that selects splits"
    )
    one_hot_max_size: int | None = Field(
        None, gt=0, description="a feature with at most this many categories is split one against the rest"
    )
    max_ctr_complexity: int | None = Field(None, gt=0, description="maximum number of categories combined")
    model_size_reg: float | None = Field(None, ge=0, description="penalty on the size of category statistics")
    auto_class_weights: Literal["Balanced", "SqrtBalanced"] | None = Field(
        None, description="weight classes by their frequency, or its square root, inversely"
    )
    scale_pos_weight: float | None = Field(None, gt=0, description="weight of the second class of two")
    monotone_constraints: list[Direction] | dict[str, Direction] | None = Field(
        None, description="1, -1 or 0 for each feature, in order or by name"
    )
    class_weights: list[float] | dict[str, float] | None = Field(
        None, description="weights of the classes, by label or in the sorted order of their labels"
    )
    mvs_reg: float | None = Field(None, ge=0, description="MVS: regularization of the probabilities")
    random_score_type: Literal["NormalWithModelSizeDecrease", "Gumbel"] | None = Field(
        None, description="distribution of the noise on scores"
    )
    fold_permutation_block: int | None = Field(None, gt=0, description="rows that are permuted together")
    fold_len_multiplier: float | None = Field(None, gt=1, description="Ordered: growth of the folds")
    approx_on_full_history: bool | None = Field(
        None, description="Ordered: approximate on all earlier rows instead of a fold's"
    )
    leaf_estimation_backtracking: Literal["No", "AnyImprovement", "Armijo"] | None = Field(
        None, description="how steps of the leaf estimation are shortened"
    )
    counter_calc_method: Literal["SkipTest", "Full"] | None = Field(
        None, description="rows that statistics of the type Counter are computed on"
    )
    ctr_leaf_count_limit: int | None = Field(None, gt=0, description="maximum number of category values kept")
    store_all_simple_ctr: bool | None = Field(
        None, description="whether ctr_leaf_count_limit leaves out statistics of single features"
    )
    simple_ctr: str | list[str] | None = Field(None, description="statistics of single category features")
    combinations_ctr: str | list[str] | None = Field(None, description="statistics of combinations")
    per_feature_ctr: str | list[str] | None = Field(None, description="statistics of named features")
    ctr_target_border_count: int | None = Field(
        None, gt=0, le=255, description="number of borders of the target for category statistics"
    )
    ctr_history_unit: Literal["Group", "Sample"] | None = Field(
        None, description="whether category statistics look back over rows or groups"
    )
    final_ctr_computation_mode: Literal["Default", "Skip"] | None = Field(
        None, description="Skip: the model keeps no category statistics"
    )
    feature_weights: list[float] | dict[str, float] | str | None = Field(
        None, description="factors on the gain of splits, by feature"
    )
    penalties_coefficient: float | None = Field(None, ge=0, description="factor on all penalties")
    first_feature_use_penalties: list[float] | dict[str, float] | str | None = Field(
        None, description="penalties on the first use of a feature in the model"
    )
    per_object_feature_penalties: list[float] | dict[str, float] | str | None = Field(
        None, description="penalties on the first use of a feature for a row"
    )
    model_shrink_rate: float | None = Field(None, ge=0, description="how much each round shrinks the model")
    model_shrink_mode: Literal["Constant", "Decreasing"] | None = Field(
        None, description="whether the shrinking stays constant"
    )
    langevin: bool | None = Field(None, description="stochastic gradient Langevin boosting")
    diffusion_temperature: float | None = Field(None, ge=0, description="temperature of Langevin boosting")
    posterior_sampling: bool | None = Field(
        None, description="use the settings of Langevin boosting for uncertainty"
    )
    sparse_features_conflict_fraction: float | None = Field(
        None, ge=0, le=1, description="share of rows in which bundled features may conflict"
    )
    dev_score_calc_obj_block_size: int | None = Field(None, gt=0, description="CatBoost's own tuning")
    dev_efb_max_buckets: int | None = Field(None, gt=0, description="CatBoost's own tuning")
    used_ram_limit: int | str | None = Field(None, description="memory for category statistics: 4gb")
    fixed_binary_splits: list[int] | None = Field(None, description="features split first, by number")
    gpu_cat_features_storage: Literal["CpuPinnedMemory", "GpuRam"] | None = Field(
        None, description="CUDA: where category features are stored"
    )
    data_partition: Literal["FeatureParallel", "DocParallel"] | None = Field(
        None, description="CUDA: how work is divided"
    )
    has_time: bool = Field(False, description="rows are in the order of time: use no random permutations")


# Our name -> CatBoost's.
_RENAMED = {
    "max_depth": "depth",
    "min_child_samples": "min_data_in_leaf",
    "reg_lambda": "l2_leaf_reg",
    "colsample_bylevel": "rsm",
}
# Objectives of values that depend on differences of outputs and targets alone.
_OF_DIFFERENCES = ("RMSE", "MAE", "Quantile", "Expectile", "Huber", "LogCosh", "Lq", "MultiRMSE")
_ROUNDS = 1000  # CatBoost's default for an estimator


CatboostSpec = ModelSpec[
    CatboostParams
]  # objective and metric are objects of the user's, as CatBoost takes them


def changes_trees(params: CatboostParams) -> bool:
    """Return whether a round changes earlier trees, as CatBoost shrinks them."""
    shrinks = params.model_shrink_rate or params.langevin or params.posterior_sampling
    return bool(params.monotone_constraints or shrinks)


def learning_rate_of(spec: CatboostSpec) -> float | None:
    """Return the learning rate; None where an estimator leaves it to CatBoost, which chooses by the data."""
    params = spec.params
    is_set = spec.task is None or "learning_rate" in params.model_fields_set
    return params.learning_rate if is_set else None


def catboost_params(spec: CatboostSpec, info: DataInfo) -> dict[str, Any]:
    """Return the options under CatBoost's names, except rounds, objective, metric and those of the pool.

    What an estimator does not set is left to CatBoost: it chooses the learning rate only if some others,
    such as `l2_leaf_reg`, are not set either.

    Raises:
        InputError: The data do not have a class that a weight is given for.
    """
    params = spec.params
    options = params.model_dump(
        exclude_none=True,
        exclude_unset=spec.task is not None,
        exclude={"n_estimators", "objective", "metric", "max_bin", "nan_mode"},
    )
    if isinstance(weights := params.class_weights, dict):  # CatBoost is given the indices of classes
        options["class_weights"] = of_classes(weights, info, "model.class_weights").tolist()
    return {_RENAMED.get(name, name): value for name, value in options.items()}


def model_spec(config: RunConfig, model: Any = None) -> CatboostSpec:
    """Return the spec of a run's model; see `estimators.model_spec`."""
    return estimators.model_spec(config, model, CatboostParams, _of_estimator, _custom)


def learns_differences(spec: CatboostSpec, config: RunConfig) -> bool:  # noqa: ARG001 - it starts from no weights
    """Return whether the objective is of differences, and neither it nor the metric is the user's."""
    params = spec.params
    has_functions = params.metric is not None or spec.objective is not None or spec.metric is not None
    return (params.objective or "RMSE").partition(":")[0] in _OF_DIFFERENCES and not has_functions


def _custom(option: str, path: str | None) -> Any:
    """Return an instance of `package.module:Class`, or None for CatBoost's own (`Quantile:alpha=0.3`)."""
    if path is None or (option == "objective" and (":" not in path or "=" in path)):
        return None
    target = import_custom(option, path, "Class")
    return target() if isinstance(target, type) else target


def _of_estimator(model: Any) -> CatboostSpec:
    library, name = require("catboost", "catboost"), type(model).__name__
    task = task_of(model, library.CatBoostClassifier, library.CatBoostRegressor, "catboost")
    options = translated_options(name, model.get_params(), SPELLINGS)
    options.setdefault("n_estimators", _ROUNDS)
    objects = {
        key: options.pop(key) for key in ("objective", "metric") if not isinstance(options.get(key, ""), str)
    }
    if "metric" in options:
        raise ModelError(f"{name}(eval_metric={options['metric']!r}): list it in evaluation.metrics")
    if options.get("objective") == type(model)().get_params().get("loss_function"):
        options.pop("objective", None)  # the class's default: the data decides
    params = validated(CatboostParams, name, options)
    return ModelSpec(params, objects.get("objective"), objects.get("metric"), task)


def alpha_of(options: str) -> float:
    """Return the quantile in the options of an objective: `alpha=0.9`."""
    parameters = dict(part.split("=", 1) for part in options.split(";") if "=" in part)
    return float(parameters.get("alpha", 0.5))
