"""What a model is made from: the config's options, or an estimator of LightGBM's with options of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainyard.config.schema import RunConfig
from trainyard.frameworks.lightgbm.objective import Gradients, Metric, imported_function
from trainyard.frameworks.lightgbm.params import LightgbmParams
from trainyard.frameworks.support.estimators import imported, task_of, validated
from trainyard.require import require
from trainyard.types import Task

_UNUSED = {"n_jobs": "training.threads", "random_state": "experiment.seed"}
_NEUTRAL = {"importance_type", "verbosity", "verbose"}


@dataclass(frozen=True)
class Asked:
    """Options, and functions of the user's; `task` is what an estimator is for, `unused` its options that the run decides."""

    params: LightgbmParams
    gradients: Gradients | None = None
    metric: Metric | None = None
    task: Task | None = None
    unused: Sequence[str] = ()


def asked(config: RunConfig, model: Any = None) -> Asked:
    """What is asked for: by the estimator `model`, by that which `config.model.type` imports, or by the config's options.

    Raises:
        ModelError: it cannot be followed.
    """
    if model is None and ":" in config.model.type:
        model = imported(config)
    if model is not None:
        return _of_estimator(model)
    params = LightgbmParams.model_validate(dict(config.model.params))
    return Asked(
        params, imported_function("objective", params.objective), imported_function("metric", params.metric)
    )


def _of_estimator(model: Any) -> Asked:
    library, name = require("lightgbm", "lightgbm"), type(model).__name__
    tasks: Mapping[type, Task] = {
        library.LGBMClassifier: "classification",
        library.LGBMRegressor: "regression",
    }
    task = task_of(model, tasks, "lightgbm")
    given = {
        key: value for key, value in model.get_params().items() if value is not None and key not in _NEUTRAL
    }
    unused = [
        f"{key} ({instead} decides)" for key, instead in _UNUSED.items() if given.pop(key, None) is not None
    ]
    boosting, objective = given.pop("boosting_type", "gbdt"), given.pop("objective", None)
    given |= {"data_sample_strategy": "goss"} if boosting == "goss" else {"boosting": boosting}
    if isinstance(objective, str):
        given["objective"] = objective
    return Asked(validated(LightgbmParams, name, given), _of_targets(objective), task=task, unused=unused)


def _of_targets(objective: Any) -> Gradients | None:
    """An estimator's objective gets the targets first; a booster's the raw scores, and the dataset with the targets."""
    if not callable(objective):
        return None
    return lambda raw, dataset: objective(dataset.get_label(), raw)
