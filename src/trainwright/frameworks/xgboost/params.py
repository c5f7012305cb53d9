"""The options of XGBoost models; imported without xgboost."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from trainwright.config.fields import Section


class Objective(NamedTuple):
    """A built-in objective: its task, and the metric (to a power) whose mean over the rows it minimizes."""

    task: str
    metric: str
    power: int = 1


OBJECTIVES: Mapping[str, Objective] = {
    "binary:logistic": Objective("classification", "logloss"),
    "multi:softprob": Objective("classification", "mlogloss"),
    "reg:squarederror": Objective("regression", "rmse", 2),
    "reg:squaredlogerror": Objective("regression", "rmsle", 2),
    "reg:logistic": Objective("regression", "logloss"),
    "reg:pseudohubererror": Objective("regression", "mphe"),
    "reg:absoluteerror": Objective("regression", "mae"),
    "reg:quantileerror": Objective("regression", "quantile"),
    "count:poisson": Objective("regression", "poisson-nloglik"),
    "reg:gamma": Objective("regression", "gamma-nloglik"),
    "reg:tweedie": Objective("regression", "tweedie-nloglik@{tweedie_variance_power}"),
}
# A metric is reported as the loss, so lower must be better; `evaluation.metrics` offers the others.
METRICS = (
    *("logloss", "mlogloss", "error", "merror", "rmse", "rmsle", "mae", "mape", "mphe", "quantile"),
    *("poisson-nloglik", "gamma-nloglik", "gamma-deviance", "tweedie-nloglik"),
)
# Metrics with a number: the threshold of error, the variance power of tweedie-nloglik.
_NUMBERED = re.compile(r"error@0?\.\d+|tweedie-nloglik@1\.\d*[1-9]\d*")
# The import path of a user's function; XGBoost's own objectives (`rank:ndcg`) look alike and are excluded.
_IMPORT_PATH = re.compile(r"(?!(binary|multi|reg|count|rank|survival):)[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

# Options that have an effect only where another option has a certain value.
_ONLY_WITH: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(
        ("rate_drop", "skip_drop", "sample_type", "normalize_type", "one_drop"), ("booster", "dart")
    ),
    "quantile_alpha": ("objective", "reg:quantileerror"),
    "tweedie_variance_power": ("objective", "reg:tweedie"),
    "huber_slope": ("objective", "reg:pseudohubererror"),
}
# Options that are not passed to XGBoost unchanged.
_NOT_PASSED = {
    "n_estimators",
    "objective",
    "metric",
    "external_memory",
    "monotone_constraints",
    "interaction_constraints",
}

Rate = Annotated[float, Field(ge=0, le=1)]
Share = Annotated[float, Field(gt=0, le=1)]


class XgboostParams(Section):
    """Options of XGBoost's boosted trees (Chen and Guestrin, 2016), under XGBoost's names."""

    n_estimators: int | None = Field(
        None,
        gt=0,
        description="boosting rounds, each a step; default: training.max_steps or training.epochs",
    )
    learning_rate: float = Field(
        0.3, gt=0, description="factor on each tree's contribution; training.scheduler varies it"
    )
    max_depth: int = Field(6, ge=0, description="maximum depth of a tree; 0: no limit")
    max_leaves: int = Field(0, ge=0, description="maximum number of leaves of a tree; 0: no limit")
    grow_policy: Literal["depthwise", "lossguide"] = Field(
        "depthwise", description="which leaf is split next: the shallowest, or that of the highest gain"
    )
    min_child_weight: float = Field(1.0, ge=0, description="minimum sum of second derivatives in a leaf")
    gamma: float = Field(0.0, ge=0, description="minimum gain of a split")
    reg_alpha: float = Field(0.0, ge=0, description="L1 penalty on leaf values")
    reg_lambda: float = Field(1.0, ge=0, description="L2 penalty on leaf values")
    max_delta_step: float | None = Field(
        None, ge=0, description="maximum leaf value; default: 0.7 for count:poisson, else no limit"
    )
    subsample: Share = Field(1.0, description="fraction of the rows drawn for each tree")
    sampling_method: Literal["uniform", "gradient_based"] = Field(
        "uniform", description="how these rows are drawn"
    )
    colsample_bytree: Share = Field(1.0, description="fraction of the features drawn for each tree")
    colsample_bylevel: Share = Field(1.0, description="of these, the fraction drawn for each level")
    colsample_bynode: Share = Field(1.0, description="of these, the fraction drawn for each split")
    tree_method: Literal["auto", "hist", "approx", "exact"] = Field(
        "auto", description="algorithm that finds splits; auto: hist"
    )
    max_bin: int = Field(256, ge=2, description="bins of a feature, for hist and approx")
    num_parallel_tree: int = Field(1, gt=0, description="trees per round; above 1, each round adds a forest")
    multi_strategy: Literal["one_output_per_tree", "multi_output_tree"] = Field(
        "one_output_per_tree",
        description="for several classes or targets: a tree for each, or one with vectors in its leaves",
    )
    max_cat_to_onehot: int = Field(
        4, gt=0, description="a feature with fewer categories is split one category against the rest"
    )
    max_cat_threshold: int = Field(
        64, gt=0, description="maximum number of categories on one side of a split"
    )
    monotone_constraints: dict[str, Literal[-1, 0, 1]] | list[Literal[-1, 0, 1]] | None = Field(
        None, description="by feature: 1 if predictions may only increase with it, -1 if only decrease"
    )
    interaction_constraints: list[list[str | int]] | None = Field(
        None, description="groups of features, by name or number; only those of one group share a branch"
    )
    scale_pos_weight: float | None = Field(
        None, gt=0, description="weight of the second class of two; default: 1"
    )
    base_score: float | None = Field(
        None, description="prediction before the first tree; default: estimated from the targets"
    )
    objective: str | None = Field(
        None,
        description="an objective of XGBoost, or package.module:function(margins, matrix) -> "
        "gradients, second derivatives; default: by the task",
    )
    metric: str | None = Field(
        None,
        description="reported as the loss, so lower must be better: a metric of XGBoost, or "
        "package.module:function(predictions, matrix) -> name, mean over the rows; default: by the objective",
    )
    quantile_alpha: float = Field(0.5, gt=0, lt=1, description="reg:quantileerror: the quantile")
    tweedie_variance_power: float = Field(1.5, gt=1, lt=2, description="reg:tweedie: power of the variance")
    huber_slope: float = Field(
        1.0, gt=0, description="reg:pseudohubererror: the error from which the loss is linear"
    )
    booster: Literal["gbtree", "dart"] = Field(
        "gbtree", description="dart: with dropout of trees (Rashmi and Gilad-Bachrach, 2015)"
    )
    rate_drop: Rate = Field(0.0, description="dart: fraction of the trees dropped in a round")
    skip_drop: Rate = Field(0.0, description="dart: probability that a round drops no tree")
    sample_type: Literal["uniform", "weighted"] = Field(
        "uniform", description="dart: trees are drawn uniformly, or by their weight"
    )
    normalize_type: Literal["tree", "forest"] = Field(
        "tree", description="dart: a new tree weighs as much as each dropped one, or as all together"
    )
    one_drop: bool = Field(False, description="dart: drop at least one tree")
    external_memory: bool = Field(
        False,
        description="keep the binned rows in files in the temporary folder, for data larger than memory",
    )

    max_cached_hist_node: int | None = Field(
        None, gt=0, description="hist: maximum number of nodes whose histograms are kept for their children"
    )

    @field_validator("one_drop", mode="before")
    @classmethod
    def _flag(cls, value: Any) -> Any:
        """Take 0 and 1, as XGBoost's documentation writes it."""
        return bool(value) if value in (0, 1) else value

    @field_validator("monotone_constraints", "interaction_constraints", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        """Read the form that XGBoost's documentation has: `(1,-1)`, `[[0, 1], [2]]`."""
        if not isinstance(value, str):
            return value
        try:
            return json.loads(re.sub(r"^\((.*?),?\)$", r"[\1]", value.strip()).replace("'", '"'))
        except ValueError:
            return value

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, value: str | None) -> str | None:
        if value is not None and value not in OBJECTIVES and not _IMPORT_PATH.fullmatch(value):
            raise ValueError(f"{value!r}: allowed are {', '.join(OBJECTIVES)}, or package.module:function")
        return value

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str | None) -> str | None:
        if value is None or value in METRICS or _NUMBERED.fullmatch(value) or _IMPORT_PATH.fullmatch(value):
            return value
        if value.split("@")[0] in METRICS:
            raise ValueError(
                f"{value!r}: only error@THRESHOLD (below 1) and tweedie-nloglik@POWER (1 to 2) take a number"
            )
        raise ValueError(
            f"{value!r}: allowed are {', '.join(METRICS)}, or package.module:function. "
            "It is reported as the loss, so lower must be better; list others, such as auc, in "
            "evaluation.metrics"
        )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for name, (other, value) in _ONLY_WITH.items():
            if getattr(self, name) != type(self).model_fields[name].default and getattr(self, other) != value:
                raise ValueError(f"{name} has an effect only with {other}: {value}; leave it out")
        if self.tree_method == "exact":
            self._refuse(
                "tree_method: exact", ("colsample_bynode", "sampling_method", "external_memory", "max_bin")
            )
            # These two it would ignore.
            self._refuse("tree_method: exact", ("grow_policy", "max_leaves"))
            if not self.max_depth:
                raise ValueError("tree_method: exact cannot be combined with max_depth: 0; set a depth")
        if self.tree_method == "approx":
            self._refuse("tree_method: approx", ("external_memory",))
        if self.multi_strategy == "multi_output_tree":
            more = ("booster", "monotone_constraints", "interaction_constraints")
            self._refuse(
                "multi_strategy: multi_output_tree",
                (*more, *(() if self.grown_by == "hist" else ("tree_method",))),
            )
        return self

    def _refuse(self, reason: str, names: tuple[str, ...]) -> None:
        for name in names:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{reason} cannot be combined with {name}; leave it out")

    @property
    def grown_by(self) -> Literal["hist", "approx", "exact"]:
        """The tree method, with `auto` resolved."""
        return "hist" if self.tree_method == "auto" else self.tree_method

    @property
    def samples(self) -> bool:
        """Return whether rows or features are sampled."""
        return min(self.subsample, self.colsample_bytree, self.colsample_bylevel, self.colsample_bynode) < 1

    def boundary(self, rows: int) -> int:
        """Return how many rounds lie between two resets of the tree updater; part of the model's definition.

        Args:
            rows: Number of training rows.
        """
        if not self.samples:
            return 1
        return 50 if rows < 1_000_000 else 10

    def native(self) -> dict[str, Any]:
        """Return the options that are passed to XGBoost unchanged and have an effect."""
        options = {"tree_method": self.grown_by}
        for name, value in self.model_dump(exclude=_NOT_PASSED | {"tree_method"}).items():
            other, needed = _ONLY_WITH.get(name, ("booster", self.booster))
            if value is not None and getattr(self, other) == needed:
                options[name] = value
        return options
