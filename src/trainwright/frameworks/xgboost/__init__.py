"""XGBoost: each boosting round is a step, and a run resumes bit-identically; `learner.py` explains how."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from trainwright.config.schema import RunConfig
from trainwright.config.spellings import Spellings
from trainwright.frameworks.base import Advice, Framework, Learner, LearnerInputs, Model, ModelInputs, Plan
from trainwright.frameworks.support.plans import OWN_FUNCTIONS_HINT, rounds_plan, rounds_work
from trainwright.frameworks.xgboost.advice import ADVICE
from trainwright.frameworks.xgboost.devices import chosen_device
from trainwright.frameworks.xgboost.params import XgboostParams
from trainwright.frameworks.xgboost.spec import learns_differences, model_spec
from trainwright.frameworks.xgboost.spellings import SPELLINGS
from trainwright.types import DataInfo, Determinism, FeatureForm

DEFAULT_ROUNDS = 100

# Other names of the models, with the task that a name implies.
OTHER_NAMES: Mapping[str, tuple[str, str | None]] = {
    "xgb": ("xgboost", None),
    "XGBClassifier": ("xgboost", "classification"),
    "XGBRegressor": ("xgboost", "regression"),
    "XGBoostClassifier": ("xgboost", "classification"),
    "XGBoostRegressor": ("xgboost", "regression"),
}


class XgboostFramework(Framework):
    """Describe models of XGBoost."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {"xgboost": XgboostParams}
    tasks: ClassVar[Collection[str] | None] = ("classification", "multilabel", "regression")
    spellings: ClassVar[Spellings] = SPELLINGS
    aliases: ClassVar[Collection[str]] = ("xgb",)
    takes_weights: ClassVar[bool] = True
    base_modules: ClassVar[Sequence[str]] = ("xgboost",)
    advice: ClassVar[Advice] = ADVICE
    model_bases: ClassVar[Sequence[str]] = ("xgboost:XGBModel",)
    formats: ClassVar[Sequence[str]] = ("ubj", "json")
    hub_name: ClassVar[str] = "xgboost"
    unsaved_hint: ClassVar[str] = OWN_FUNCTIONS_HINT
    exports_with_columns: ClassVar[bool] = True
    data_classes: ClassVar[Collection[str]] = ("DMatrix", "QuantileDMatrix", "ExtMemQuantileDMatrix")

    @staticmethod
    def other_names() -> Mapping[str, tuple[str, str | None]]:
        """Return the class names, and the usual short forms."""
        return OTHER_NAMES

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:  # noqa: ARG004 - the only model
        """Return config defaults: no scaling, category codes, missing values kept, 100 rounds."""
        return {
            "data.standardize": False,
            "data.encode": "category",
            "data.impute": "keep",
            "training.epochs": DEFAULT_ROUNDS,
        }

    @staticmethod
    def feature_form(config: RunConfig, model: Any = None) -> FeatureForm:
        """Return float32; targets are shifted where the objective depends on differences alone.

        Raises:
            ModelError: An option is wrong.
        """
        return FeatureForm(target="centered" if learns_differences(config, model) else "float32")

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004
        """Return the keys that have an effect; `n_estimators` replaces `epochs` and `max_steps`."""
        return {"device", "scheduler"} | (set() if params.get("n_estimators") else {"epochs", "max_steps"})

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        """Plan one step per boosting round; a dart model changes earlier trees, so it is not cumulative."""
        params = model_spec(config, model).params
        plan = rounds_plan(config, rows, params.n_estimators, params.learning_rate)
        return plan._replace(boundary=params.boundary(rows), cumulative=params.booster != "dart")

    @staticmethod
    def step_work(config: RunConfig, info: DataInfo, plan: Plan, model: Any = None) -> float | None:  # noqa: ARG004
        """Return the work of a round: some operations for each cell, for each of several classes."""
        return rounds_work(info, plan)

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
    def load(inputs: ModelInputs, folder: Path) -> Model:
        """Return the model in `folder`; its number of threads changes none of its bits."""
        from trainwright.frameworks.xgboost.model import load_model

        return load_model(inputs, folder)
