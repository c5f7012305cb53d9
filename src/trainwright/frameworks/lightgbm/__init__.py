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
from trainwright.frameworks.base import Advice, Learner, LearnerInputs, Library, Model, ModelInputs, Plan
from trainwright.frameworks.boosting.framework import BoosterFramework
from trainwright.frameworks.lightgbm.boosting import RESET_INTERVAL, RoundParams
from trainwright.frameworks.lightgbm.library import THREAD_NUMBER, lightgbm
from trainwright.frameworks.lightgbm.params import LightgbmParams, device_of, library_params
from trainwright.frameworks.lightgbm.spec import learns_differences, model_spec
from trainwright.frameworks.lightgbm.spellings import SPELLINGS
from trainwright.frameworks.support.advice import (
    BOOSTED_RATE,
    COLUMNS,
    FEW_IN_LEAF,
    LEAF_PENALTY,
    LEAF_ROWS,
    LEAVES,
    boosted,
    least_in_leaf,
)
from trainwright.frameworks.support.plans import rounds_plan
from trainwright.types import DataInfo, Determinism, Proposal, Suggestion, TableShape

_SPACE: Mapping[str, Suggestion] = {
    "model.learning_rate": BOOSTED_RATE,
    "model.num_leaves": LEAVES,
    "model.min_child_samples": LEAF_ROWS,
    "model.colsample_bytree": COLUMNS,
    "model.reg_lambda": LEAF_PENALTY,
}


def _proposal(shape: TableShape) -> Proposal:
    """Return what a config for a table begins with: LightGBM's own defaults, but for leaves of few rows.

    On a hundred real tables (`benchmarks/proposals.py`), a lower learning rate, samples of the rows and
    smaller leaves each did more harm than good. LightGBM learns one target.
    """
    return boosted(
        {"num_leaves": 31, "min_child_samples": least_in_leaf(shape)},
        shape,
        FEW_IN_LEAF,
        default_rank=None if shape.several else 1,
    )


class LightgbmFramework(BoosterFramework):
    """Models of LightGBM."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = {"lightgbm": LightgbmParams}
    short_names: ClassVar[Sequence[str]] = ("lgbm", "lgb")
    class_prefixes: ClassVar[Sequence[str]] = ("LGBM", "LightGBM")
    tasks: ClassVar[Collection[str] | None] = ("classification", "regression")
    spellings: ClassVar[Spellings] = SPELLINGS
    aliases: ClassVar[Collection[str]] = ("lgb", "lgbm")
    library: ClassVar[Library] = Library(
        ("lightgbm",), ("lightgbm:LGBMModel",), data_classes=("Dataset",), hub_name="lightgbm"
    )
    advice: ClassVar[Advice] = Advice(lambda shape: {"lightgbm": _proposal(shape)}, {"lightgbm": _SPACE})

    gives_labels: ClassVar[bool] = True

    spec = staticmethod(model_spec)
    learns_differences = staticmethod(learns_differences)

    @staticmethod
    def quantile(config: RunConfig) -> float | None:
        """Return the quantile of the objective `quantile`; see `Framework.quantile`."""
        params = config.model.params
        return float(params.get("alpha", 0.9)) if params.get("objective") == "quantile" else None

    @staticmethod
    def change_refusal(option: str, config: RunConfig) -> str | None:  # noqa: ARG004 - none may change
        """Refuse all options where rounds are repeated at a resume."""
        boosting, strategy = (config.model.params.get(name) for name in ("boosting", "data_sample_strategy"))
        if boosting in (None, "gbdt") and strategy != "goss":
            return None
        return "dart, rf and goss repeat their rounds at a resume, with one set of options"

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
    def give(model: Model, estimator: Any, info: DataInfo) -> None:
        """Set what `fit` sets of an `LGBMModel`, which the library cannot load."""
        from trainwright.frameworks.lightgbm.model import give

        give(model, estimator, info)

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
