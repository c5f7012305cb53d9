"""The options of the model, readable without LightGBM, and what LightGBM calls them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from trainyard.config.schema import Section
from trainyard.errors import ModelError

Share = Annotated[float, Field(gt=0, le=1)]
Direction = Annotated[int, Field(ge=-1, le=1)]


class LightgbmParams(Section):
    """Gradient boosted trees of LightGBM (Ke et al., 2017); the options are called as in its scikit-learn interface."""

    n_estimators: int | None = Field(
        None, gt=0, description="boosting rounds; default: training.max_steps or training.epochs"
    )
    learning_rate: float = Field(0.1, gt=0, description="what a tree counts; training.scheduler varies it")
    objective: str | None = Field(
        None,
        description="binary, multiclass, multiclassova, regression, regression_l1, huber, fair, quantile, mape, poisson, gamma, "
        "tweedie, or package.module:function as `lightgbm.train` takes it, of (raw scores, dataset) to (gradients, hessians); "
        "default: by the task",
    )
    metric: str | None = Field(
        None,
        description="package.module:function as `lightgbm.train` takes it (feval), reported as the loss: less must be better; "
        "default: by the objective; other metrics are listed as evaluation.metrics",
    )
    boosting: Literal["gbdt", "dart", "rf"] = Field(
        "gbdt", description="dart and rf are resumed by making their rounds again"
    )
    num_leaves: int = Field(31, gt=1, le=131072)
    max_depth: int = Field(-1, description="of a tree; 0 or less: any")
    min_child_samples: int = Field(20, ge=0, description="rows in a leaf")
    min_child_weight: float = Field(1e-3, ge=0, description="sum of the hessian in a leaf")
    min_split_gain: float = Field(0.0, ge=0)
    reg_alpha: float = Field(0.0, ge=0, description="L1 on the leaves")
    reg_lambda: float = Field(0.0, ge=0, description="L2 on the leaves")
    max_delta_step: float = Field(0.0, description="limit of a leaf's value; 0 or less: none")
    path_smooth: float = Field(0.0, ge=0, description="pulls small leaves to their parents")
    subsample: Share = Field(1.0, description="share of the rows that a tree sees")
    subsample_freq: int = Field(
        1, ge=0, description="rounds between two draws of rows; 0: all rows, whatever subsample is"
    )
    colsample_bytree: Share = Field(1.0, description="share of the features that a tree sees")
    colsample_bynode: Share = Field(1.0, description="share of the features that a split sees")
    extra_trees: bool = Field(False, description="one random threshold for each feature of a split")
    data_sample_strategy: Literal["bagging", "goss"] = Field(
        "bagging", description="goss: the large gradients, and some others"
    )
    top_rate: Share = Field(0.2, description="goss: share of the rows with the largest gradients")
    other_rate: Share = Field(0.1, description="goss: share of the others")
    max_bin: int = Field(255, gt=1, le=65535, description="values that are told apart in a feature")
    min_data_in_bin: int = Field(3, gt=0)
    subsample_for_bin: int = Field(200_000, gt=0, description="rows from which the bins are made")
    class_weight: Literal["balanced"] | None = Field(
        None, description="balanced: all classes weigh the same together"
    )
    is_unbalance: bool = Field(False, description="binary: weigh the rarer class up to the other")
    scale_pos_weight: float = Field(1.0, gt=0, description="binary: weight of the second class")
    boost_from_average: bool = Field(True, description="begin with the targets' mean")
    monotone_constraints: list[Direction] | dict[str, Direction] | None = Field(
        None, description="1, -1 or 0 for each feature, in order or by name"
    )
    monotone_constraints_method: Literal["basic", "intermediate", "advanced"] = "basic"
    interaction_constraints: list[list[int]] | None = Field(
        None, description="features that may meet in a branch, by position"
    )
    cat_smooth: float = Field(10.0, ge=0, description="pulls small categories together")
    cat_l2: float = Field(10.0, ge=0, description="L2 of splits by categories")
    max_cat_threshold: int = Field(32, gt=0, description="categories on the smaller side of a split")
    max_cat_to_onehot: int = Field(
        4, gt=0, description="up to so many categories are split one against the rest"
    )
    min_data_per_group: int = Field(100, gt=0, description="rows of a category that is split by")
    alpha: float = Field(0.9, gt=0, description="huber's limit, or the quantile")
    fair_c: float = Field(1.0, gt=0)
    poisson_max_delta_step: float = Field(0.7, gt=0)
    tweedie_variance_power: float = Field(1.5, ge=1, lt=2)
    drop_rate: float = Field(0.1, ge=0, le=1, description="dart: share of the trees that a round leaves out")
    max_drop: int = Field(50, description="dart: how many at most; 0 or less: any")
    skip_drop: float = Field(0.5, ge=0, le=1, description="dart: share of the rounds that leave none out")
    uniform_drop: bool = Field(False, description="dart: all trees alike, however much they count")
    xgboost_dart_mode: bool = Field(False, description="dart: weigh as XGBoost does")
    device_type: Literal["cpu", "gpu", "cuda"] | None = Field(
        None, description="gpu: OpenCL; default: cuda where training.device asks for it, else cpu"
    )


# Ours on the left. What is not here has the same name in the library, or is made into something else below.
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
    """The options as LightGBM calls them, but for objective, device and `directions`.

    Raises:
        ModelError: some exclude each other.
    """
    _check(params)
    given = params.model_dump(exclude_none=True, exclude=_NOT_PASSED)
    return {_RENAMED.get(name, name): value for name, value in given.items()}


def directions(params: LightgbmParams, names: Sequence[str]) -> dict[str, list[int]]:
    """`monotone_constraints` for features of these names, if there are any.

    Raises:
        ModelError: they do not fit the features.
    """
    given = params.monotone_constraints
    return {} if given is None else {"monotone_constraints": _directions(given, names)}


def _check(params: LightgbmParams) -> None:
    if params.data_sample_strategy == "goss":
        if params.subsample < 1:
            raise ModelError("model.params: goss chooses the rows itself; leave subsample at 1, or goss out")
        if params.boosting == "rf":
            raise ModelError(
                "model.params: goss does not go with boosting: rf; take data_sample_strategy: bagging"
            )
        if params.top_rate + params.other_rate > 1:
            raise ModelError("model.params: top_rate and other_rate are more than 1 together")
    samples = (params.subsample < 1 and params.subsample_freq > 0) or params.colsample_bytree < 1
    if params.boosting == "rf" and not samples:
        raise ModelError(
            "model.params: boosting: rf needs subsample or colsample_bytree below 1, or all trees are the same"
        )
    if params.is_unbalance and params.scale_pos_weight != 1:
        raise ModelError("model.params: is_unbalance and scale_pos_weight exclude each other")


def _directions(given: list[int] | dict[str, int], names: Sequence[str]) -> list[int]:
    if isinstance(given, dict):
        if unknown := [name for name in given if name not in names]:
            known = ", ".join(names[:12])
            raise ModelError(
                f"model.params.monotone_constraints: no feature {unknown[0]!r}; there are {known}"
            )
        return [given.get(name, 0) for name in names]
    if len(given) != len(names):
        raise ModelError(
            f"monotone_constraints: {len(given)} values for {len(names)} features; name the features instead"
        )
    return given
