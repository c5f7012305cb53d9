"""LightGBM: each boosting round is a step; `boosting.py` explains how a run resumes bit-identically."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from trainwright.config.schema import RunConfig
from trainwright.config.spellings import Spellings
from trainwright.errors import InputError
from trainwright.frameworks.base import Advice, Framework, Learner, LearnerInputs, Model, ModelInputs, Plan
from trainwright.frameworks.lightgbm.advice import ADVICE
from trainwright.frameworks.lightgbm.boosting import RESET_INTERVAL, RoundParams
from trainwright.frameworks.lightgbm.estimators import learns_differences, model_spec
from trainwright.frameworks.lightgbm.library import THREAD_NUMBER, lightgbm
from trainwright.frameworks.lightgbm.params import LightgbmParams, device_of, library_params
from trainwright.frameworks.lightgbm.spellings import SPELLINGS
from trainwright.frameworks.support.plans import OWN_FUNCTIONS_HINT, rounds_plan, rounds_work
from trainwright.types import DataInfo, Determinism, FeatureForm

# Other names of the models, with the task that a name implies.
OTHER_NAMES: Mapping[str, tuple[str, str | None]] = {
    "lgbm": ("lightgbm", None),
    "lgb": ("lightgbm", None),
    "LGBMClassifier": ("lightgbm", "classification"),
    "LGBMRegressor": ("lightgbm", "regression"),
    "LightGBMClassifier": ("lightgbm", "classification"),
    "LightGBMRegressor": ("lightgbm", "regression"),
}


class LightgbmFramework(Framework):
    """Describe gradient boosted trees."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {"lightgbm": LightgbmParams}
    tasks: ClassVar[Collection[str] | None] = ("classification", "regression")
    spellings: ClassVar[Spellings] = SPELLINGS
    aliases: ClassVar[Collection[str]] = ("lgb", "lgbm")
    takes_weights: ClassVar[bool] = True
    base_modules: ClassVar[Sequence[str]] = ("lightgbm",)
    advice: ClassVar[Advice] = ADVICE
    model_bases: ClassVar[Sequence[str]] = ("lightgbm:LGBMModel",)
    formats: ClassVar[Sequence[str]] = ("txt",)
    hub_name: ClassVar[str] = "lightgbm"
    unsaved_hint: ClassVar[str] = OWN_FUNCTIONS_HINT
    exports_with_columns: ClassVar[bool] = True
    data_classes: ClassVar[Collection[str]] = ("Dataset",)

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
            "training.epochs": 100,
        }

    @staticmethod
    def feature_form(config: RunConfig, model: Any = None) -> FeatureForm:
        """Return float32; targets are shifted where the objective depends on differences alone.

        Raises:
            ModelError: An option is wrong.
        """
        return FeatureForm(target="centered" if learns_differences(config, model) else "float32")

    @staticmethod
    def change_refusal(option: str, config: RunConfig) -> str | None:  # noqa: ARG004 - none may change
        """Refuse all options where rounds are repeated at a resume."""
        boosting, strategy = (config.model.params.get(name) for name in ("boosting", "data_sample_strategy"))
        if boosting in (None, "gbdt") and strategy != "goss":
            return None
        return "dart, rf and goss repeat their rounds at a resume, with one set of options"

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004
        """Return the keys that have an effect; `n_estimators` replaces `epochs` and `max_steps`."""
        return {"device", "scheduler"} | (set() if params.get("n_estimators") else {"epochs", "max_steps"})

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        """Plan one step per boosting round; a dart model changes earlier trees, so it is not cumulative.

        Raises:
            InputError: The learning rate is to vary, or initial weights are given, where `boosting`
                forbids it.
        """
        params, schedule = model_spec(config, model).params, config.training.scheduler
        if schedule.varies and (reason := _fixed_rate(params)):
            raise InputError(
                f"training.scheduler: {reason}, so the learning rate must stay constant; leave it out"
            )
        if params.boosting == "rf" and config.model.init_from:
            raise InputError(
                "model.init_from: boosting: rf averages its trees and cannot continue from another model; "
                "leave it out"
            )
        plan = rounds_plan(config, rows, params.n_estimators, params.learning_rate)
        boundary = RoundParams(library_params(params), config.experiment.seed).boundary
        return plan._replace(boundary=boundary, cumulative=params.boosting != "dart")

    @staticmethod
    def step_work(config: RunConfig, info: DataInfo, plan: Plan, model: Any = None) -> float | None:  # noqa: ARG004
        """Return the work of a round: some operations for each cell, for each of several classes."""
        return rounds_work(info, plan)

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        """Return `bitwise` on the CPU and `order` on other devices."""
        device = device_of(config, model_spec(config).params)
        if device != "cpu":
            return Determinism("order", f"on {device}, LightGBM sums histograms in an order that varies")
        return Determinism(
            "bitwise",
            f"generators reset every {RESET_INTERVAL} rounds, pinned threads and layout of histograms",
        )

    @staticmethod
    def device_name(config: RunConfig) -> str:
        """Return `cpu`, or `gpu` or `cuda` with its number."""
        return device_of(config, model_spec(config).params)

    @staticmethod
    def pin(config: RunConfig, threads: int) -> None:  # noqa: ARG004 - the same for all
        """Set LightGBM's number of threads, and let it log where it would print."""
        library = lightgbm()
        library.register_logger(logging.getLogger("lightgbm"))
        THREAD_NUMBER.set(library, threads)

    @staticmethod
    def learner(inputs: LearnerInputs) -> Learner:
        """Build a booster and its binned rows."""
        from trainwright.frameworks.lightgbm.learner import LightgbmLearner

        return LightgbmLearner(inputs)

    @staticmethod
    def load(inputs: ModelInputs, folder: Path) -> Model:
        """Return the model in `folder`; it uses as many threads as LightGBM is set to in this process.

        The number changes no bit of a prediction.
        """
        from trainwright.frameworks.lightgbm.model import load_model

        return load_model(inputs, folder)


def _fixed_rate(params: LightgbmParams) -> str | None:
    """Return why the learning rate cannot vary, or None if it can."""
    kind = f"boosting: {params.boosting}" if params.boosting != "gbdt" else params.data_sample_strategy
    return None if kind == "bagging" else f"{kind} replays its rounds at a resume"
