"""scikit-learn on the CPU: any classifier or regressor, by short name, by import path or as an object."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import BaseModel

from trainwright.config.schema import RunConfig
from trainwright.config.spellings import Spellings
from trainwright.errors import ModelError
from trainwright.frameworks.base import (
    Advice,
    Capabilities,
    Compressed,
    Framework,
    Learner,
    LearnerInputs,
    Library,
    Model,
    ModelInputs,
    Plan,
)
from trainwright.frameworks.sklearn.advice import ADVICE, METRIC_MODES
from trainwright.frameworks.sklearn.estimator import (
    candidates,
    holds_pipeline,
    unfitted,
    without_future_warnings,
)
from trainwright.frameworks.sklearn.params import (
    OBEYED,
    Models,
    defaults,
    entry,
    iterations_per_step,
    other_names,
    quantile_of,
)
from trainwright.frameworks.sklearn.process import pin_threads
from trainwright.frameworks.sklearn.spellings import SPELLINGS
from trainwright.frameworks.sklearn.steps import ensemble_family, learning_rate_name, step_kind
from trainwright.frameworks.support.plans import minibatch_plan, rounds_work
from trainwright.require import require
from trainwright.types import DataInfo, Determinism, FeatureForm

if TYPE_CHECKING:
    from trainwright.datasets.base import Split
    from trainwright.records.compression import Recipe


class SklearnFramework(Framework):
    """A run trains one estimator; `steps.py` defines what a step is."""

    models: ClassVar[Mapping[str, type[BaseModel]]] = Models()
    spellings: ClassVar[Spellings] = SPELLINGS
    tasks: ClassVar[Collection[str] | None] = ("classification", "multilabel", "regression")
    aliases: ClassVar[Collection[str]] = ("scikit-learn", "scikit")
    library: ClassVar[Library] = Library(
        ("sklearn",), ("sklearn.base:BaseEstimator",), metric_modes=METRIC_MODES, hub_name="sklearn"
    )
    capabilities: ClassVar[Capabilities] = Capabilities(weights=True)
    advice: ClassVar[Advice] = ADVICE
    unsaved_hint: ClassVar[str] = (
        "keep state in attributes of the estimator itself, and give each array memory of its own (copy())"
    )

    @staticmethod
    def quantile(config: RunConfig) -> float | None:
        """Return the quantile of the objective `quantile`; see `Framework.quantile`."""
        return quantile_of(config)

    @staticmethod
    def other_names() -> Mapping[str, tuple[str, str | None]]:
        """Return the class names, and the usual short forms."""
        return other_names()

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:
        """Return the recommended data preparation and number of epochs of a short name."""
        return defaults(model)

    @staticmethod
    def change_refusal(option: str, config: RunConfig) -> str | None:
        """Refuse the options that a trained estimator keeps."""
        # Only this model multiplies each tree by the rate at which it was grown.
        varies = (option, config.model.type) == ("learning_rate", "hist_gradient_boosting")
        return None if varies or option in OBEYED else "scikit-learn keeps it in the trained estimator"

    @staticmethod
    def has_smaller_end(config: RunConfig) -> bool:
        """Return whether the iterations are no multiple of those of a step."""
        count = config.model.params.get("n_estimators") or config.model.params.get("max_iter")
        return isinstance(count, int) and count % iterations_per_step(config) != 0

    @staticmethod
    def training_keys(model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG004
        """Return the keys of `training` that matter to the model's kind of step."""
        described = entry(model)
        if described is None or described["steps"] == "batches":
            return ("epochs", "max_steps", "batch_size", "scheduler")
        return ("scheduler",) if model == "hist_gradient_boosting" else ()

    @staticmethod
    def feature_form(config: RunConfig, model: Any = None) -> FeatureForm:
        """Return float64, and frames for pipelines; see `FeatureForm`.

        Raises:
            ModelError: The estimator cannot be constructed.
        """
        by_user = model is not None or ":" in config.model.type
        with without_future_warnings():
            frames = by_user and holds_pipeline(unfitted(config, model))
        return FeatureForm("float64", frames, "float64")

    @staticmethod
    def reset() -> None:
        """Undo what code of the user's may have set in scikit-learn for the whole process."""
        from trainwright.frameworks.sklearn.process import reset_settings

        reset_settings()

    @staticmethod
    def plan(config: RunConfig, rows: int, model: Any = None) -> Plan:
        """Plan minibatch steps, iterations of an ensemble, or a single `fit`; see `steps.py`.

        Raises:
            DataError: `training.batch_size` is larger than the number of training rows.
            ModelError: The estimator cannot be constructed, or a scheduler is set but it has no learning
                rate.
        """
        with without_future_warnings():
            estimator = unfitted(config, model)
            kind = step_kind(estimator)
            # The task is not known yet. If one of a name's two estimators has a learning rate, take that one.
            estimator = next((one for one in candidates(config, model) if learning_rate_name(one)), estimator)
        rate = learning_rate_name(estimator)
        # For short names, a scheduler without effect is only logged: see `training_keys`.
        if rate is None and config.training.scheduler.varies and entry(config.model.type) is None:
            name = config.model.type
            raise ModelError(
                f"training.scheduler: {name} has no learning rate that can change; remove training.scheduler"
            )
        lr = None if rate is None else float(getattr(estimator, rate))
        if kind == "batches":
            return minibatch_plan(config, rows)._replace(learning_rate=lr)
        family = ensemble_family(estimator)
        if kind == "once" or family is None:
            return Plan(rows, 1, lr)
        return Plan(
            rows, -(-getattr(estimator, family.count) // iterations_per_step(config)), lr, cumulative=True
        )

    @staticmethod
    def step_work(config: RunConfig, info: DataInfo, plan: Plan, model: Any = None) -> float | None:
        """Return the work of a minibatch, or of a boosting iteration; None where a step is the whole fit."""
        with without_future_warnings():
            estimator = unfitted(config, model)
        if step_kind(estimator) == "batches":
            width = np.sum(getattr(estimator, "hidden_layer_sizes", 0)) + info.outputs
            return float(plan.batch_size * int(np.prod(info.input_shape)) * width)
        return rounds_work(info, plan) if config.model.type == "hist_gradient_boosting" else None

    @staticmethod
    def determinism(config: RunConfig) -> Determinism:  # noqa: ARG004 - the same for every config
        """Return `bitwise`: every estimator is repeatable under a fixed number of threads."""
        return Determinism("bitwise", "seeds by step, a pinned number of threads, sums in a fixed order")

    @staticmethod
    def device_name(config: RunConfig) -> str:  # noqa: ARG004 - there is one
        """Return `cpu`."""
        return "cpu"

    @staticmethod
    def pin(config: RunConfig, threads: int) -> None:  # noqa: ARG004 - the same for every config
        """Set the numbers of threads of BLAS and OpenMP, on which some last bits depend.

        A learner sets them again for each of its steps, in which another run may have its own.

        Raises:
            MissingExtraError: scikit-learn is not installed.
        """
        pin_threads(threads)

    @staticmethod
    def learner(inputs: LearnerInputs) -> Learner:
        """Build the estimator, and what trains it.

        Raises:
            MissingExtraError: scikit-learn, or what stores its estimators, is not installed.
            ModelError: The estimator cannot be constructed, or does not suit the data.
        """
        _require_libraries()
        from trainwright.frameworks.sklearn.learner import SklearnLearner

        return SklearnLearner(inputs)

    @classmethod
    def fill(cls, inputs: ModelInputs, folder: Path) -> None:
        """Give an estimator the attributes that it would have after `fit`."""
        _require_libraries()
        from trainwright.frameworks.sklearn.labels import name_classes
        from trainwright.frameworks.support.passed import class_labels, fill_estimator, give_fitted

        fitted, labels = cls.load(inputs, folder).native, class_labels(inputs.info)
        named = labels is not None and name_classes(fitted, labels)
        fill_estimator(
            inputs.model, inputs.info, lambda: give_fitted(fitted, inputs.model), with_labels=named
        )

    @staticmethod
    def compress(
        inputs: ModelInputs,
        folder: Path,
        recipe: Recipe,
        rows: Split,  # noqa: ARG004 - trees need none
        target: Path,
    ) -> Compressed:
        """Keep the first trees or rounds of an ensemble; see `fewer_trees`."""
        from trainwright.frameworks.sklearn.model import LoadedModel
        from trainwright.frameworks.support.fewer_trees import compress_trees

        model = SklearnFramework.load(inputs, folder)
        assert isinstance(model, LoadedModel)
        return compress_trees(model.trees, recipe, target)

    @staticmethod
    def load(inputs: ModelInputs, folder: Path) -> Model:
        """Return the estimator that a snapshot wrote; see `storage.py` for what it may be made of.

        For the predictions of some estimators (see `mutable.py`), scikit-learn itself changes settings of the
        process. They are made one after the other, not during the step of a learner, and the settings are
        restored.

        Raises:
            MissingExtraError: scikit-learn, or what stores its estimators, is not installed.
            ModelError: The files hold no trusted estimator, or one of another class or number of features.
        """
        _require_libraries()
        from trainwright.frameworks.sklearn.model import load_model

        return load_model(inputs, folder)


def _require_libraries() -> None:
    for module in ("sklearn", "skops", "safetensors", "threadpoolctl"):
        require(module, "sklearn")
