"""CatBoost: each boosting round is a step; `rounds.py` runs them in chunks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from trainwright.config.schema import RunConfig
from trainwright.config.spellings import Spellings
from trainwright.errors import InputError
from trainwright.frameworks.base import Advice, Framework, Learner, LearnerInputs, Model, ModelInputs, Plan
from trainwright.frameworks.catboost.advice import ADVICE
from trainwright.frameworks.catboost.params import (
    CatboostParams,
    changes_trees,
    learns_differences,
    model_spec,
)
from trainwright.frameworks.catboost.spellings import SPELLINGS
from trainwright.frameworks.support.plans import OWN_FUNCTIONS_HINT, rounds_plan
from trainwright.types import Determinism, FeatureForm

CHUNK = 10  # rounds per call of `fit`; a snapshot then takes at most a tenth of their time

# Other names of the models, with the task that a name implies.
OTHER_NAMES: Mapping[str, tuple[str, str | None]] = {
    "cat": ("catboost", None),
    "CatBoostClassifier": ("catboost", "classification"),
    "CatBoostRegressor": ("catboost", "regression"),
}


class CatboostFramework(Framework):
    """Describe models of CatBoost."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {"catboost": CatboostParams}
    tasks: ClassVar[Collection[str] | None] = ("classification", "multilabel", "regression")
    spellings: ClassVar[Spellings] = SPELLINGS
    takes_weights: ClassVar[bool] = True
    starts_from_weights: ClassVar[bool] = False
    base_modules: ClassVar[Sequence[str]] = ("catboost",)
    advice: ClassVar[Advice] = ADVICE
    model_bases: ClassVar[Sequence[str]] = ("catboost:CatBoost",)
    formats: ClassVar[Sequence[str]] = ("cbm", "json")
    hub_name: ClassVar[str] = "catboost"
    unsaved_hint: ClassVar[str] = OWN_FUNCTIONS_HINT
    exports_with_columns: ClassVar[bool] = True
    encodes_by_target: ClassVar[bool] = True
    data_classes: ClassVar[Collection[str]] = ("Pool",)

    @staticmethod
    def other_names() -> Mapping[str, tuple[str, str | None]]:
        """Return the class names, and the usual short forms."""
        return OTHER_NAMES

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:  # noqa: ARG004 - the only model
        """Return config defaults: no scaling, category codes, missing values kept, 100 rounds."""
        return {
            "training.epochs": 100,
            "data.standardize": False,
            "data.encode": "category",
            "data.impute": "keep",
        }

    @staticmethod
    def feature_form(config: RunConfig, model: Any = None) -> FeatureForm:
        """Return float32; targets are shifted where the objective depends on differences alone.

        Raises:
            ModelError: An option is wrong.
        """
        return FeatureForm(target="centered" if learns_differences(config, model) else "float32")

    @staticmethod
    def change_refusal(option: str, config: RunConfig) -> str | None:  # noqa: ARG004
        """Refuse all options but the learning rate."""
        return None if option == "learning_rate" else "CatBoost goes on only with the options that it had"

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004
        """Return the keys that have an effect; `n_estimators` replaces `epochs` and `max_steps`."""
        return {"device"} if params.get("n_estimators") else {"device", "epochs", "max_steps"}

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        """Plan one step per boosting round, at a constant learning rate.

        Raises:
            InputError: A scheduler, initial weights, or an option that the device does not support is set.
        """
        params, schedule = model_spec(config, model).params, config.training.scheduler
        # For the short name the run logs that the scheduler has no effect.
        if schedule.varies and (model is not None or ":" in config.model.type):
            raise InputError("training.scheduler: CatBoost's learning rate is constant; leave it out")
        if config.model.init_from:
            raise InputError(
                "model.init_from: CatBoost continues only from its own snapshots, not a model; leave it out"
            )
        symmetric = params.grow_policy == "SymmetricTree"
        on_cpu = not config.training.device.startswith("cuda")
        if not (symmetric or on_cpu):
            raise InputError(
                f"grow_policy: {params.grow_policy} is not supported on CUDA; use SymmetricTree, or "
                "training.device: cpu"
            )
        if params.monotone_constraints and not on_cpu:
            raise InputError(
                "monotone_constraints: on CUDA CatBoost cannot stop after each round, as they need; use "
                "training.device: cpu"
            )
        plan = rounds_plan(config, rows, params.n_estimators, params.learning_rate)
        truncatable = symmetric and not changes_trees(params)
        # On CUDA, training cannot be stopped.
        chunk = (CHUNK if truncatable else 1) if on_cpu else plan.total_steps
        return plan._replace(boundary=chunk, cumulative=truncatable, scheduled=False)

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:
        """Return `bitwise` on the CPU and `order` on CUDA."""
        if config.training.device.startswith("cuda"):
            return Determinism("order", "on CUDA, CatBoost sums in an order that varies")
        return Determinism(
            "bitwise",
            "CatBoost's own snapshots, which continue to the same bits, and a pinned number of threads",
        )

    @staticmethod
    def device_name(config: RunConfig) -> str:
        """Return `cpu` or `gpu`."""
        return "gpu" if config.training.device.startswith("cuda") else "cpu"

    @staticmethod
    def neutral_changes(config: RunConfig) -> Collection[str]:
        """Return the threads: on the CPU, CatBoost sums over blocks whose number does not depend on them."""
        return () if config.training.device.startswith("cuda") else ("threads",)

    @staticmethod
    def learner(inputs: LearnerInputs) -> Learner:
        """Build a model and the pool of its rows; its threads are its own, so nothing is pinned."""
        from trainwright.frameworks.catboost.learner import CatboostLearner

        plan = CatboostFramework.plan(inputs.config, len(inputs.splits["train"]), inputs.model)
        return CatboostLearner(inputs, plan)

    @staticmethod
    def load(inputs: ModelInputs, folder: Path) -> Model:
        """Return the model in `folder`; its number of threads changes none of its bits."""
        from trainwright.frameworks.catboost.model import load_model

        return load_model(inputs, folder)
