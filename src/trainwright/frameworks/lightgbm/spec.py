"""The definition of a model, read from a config's options or from a LightGBM estimator."""

from __future__ import annotations

from typing import Any

from trainwright.config.schema import RunConfig
from trainwright.errors import ModelError
from trainwright.frameworks.boosting import estimators
from trainwright.frameworks.boosting.estimators import (
    ModelSpec,
    booster_objective,
    import_custom,
    task_of,
    translated_options,
    validated,
)
from trainwright.frameworks.lightgbm.params import LightgbmParams
from trainwright.frameworks.lightgbm.spellings import SPELLINGS
from trainwright.require import kind_of, require

# Custom functions are as `lightgbm.train` takes them. Scores, gradients and hessians have shape (rows,), or
# (rows, classes) for three or more classes. The objective is called with (raw scores, dataset) and returns
# gradients and hessians; the metric with (predictions, dataset), returning name, value, higher is better.
LightgbmSpec = ModelSpec[LightgbmParams]

# Objectives that depend on targets themselves, and not on differences of outputs and targets alone.
_OF_VALUES = ("mape", "poisson", "gamma", "tweedie")


def model_spec(config: RunConfig, model: Any = None) -> LightgbmSpec:
    """Return the spec of a run's model; see `estimators.model_spec`."""
    return estimators.model_spec(config, model, LightgbmParams, _of_estimator, _custom)


def learns_differences(spec: LightgbmSpec, config: RunConfig) -> bool:
    """Return whether the objective is of differences, and nothing begins from values themselves."""
    objective = spec.params.objective
    has_functions = spec.objective is not None or ":" in (objective or "")
    has_functions |= spec.metric is not None or spec.params.metric is not None
    return objective not in _OF_VALUES and not has_functions and config.model.init_from is None


def _custom(option: str, path: str | None) -> Any:
    if path is None or (option == "objective" and ":" not in path):
        return None
    function = import_custom(option, path, "function")
    if not callable(function) or isinstance(function, type):
        raise ModelError(
            f"model.params.{option}: {path!r} is not a function but {kind_of(function)}; give a function"
        )
    return booster_objective(function) if option == "objective" else function


def _of_estimator(model: Any) -> LightgbmSpec:
    library, name = require("lightgbm", "lightgbm"), type(model).__name__
    task = task_of(model, library.LGBMClassifier, library.LGBMRegressor, "lightgbm")
    options = translated_options(name, model.get_params(), SPELLINGS, type(model)().get_params())
    objective = options.pop("objective", None)
    if isinstance(objective, str):
        options["objective"] = objective
    params = validated(LightgbmParams, name, options)
    return ModelSpec(params, booster_objective(objective, of_estimator=True), task=task)
