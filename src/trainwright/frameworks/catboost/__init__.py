"""CatBoost: each boosting round is a step; `rounds.py` runs them in chunks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from trainwright.config.schema import RunConfig
from trainwright.config.spellings import Spellings
from trainwright.errors import InputError
from trainwright.frameworks.base import (
    Advice,
    Capabilities,
    Learner,
    LearnerInputs,
    Library,
    Model,
    ModelInputs,
    Plan,
)
from trainwright.frameworks.boosting.framework import BoosterFramework
from trainwright.frameworks.catboost.params import (
    CatboostParams,
    alpha_of,
    changes_trees,
    learning_rate_of,
    learns_differences,
    model_spec,
)
from trainwright.frameworks.catboost.spellings import SPELLINGS
from trainwright.frameworks.support.advice import BOOSTED_RATE, boosted, linear, logarithmic
from trainwright.frameworks.support.plans import rounds_plan
from trainwright.types import DataInfo, Determinism, Proposal, Suggestion, TableShape

CHUNK = 10  # rounds per call of `fit`; a snapshot then takes at most a tenth of their time


_SPACE: Mapping[str, Suggestion] = {
    "model.learning_rate": BOOSTED_RATE,
    "model.max_depth": Suggestion(linear(4, 9), "depth of a tree; matters most"),
    "model.reg_lambda": Suggestion(logarithmic(1.0, 30.0), "the penalty of large leaf values"),
    "model.random_strength": Suggestion(logarithmic(0.1, 10.0), "noise in the choice of splits"),
}


def _proposal(shape: TableShape) -> Proposal:
    """Return what a config for a table begins with."""
    return boosted({"max_depth": 6}, shape, {}, default_rank=3, comparison_rank=4)


class CatboostFramework(BoosterFramework):
    """Models of CatBoost."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {"catboost": CatboostParams}
    short_names: ClassVar[Sequence[str]] = ("cat",)
    class_prefixes: ClassVar[Sequence[str]] = ("CatBoost",)
    tasks: ClassVar[Collection[str] | None] = ("classification", "multilabel", "regression")
    spellings: ClassVar[Spellings] = SPELLINGS
    library: ClassVar[Library] = Library(
        ("catboost",), ("catboost:CatBoost",), data_classes=("Pool",), hub_name="catboost"
    )
    capabilities: ClassVar[Capabilities] = Capabilities(
        weights=True, initial_weights=False, target_encoding=True
    )
    advice: ClassVar[Advice] = Advice(lambda shape: {"catboost": _proposal(shape)}, {"catboost": _SPACE})

    spec = staticmethod(model_spec)
    learns_differences = staticmethod(learns_differences)

    @staticmethod
    def quantile(config: RunConfig) -> float | None:
        """Return the quantile of the objective `quantile`; see `Framework.quantile`."""
        name, _, options = str(config.model.params.get("objective")).partition(":")
        return alpha_of(options) if name == "Quantile" else None

    @staticmethod
    def change_refusal(option: str, config: RunConfig) -> str | None:  # noqa: ARG004
        """Refuse all options but the learning rate."""
        return None if option == "learning_rate" else "CatBoost goes on only with the options that it had"

    @classmethod
    def training_keys(cls, model: str, params: Mapping[str, Any]) -> Collection[str]:
        """Return the keys that have an effect; the learning rate is constant."""
        return {*super().training_keys(model, params)} - {"scheduler"}

    @staticmethod
    def step_work(config: RunConfig, info: DataInfo, plan: Plan, model: Any = None) -> float | None:  # noqa: ARG004
        """Return None: a run takes all processors."""
        return None

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        """Plan one step per boosting round, at a constant learning rate.

        Raises:
            InputError: A scheduler, initial weights, or an option that the device does not support is set.
        """
        spec, schedule = model_spec(config, model), config.training.scheduler
        params = spec.params
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
        plan = rounds_plan(config, rows, params.n_estimators, learning_rate_of(spec))
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
    def give(model: Model, estimator: Any, info: DataInfo) -> None:  # noqa: ARG004 - the trees say all
        """Load the trees into a `CatBoost` estimator."""
        from trainwright.frameworks.catboost.model import give

        give(model.native, estimator)

    @staticmethod
    def load(inputs: ModelInputs, folder: Path) -> Model:
        """Return the model in `folder`; its number of threads changes none of its bits."""
        from trainwright.frameworks.catboost.model import load_model

        return load_model(inputs, folder)
