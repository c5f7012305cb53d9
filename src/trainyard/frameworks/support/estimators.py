"""Estimators that keep to scikit-learn's conventions, as the libraries of boosted trees have them: made, told apart, and read."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from trainyard.config.schema import RunConfig
from trainyard.errors import ModelError
from trainyard.frameworks.base import FrameworkInputs
from trainyard.require import import_path
from trainyard.types import Task

log = logging.getLogger("trainyard")
Options = TypeVar("Options", bound=BaseModel)


def imported(config: RunConfig) -> Any:
    """The estimator that `config.model.type` imports, made with `config.model.params`.

    Raises:
        InputError: the path leads nowhere, or it does not take these options.
    """
    cls = import_path(config.model.type)
    try:
        return cls(**config.model.params)
    except TypeError as error:
        raise ModelError(f"model {config.model.type}: {error}") from error


def task_of(model: Any, tasks: Mapping[type, Task], framework: str) -> Task:
    """What an estimator is for, by its class.

    Raises:
        ModelError: it is none of those that `framework` trains.
    """
    if (task := next((task for cls, task in tasks.items() if isinstance(model, cls)), None)) is None:
        known = ", ".join(cls.__name__ for cls in tasks)
        raise ModelError(
            f"model {type(model).__name__} is not trained here: give {known} or model.type: {framework}"
        )
    return task


def check_estimator(inputs: FrameworkInputs, task: Task | None, unused: Sequence[str]) -> None:
    """Names in the log the options of an estimator that the run decides.

    Raises:
        ModelError: it is for `task`, and the data for another.
    """
    if unused:
        log.warning("model %s: without effect: %s", inputs.config.model.type, ", ".join(unused))
    if task is not None and task != inputs.info.task:
        raise ModelError(
            f"model {inputs.config.model.type} is for {task}, the data is one for {inputs.info.task}"
        )


def validated(options: type[Options], name: str, given: Mapping[str, Any]) -> Options:
    """The options of an estimator called `name`, checked as those of a config are.

    Raises:
        ModelError: some are wrong; each is named.
    """
    try:
        return options.model_validate({key: _plain(value) for key, value in given.items()})
    except ValidationError as error:
        listed = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or name}: {problem['msg']}" for problem in error.errors()
        )
        raise ModelError(f"model {name}: {listed}") from error


def _plain(value: Any) -> Any:
    """An option as a config would have it: no NumPy scalars, no tuples."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value
