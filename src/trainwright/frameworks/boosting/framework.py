"""The description of a library of boosted trees, but for its options, plan and determinism."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from trainwright.config.schema import RunConfig
from trainwright.frameworks.base import Capabilities, Compressed, Framework, Model, ModelInputs, Plan
from trainwright.frameworks.boosting.estimators import ModelSpec
from trainwright.frameworks.support.fewer_trees import compress_trees
from trainwright.frameworks.support.passed import fill_estimator
from trainwright.frameworks.support.plans import CUSTOM_FUNCTIONS_HINT, rounds_work
from trainwright.types import DataInfo, FeatureForm

if TYPE_CHECKING:
    from trainwright.datasets.base import Split
    from trainwright.records.compression import Recipe

_TASKS = {"Classifier": "classification", "Regressor": "regression"}  # by the ends of the names of estimators


class BoosterFramework(Framework):
    """A framework with one model, whose step is a boosting round."""

    short_names: ClassVar[Sequence[str]]  # other names that a config may give the model
    class_prefixes: ClassVar[Sequence[str]]  # such as `XGB` of `XGBClassifier`; also of names that are in use
    capabilities: ClassVar[Capabilities] = Capabilities(weights=True)
    unsaved_hint: ClassVar[str] = CUSTOM_FUNCTIONS_HINT
    gives_labels: ClassVar[bool] = False  # whether `give` makes an estimator answer with labels of classes

    @classmethod
    def other_names(cls) -> Mapping[str, tuple[str, str | None]]:
        """Return the usual short forms, and the class names."""
        (model,) = cls.models
        classes = {f"{prefix}{end}": task for prefix in cls.class_prefixes for end, task in _TASKS.items()}
        return {name: (model, task) for name, task in (dict.fromkeys(cls.short_names) | classes).items()}

    @staticmethod
    def defaults(model: str) -> Mapping[str, Any]:  # noqa: ARG004 - the only model
        """Return config defaults: no scaling, category codes, missing values kept, 100 rounds."""
        return {
            "data.standardize": False,
            "data.encode": "category",
            "data.impute": "keep",
            "training.epochs": 100,
        }

    @classmethod
    def feature_form(cls, config: RunConfig, model: Any = None) -> FeatureForm:
        """Return float32; targets are shifted where the model learns the same of shifted ones.

        Raises:
            ModelError: An option is wrong.
        """
        if model is not None or ":" in config.model.type:
            spec = cls.spec(config, model)
        else:  # without the user's functions, which are imported for a training alone
            (options,) = cls.models.values()
            spec = ModelSpec(options.model_validate(dict(config.model.params)))
        return FeatureForm(target="centered" if cls.learns_differences(spec, config) else "float32")

    @staticmethod
    @abstractmethod
    def spec(config: RunConfig, model: Any = None) -> ModelSpec[Any]:
        """Return the definition of a run's model.

        Raises:
            ModelError: An option is wrong, or cannot be used in a run.
        """

    @classmethod
    def fill(cls, inputs: ModelInputs, folder: Path) -> None:
        """Give an estimator of the library the trees that a snapshot wrote."""

        def fill() -> None:
            cls.give(cls.load(inputs, folder), inputs.model, inputs.info)

        fill_estimator(inputs.model, inputs.info, fill, with_labels=cls.gives_labels)

    @staticmethod
    @abstractmethod
    def give(model: Model, estimator: Any, info: DataInfo) -> None:
        """Give an estimator of the library the trees of a model, as its `fit` would."""

    @classmethod
    def compress(
        cls,
        inputs: ModelInputs,
        folder: Path,
        recipe: Recipe,
        rows: Split,  # noqa: ARG003 - trees need none
        target: Path,
    ) -> Compressed:
        """Keep the first rounds; see `fewer_trees`."""
        model: Any = cls.load(inputs, folder)
        return compress_trees(model.trees, recipe, target)

    @staticmethod
    @abstractmethod
    def learns_differences(spec: ModelSpec[Any], config: RunConfig) -> bool:
        """Return whether a model learns the same of targets to which a constant is added, but for it.

        The spec may lack the user's functions, whose import paths its options then have.
        """

    @classmethod
    def training_keys(cls, model: str, params: Mapping[str, Any]) -> Collection[str]:  # noqa: ARG003
        """Return the keys that have an effect; `n_estimators` replaces `epochs` and `max_steps`."""
        return {"device", "scheduler"} | (set() if params.get("n_estimators") else {"epochs", "max_steps"})

    @staticmethod
    def step_work(config: RunConfig, info: DataInfo, plan: Plan, model: Any = None) -> float | None:  # noqa: ARG004
        """Return the work of a round: some operations for each cell, for each of several classes."""
        return rounds_work(info, plan)
