"""The options of the model; readable without xgboost."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import Field, field_validator, model_validator

from trainyard.config.schema import Section
from trainyard.types import Task


class Objective(NamedTuple):
    """A built-in objective: its task, and the metric (to a power) whose mean over the rows it makes small."""

    task: Task
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
# A metric is reported as the loss, so that less of it must be better; the others are among ours (`evaluation.metrics`).
METRICS = (
    *("logloss", "mlogloss", "error", "merror", "rmse", "rmsle", "mae", "mape", "mphe", "quantile"),
    *("poisson-nloglik", "gamma-nloglik", "gamma-deviance", "tweedie-nloglik"),
)
_NUMBERED = re.compile(
    r"error@0?\.\d+|tweedie-nloglik@1\.\d*[1-9]\d*"
)  # the threshold, and the power of the variance
# A path to a function of the user's; the other objectives of the library look the same.
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
# Options whose values the library does not get as they stand here.
_OURS = {
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
    """Boosted trees (Chen and Guestrin, 2016); the names are those of XGBoost."""

    n_estimators: int | None = Field(
        None,
        gt=0,
        description="boosting rounds, each of them a step; default: training.max_steps or training.epochs",
    )
    learning_rate: float = Field(
        0.3, gt=0, description="how much of each tree counts; training.scheduler varies it"
    )
    max_depth: int = Field(6, ge=0, description="of a tree; 0: any")
    max_leaves: int = Field(0, ge=0, description="of a tree; 0: any")
    grow_policy: Literal["depthwise", "lossguide"] = Field(
        "depthwise", description="which leaf is split next"
    )
    min_child_weight: float = Field(1.0, ge=0, description="least sum of second derivatives in a leaf")
    gamma: float = Field(0.0, ge=0, description="least gain of a split")
    reg_alpha: float = Field(0.0, ge=0, description="L1 penalty on leaves")
    reg_lambda: float = Field(1.0, ge=0, description="L2 penalty on leaves")
    max_delta_step: float | None = Field(
        None, ge=0, description="greatest value of a leaf; default: 0.7 for counts, else any"
    )
    subsample: Share = Field(1.0, description="share of the rows that a tree sees")
    sampling_method: Literal["uniform", "gradient_based"] = Field(
        "uniform", description="how these rows are drawn"
    )
    colsample_bytree: Share = Field(1.0, description="share of the features that a tree sees")
    colsample_bylevel: Share = Field(1.0, description="of these, the share that a level sees")
    colsample_bynode: Share = Field(1.0, description="of these, the share that a split sees")
    tree_method: Literal["auto", "hist", "approx", "exact"] = Field(
        "auto", description="how splits are found; auto: hist"
    )
    max_bin: int = Field(256, ge=2, description="bins of a feature, for hist and approx")
    num_parallel_tree: int = Field(1, gt=0, description="trees of a round: above 1, each round adds a forest")
    multi_strategy: Literal["one_output_per_tree", "multi_output_tree"] = Field(
        "one_output_per_tree",
        description="for several classes or values: a tree for each, or one with vectors in its leaves",
    )
    max_cat_to_onehot: int = Field(
        4, gt=0, description="categories up to which a split takes out a single one"
    )
    max_cat_threshold: int = Field(64, gt=0, description="most categories that a split sends to one side")
    monotone_constraints: dict[str, Literal[-1, 0, 1]] | list[Literal[-1, 0, 1]] | None = Field(
        None, description="by feature: 1 if predictions may only rise with it, -1 if only fall"
    )
    interaction_constraints: list[list[str | int]] | None = Field(
        None, description="groups of features, by name or number: only those of one group meet on a path"
    )
    scale_pos_weight: float | None = Field(
        None, gt=0, description="weight of the second of two classes; default: 1"
    )
    base_score: float | None = Field(None, description="prediction before the first tree; default: fitted")
    objective: str | None = Field(
        None,
        description="a built-in one, or package.module:function(margins, matrix) -> gradients, second derivatives",
    )
    metric: str | None = Field(
        None,
        description="what is reported as the loss, and so must be better when less: a built-in one, or "
        "package.module:function(predictions, matrix) -> name, mean over the rows; default: that of the objective",
    )
    quantile_alpha: float = Field(0.5, gt=0, lt=1, description="the quantile that reg:quantileerror learns")
    tweedie_variance_power: float = Field(1.5, gt=1, lt=2, description="of reg:tweedie")
    huber_slope: float = Field(
        1.0, gt=0, description="of reg:pseudohubererror: from where on the error counts linearly"
    )
    booster: Literal["gbtree", "dart"] = Field(
        "gbtree", description="dart: trees drop out (Rashmi and Gilad-Bachrach, 2015)"
    )
    rate_drop: Rate = Field(0.0, description="share of the trees that drop out in a round of dart")
    skip_drop: Rate = Field(0.0, description="chance that no tree drops out in a round of dart")
    sample_type: Literal["uniform", "weighted"] = Field(
        "uniform", description="which trees drop out: any, or by their weight"
    )
    normalize_type: Literal["tree", "forest"] = Field(
        "tree", description="how a new tree is weighed against those dropped"
    )
    one_drop: bool = Field(False, description="dart drops one tree at least")
    external_memory: bool = Field(
        False,
        description="keep the binned rows in files in the temporary folder: for data larger than memory",
    )

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, value: str | None) -> str | None:
        if value is not None and value not in OBJECTIVES and not _IMPORT_PATH.fullmatch(value):
            raise ValueError(f"{value!r} is none of {', '.join(OBJECTIVES)}, and no package.module:function")
        return value

    @field_validator("metric")
    @classmethod
    def _known_metric(cls, value: str | None) -> str | None:
        if value is None or value in METRICS or _NUMBERED.fullmatch(value) or _IMPORT_PATH.fullmatch(value):
            return value
        if value.split("@")[0] in METRICS:
            raise ValueError(
                f"{value!r}: a number has only error@THRESHOLD, below 1, and tweedie-nloglik@POWER, between 1 and 2"
            )
        raise ValueError(
            f"{value!r} is none of {', '.join(METRICS)}, and no package.module:function; it is reported as the loss, so that "
            "less must be better: for others, auc among them, list evaluation.metrics"
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
            self._refuse(
                "tree_method: exact", ("grow_policy", "max_leaves")
            )  # at which it would not even look
            if not self.max_depth:
                raise ValueError("tree_method: exact does not go with max_depth: 0; give a depth")
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
                raise ValueError(f"{reason} does not go with {name}; leave it out")

    @property
    def grown_by(self) -> Literal["hist", "approx", "exact"]:
        """The tree method that `auto` stands for."""
        return "hist" if self.tree_method == "auto" else self.tree_method

    @property
    def samples(self) -> bool:
        """Whether a tree sees only some of the rows or features."""
        return min(self.subsample, self.colsample_bytree, self.colsample_bylevel, self.colsample_bynode) < 1

    def native(self) -> dict[str, Any]:
        """The options that the library takes as they stand here."""
        found = {"tree_method": self.grown_by}
        for name, value in self.model_dump(exclude=_OURS | {"tree_method"}).items():
            other, needed = _ONLY_WITH.get(name, ("booster", self.booster))
            if value is not None and getattr(self, other) == needed:
                found[name] = value
        return found
