"""The definition of a model, read from a config's options or from a LightGBM estimator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainwright.config.schema import RunConfig
from trainwright.frameworks.lightgbm.objective import OF_VALUES, Gradients, Metric, imported_function
from trainwright.frameworks.lightgbm.params import LightgbmParams
from trainwright.frameworks.lightgbm.spellings import SPELLINGS
from trainwright.frameworks.support.estimators import (
    estimator_of,
    takes_targets_first,
    task_of,
    translated_options,
    validated,
)
from trainwright.require import require


@dataclass(frozen=True)
class ModelSpec:
    """The options of a model, and the user's functions for gradients and metric.

    `task` is the estimator's, or None without one.
    """

    params: LightgbmParams
    gradients: Gradients | None = None
    metric: Metric | None = None
    task: str | None = None


def model_spec(config: RunConfig, model: Any = None) -> ModelSpec:
    """Return the spec of a run's model: of its estimator (see `estimator_of`), or of its options.

    Raises:
        ModelError: An option is wrong, or cannot be used in a run.
    """
    if (estimator := estimator_of(config, model)) is not None:
        return _of_estimator(estimator)
    params = LightgbmParams.model_validate(dict(config.model.params))
    objective = imported_function("objective", params.objective)
    if takes_targets_first(objective):
        objective = _booster_objective(objective)
    return ModelSpec(params, objective, imported_function("metric", params.metric))


def learns_differences(config: RunConfig, model: Any = None) -> bool:
    """Return whether a model learns the same of targets to which a constant is added, but for this constant.

    Raises:
        ModelError: An option is wrong.
    """
    by_user = model is not None or ":" in config.model.type
    spec = model_spec(config, model) if by_user else None
    params = LightgbmParams.model_validate(dict(config.model.params)) if spec is None else spec.params
    has_functions = params.metric is not None or ":" in (params.objective or "")
    if spec is not None:
        has_functions |= spec.gradients is not None or spec.metric is not None
    return params.objective not in OF_VALUES and not has_functions and config.model.init_from is None


def _of_estimator(model: Any) -> ModelSpec:
    library, name = require("lightgbm", "lightgbm"), type(model).__name__
    tasks: Mapping[type, str] = {
        library.LGBMClassifier: "classification",
        library.LGBMRegressor: "regression",
    }
    task = task_of(model, tasks, "lightgbm")
    options = translated_options(name, model.get_params(), SPELLINGS, type(model)().get_params())
    objective = options.pop("objective", None)
    if isinstance(objective, str):
        options["objective"] = objective
    params = validated(LightgbmParams, name, options)
    return ModelSpec(params, _booster_objective(objective), task=task)


def _booster_objective(objective: Any) -> Gradients | None:
    """Convert an estimator's objective (targets, scores) to a booster's (scores, dataset)."""
    if not callable(objective):
        return None
    return lambda raw, dataset: objective(dataset.get_label(), raw)
