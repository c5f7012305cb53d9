"""XGBoost: each boosting round is a step, and a run resumes bit-identically; `learner.py` explains how."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from trainwright.config.schema import RunConfig
from trainwright.config.spellings import Spellings
from trainwright.frameworks.base import Advice, Learner, LearnerInputs, Library, Model, ModelInputs, Plan
from trainwright.frameworks.boosting.framework import BoosterFramework
from trainwright.frameworks.support.advice import (
    BOOSTED_RATE,
    COLUMNS,
    LEAF_PENALTY,
    ROWS,
    SAMPLED_ROWS,
    boosted,
    linear,
    logarithmic,
)
from trainwright.frameworks.support.plans import rounds_plan
from trainwright.frameworks.xgboost.library import chosen_device
from trainwright.frameworks.xgboost.params import XgboostParams
from trainwright.frameworks.xgboost.spec import learns_differences, model_spec
from trainwright.frameworks.xgboost.spellings import SPELLINGS
from trainwright.types import DataInfo, Determinism, Proposal, Suggestion, TableShape

_SPACE: Mapping[str, Suggestion] = {
    "model.learning_rate": BOOSTED_RATE,
    "model.max_depth": Suggestion(linear(2, 10), "depth of a tree; matters most"),
    "model.min_child_weight": Suggestion(logarithmic(1.0, 100.0), "weight of a leaf: more is smoother"),
    "model.subsample": ROWS,
    "model.colsample_bytree": COLUMNS,
    "model.reg_lambda": LEAF_PENALTY,
}

_LOADED = ("objective", "booster", "base_score", "feature_types", "enable_categorical")  # by `load_model`


def _proposal(shape: TableShape) -> Proposal:
    """Return what a config for a table begins with."""
    return boosted({"max_depth": 6, "subsample": 0.8}, shape, SAMPLED_ROWS, default_rank=2, comparison_rank=6)


class XgboostFramework(BoosterFramework):
    """Models of XGBoost."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {"xgboost": XgboostParams}
    short_names: ClassVar[Sequence[str]] = ("xgb",)
    class_prefixes: ClassVar[Sequence[str]] = ("XGB", "XGBoost")
    tasks: ClassVar[Collection[str] | None] = ("classification", "multilabel", "regression")
    spellings: ClassVar[Spellings] = SPELLINGS
    aliases: ClassVar[Collection[str]] = ("xgb",)
    library: ClassVar[Library] = Library(
        ("xgboost",),
        ("xgboost:XGBModel",),
        data_classes=("DMatrix", "QuantileDMatrix", "ExtMemQuantileDMatrix"),
        hub_name="xgboost",
    )
    advice: ClassVar[Advice] = Advice(lambda shape: {"xgboost": _proposal(shape)}, {"xgboost": _SPACE})

    spec = staticmethod(model_spec)
    learns_differences = staticmethod(learns_differences)

    @staticmethod
    def quantile(config: RunConfig) -> float | None:
        """Return the quantile of the objective `quantile`; see `Framework.quantile`."""
        params = config.model.params
        is_quantile = params.get("objective") == "reg:quantileerror"
        return float(params.get("quantile_alpha", 0.5)) if is_quantile else None

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        """Plan one step per boosting round; a dart model changes earlier trees, so it is not cumulative."""
        params = model_spec(config, model).params
        plan = rounds_plan(config, rows, params.n_estimators, params.learning_rate)
        return plan._replace(boundary=params.boundary(rows), cumulative=params.booster != "dart")

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        """Return `bitwise` on the CPU and `order` on CUDA, where equal bits are not ensured."""
        if XgboostFramework.device_name(config) != "cpu":
            reason = (
                "on CUDA, XGBoost does not promise equal bits for equal rounds; training.device: cpu does"
            )
            return Determinism("order", reason)
        return Determinism(
            "bitwise",
            "rounds seeded by their number, sampling reset at fixed rounds, a pinned number of threads",
        )

    @staticmethod
    def device_name(config: RunConfig) -> str:
        """Return `cpu`, or `cuda` with its number."""
        return chosen_device(config.training.device, getattr(config.model.params, "grown_by", "hist"))

    @staticmethod
    def learner(inputs: LearnerInputs) -> Learner:
        """Build a booster and the matrices of its rows; its threads are its own, so nothing is pinned."""
        from trainwright.frameworks.xgboost.learner import XgboostLearner

        return XgboostLearner(inputs)

    @staticmethod
    def give(model: Model, estimator: Any, info: DataInfo) -> None:  # noqa: ARG004 - the trees say all
        """Load the booster into an `XGBModel`; its options are those that `fit` leaves."""
        options = {name: getattr(estimator, name) for name in _LOADED}
        objective = options["objective"]
        estimator.load_model(model.native.save_raw("ubj"))
        if getattr(estimator, "n_classes_", 0) > 2 and objective in (None, "binary:logistic"):
            options["objective"] = "multi:softprob"
        vars(estimator).update(options)  # `set_params` would set them in the booster, too

    @staticmethod
    def load(inputs: ModelInputs, folder: Path) -> Model:
        """Return the model in `folder`; its number of threads changes none of its bits."""
        from trainwright.frameworks.xgboost.model import load_model

        return load_model(inputs, folder)
