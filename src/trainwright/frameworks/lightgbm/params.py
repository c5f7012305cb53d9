"""The options of LightGBM models, imported without lightgbm, and their translation to LightGBM's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from trainwright.config.fields import Section
from trainwright.config.schema import RunConfig
from trainwright.errors import ModelError

Share = Annotated[float, Field(gt=0, le=1)]
Direction = Annotated[int, Field(ge=-1, le=1)]


class LightgbmParams(Section):
    """Options of LightGBM's boosted trees (Ke et al., 2017), named as in its scikit-learn interface."""

    n_estimators: int | None = Field(
        None, gt=0, description="boosting rounds, each a step; default: training.max_steps or training.epochs"
    )
    learning_rate: float = Field(
        0.1, gt=0, description="factor on each tree's contribution; training.scheduler varies it"
    )
    objective: str | None = Field(
        None,
        description="binary, multiclass, multiclassova, regression, regression_l1, huber, fair, quantile, "
        "mape, poisson, gamma, tweedie, or package.module:function(raw scores, dataset) -> "
        "gradients, hessians, as `lightgbm.train` takes it; default: by the task",
    )
    metric: str | None = Field(
        None,
        description="reported as the loss, so lower must be better: package.module:function, as "
        "`lightgbm.train` takes it (feval); default: by the objective; others go in evaluation.metrics",
    )
    boosting: Literal["gbdt", "dart", "rf"] = Field(
        "gbdt",
        description="gradient boosting, dart or random forest; a resume of dart and rf replays their rounds",
    )
    num_leaves: int = Field(31, gt=1, le=131072, description="maximum number of leaves of a tree")
    max_depth: int = Field(-1, description="maximum depth of a tree; 0 or less: no limit")
    min_child_samples: int = Field(20, ge=0, description="minimum number of rows in a leaf")
    min_child_weight: float = Field(1e-3, ge=0, description="minimum sum of the hessian in a leaf")
    min_split_gain: float = Field(0.0, ge=0, description="minimum gain of a split")
    reg_alpha: float = Field(0.0, ge=0, description="L1 penalty on leaf values")
    reg_lambda: float = Field(0.0, ge=0, description="L2 penalty on leaf values")
    max_delta_step: float = Field(0.0, description="maximum leaf value; 0 or less: no limit")
    path_smooth: float = Field(
        0.0, ge=0, description="smoothing of the values of small leaves toward their parents"
    )
    subsample: Share = Field(
        1.0, description="fraction of the rows drawn (bagging); has no effect while subsample_freq is 0"
    )
    subsample_freq: int = Field(
        0,
        ge=0,
        description="rounds for which drawn rows are kept; 0, as in LightGBM: none are drawn",
    )
    colsample_bytree: Share = Field(1.0, description="fraction of the features drawn for each tree")
    colsample_bynode: Share = Field(1.0, description="fraction of the features drawn for each split")
    extra_trees: bool = Field(False, description="try one random threshold per feature in a split")
    data_sample_strategy: Literal["bagging", "goss"] = Field(
        "bagging", description="goss: rows with large gradients, and a sample of the others"
    )
    top_rate: Share = Field(0.2, description="goss: fraction of rows kept for their large gradients")
    other_rate: Share = Field(0.1, description="goss: fraction of rows drawn from the others")
    max_bin: int = Field(255, gt=1, le=65535, description="maximum number of bins of a feature")
    min_data_in_bin: int = Field(3, gt=0, description="minimum number of rows in a bin")
    subsample_for_bin: int = Field(200_000, gt=0, description="rows from which the bins are computed")
    class_weight: Literal["balanced"] | dict[str, float] | None = Field(
        None, description="weights of the classes by label; balanced: give all the same total weight"
    )
    is_unbalance: bool = Field(False, description="binary: give both classes the same total weight")
    scale_pos_weight: float = Field(1.0, gt=0, description="binary: weight of the second class")
    boost_from_average: bool = Field(True, description="start from the mean of the targets")
    monotone_constraints: list[Direction] | dict[str, Direction] | None = Field(
        None, description="1, -1 or 0 for each feature, in order or by name"
    )
    monotone_constraints_method: Literal["basic", "intermediate", "advanced"] = Field(
        "basic", description="how strictly the constraints limit splits: basic is fastest, advanced fits best"
    )
    interaction_constraints: list[list[int]] | None = Field(
        None, description="groups of features, by number; only those of one group share a branch"
    )
    cat_smooth: float = Field(10.0, ge=0, description="smoothing of the statistics of rare categories")
    cat_l2: float = Field(10.0, ge=0, description="L2 penalty in categorical splits")
    max_cat_threshold: int = Field(
        32, gt=0, description="maximum number of categories on the smaller side of a split"
    )
    max_cat_to_onehot: int = Field(
        4, gt=0, description="a feature with at most this many categories is split one against the rest"
    )
    min_data_per_group: int = Field(100, gt=0, description="minimum number of rows per categorical group")
    alpha: float = Field(0.9, gt=0, description="threshold of huber, or the quantile")
    fair_c: float = Field(1.0, gt=0, description="parameter c of the fair loss")
    poisson_max_delta_step: float = Field(0.7, gt=0, description="poisson: safeguard of the optimization")
    tweedie_variance_power: float = Field(1.5, ge=1, lt=2, description="tweedie: power of the variance")
    drop_rate: float = Field(0.1, ge=0, le=1, description="dart: fraction of the trees dropped in a round")
    max_drop: int = Field(50, description="dart: maximum number of dropped trees; 0 or less: no limit")
    skip_drop: float = Field(0.5, ge=0, le=1, description="dart: probability that a round drops no tree")
    uniform_drop: bool = Field(False, description="dart: draw trees uniformly instead of by weight")
    xgboost_dart_mode: bool = Field(False, description="dart: normalize weights as XGBoost does")
    monotone_penalty: float | None = Field(
        None, ge=0, description="penalty on monotone splits near the root, where they limit all below"
    )
    feature_contri: list[float] | None = Field(
        None, description="a factor on the gain of splits for each feature, in order"
    )
    cegb_tradeoff: float | None = Field(None, ge=0, description="factor on the penalties cegb_...")
    cegb_penalty_split: float | None = Field(None, ge=0, description="penalty on each split")
    max_bin_by_feature: list[int] | None = Field(
        None, description="maximum number of bins of each feature, in order"
    )
    use_missing: bool | None = Field(None, description="false: missing values are zeros")
    zero_as_missing: bool | None = Field(None, description="treat zeros as missing values")
    enable_bundle: bool | None = Field(None, description="bundle features that exclude each other")
    is_enable_sparse: bool | None = Field(None, description="store sparse features as such")
    feature_pre_filter: bool | None = Field(None, description="leave out features that cannot be split")
    histogram_pool_size: float | None = Field(None, description="memory for histograms, in MB")
    gpu_use_dp: bool | None = Field(None, description="gpu: sums in double precision")
    device_type: Literal["cpu", "gpu", "cuda"] | None = Field(
        None, description="gpu: OpenCL; default: cuda if training.device says so, else cpu"
    )


# Our name -> LightGBM's. Other options have the same name in both, or are translated separately.
_RENAMED = {
    "min_child_samples": "min_data_in_leaf",
    "min_child_weight": "min_sum_hessian_in_leaf",
    "min_split_gain": "min_gain_to_split",
    "reg_alpha": "lambda_l1",
    "reg_lambda": "lambda_l2",
    "subsample": "bagging_fraction",
    "subsample_freq": "bagging_freq",
    "colsample_bytree": "feature_fraction",
    "colsample_bynode": "feature_fraction_bynode",
    "subsample_for_bin": "bin_construct_sample_cnt",
}
_NOT_PASSED = {"n_estimators", "objective", "metric", "class_weight", "device_type", "monotone_constraints"}


def library_params(params: LightgbmParams) -> dict[str, Any]:
    """Return the options under LightGBM's names, except objective, device and `monotone_signs`.

    Raises:
        ModelError: Options exclude each other.
    """
    _check(params)
    options = params.model_dump(exclude_none=True, exclude=_NOT_PASSED)
    return {_RENAMED.get(name, name): value for name, value in options.items()}


def monotone_signs(params: LightgbmParams, names: Sequence[str]) -> dict[str, list[int]]:
    """Return `monotone_constraints` as a list with one sign per feature, or nothing if there are none.

    Raises:
        ModelError: A feature does not exist, or the number of signs differs from that of the features.
    """
    constraints = params.monotone_constraints
    return {} if constraints is None else {"monotone_constraints": _signs(constraints, names)}


def device_of(config: RunConfig, params: LightgbmParams) -> str:
    """Return `cpu`, `gpu` or `cuda`, with `:NUMBER` if one is set; `auto` is the CPU, which is exact."""
    requested, _, number = config.training.device.partition(":")
    device = params.device_type or ("cuda" if requested == "cuda" else "cpu")
    return f"{device}:{number}" if number and device != "cpu" else device


def _check(params: LightgbmParams) -> None:
    if params.data_sample_strategy == "goss":
        if params.subsample < 1:
            raise ModelError(
                "model.params: goss draws the rows itself; leave subsample at 1, or leave goss out"
            )
        if params.boosting == "rf":
            raise ModelError(
                "model.params: goss cannot be combined with boosting: rf; use data_sample_strategy: bagging"
            )
        if params.top_rate + params.other_rate > 1:
            total = params.top_rate + params.other_rate
            raise ModelError(f"model.params: top_rate + other_rate must be at most 1, not {total:g}")
    samples = (params.subsample < 1 and params.subsample_freq > 0) or params.colsample_bytree < 1
    if params.boosting == "rf" and not samples:
        raise ModelError(
            "model.params: boosting: rf needs colsample_bytree below 1, or subsample below 1 with "
            "subsample_freq: 1; else all trees would be equal"
        )
    if params.is_unbalance and params.scale_pos_weight != 1:
        raise ModelError(
            "model.params: is_unbalance and scale_pos_weight exclude each other; set one of them"
        )


def _signs(constraints: list[int] | dict[str, int], names: Sequence[str]) -> list[int]:
    if isinstance(constraints, dict):
        if unknown := [name for name in constraints if name not in names]:
            known = ", ".join(names[:12])
            raise ModelError(
                f"model.params.monotone_constraints: there is no feature {unknown[0]!r}; allowed: {known}"
            )
        return [constraints.get(name, 0) for name in names]
    if len(constraints) != len(names):
        raise ModelError(
            f"monotone_constraints has {len(constraints)} entries for {len(names)} features; use names"
        )
    return constraints
