"""Estimators that follow scikit-learn's conventions, as the boosting libraries provide them."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from trainwright.config.schema import RunConfig
from trainwright.config.spellings import METRICS, Spellings
from trainwright.errors import ModelError
from trainwright.frameworks.base import ModelInputs
from trainwright.require import import_path

Options = TypeVar("Options", bound=BaseModel)


def estimator_of(config: RunConfig, model: Any = None) -> Any:
    """Return the estimator that a run's model is; None if `config.model.params` are all there is to it.

    It is `model`, which the user passed in Python, else one of the class that `config.model.type` imports,
    constructed with `config.model.params`.

    Raises:
        InputError: The import path does not exist.
        ModelError: The class does not accept these options.
    """
    if model is not None or ":" not in config.model.type:
        return model
    cls = import_path(config.model.type)
    try:
        return cls(**config.model.params)
    except TypeError as error:
        raise ModelError(f"model {config.model.type}: {error}") from error


def takes_targets_first(objective: Any) -> bool:
    """Return whether a function of the user's is called as estimators call it: `f(y_true, y_pred)` of arrays.

    Boosters themselves call it with the predictions and their own form of the data.
    """
    return objective is not None and next(iter(signature(objective).parameters), "") == "y_true"


def task_of(model: Any, tasks: Mapping[type, str], framework: str) -> str:
    """Return the task of an estimator.

    Args:
        model: The estimator.
        tasks: Estimator classes -> their tasks.
        framework: Name of the framework, for the message.

    Raises:
        ModelError: The estimator is of none of these classes.
    """
    if (task := next((task for cls, task in tasks.items() if isinstance(model, cls)), None)) is None:
        known = ", ".join(cls.__name__ for cls in tasks)
        raise ModelError(
            f"model {type(model).__name__} is not supported; use {known}, or set model.type: {framework}"
        )
    return task


# An estimator of classes may also do labels, if its framework does.
_TASKS_OF = {"classification": ("classification", "multilabel")}


def check_estimator(inputs: ModelInputs, task: str | None) -> None:
    """Check that an estimator fits the task of the data.

    Args:
        inputs: The inputs of the model.
        task: The task of the estimator; None if it fits any.

    Raises:
        ModelError: The estimator is for another task than the data.
    """
    if task is not None and inputs.info.task not in _TASKS_OF.get(task, (task,)):
        raise ModelError(
            f"model {inputs.config.model.type} is for {task}, but the data are for {inputs.info.task}; "
            f"use another model, or set data.task: {task}"
        )


def translated_options(
    name: str, given: Mapping[str, Any], spellings: Spellings, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the options of an estimator under our names, without what has no effect or sets something else.

    Args:
        name: Name of the estimator, for the message.
        given: The options by name; None are not set.
        spellings: What the names mean.
        defaults: The options of an estimator that was given none: an alias comes before them.

    Raises:
        ModelError: An option cannot be used, or two spellings of one are given.
    """
    dropped, options, origins = {*spellings.settings, *spellings.unused}, dict[str, Any](), dict[str, str]()
    for key, value in given.items():
        option = spellings.aliases.get(key, key)
        if value is None or key in dropped or _refused(name, key, value, spellings):
            continue
        if option in METRICS and isinstance(value, str | list) and spellings.metrics_meant(value) is not None:
            continue
        if (other := origins.get(option)) is not None:
            if _is_default(key, value, defaults):
                continue
            if not _is_default(other, options[option], defaults):
                raise ModelError(f"{name}: {other} and {key} are the same option; keep one")
        options[option], origins[option] = value, key
    for option, meanings in spellings.values.items():
        if isinstance(options.get(option), str) and options[option] in meanings:
            target, value = meanings[options.pop(option)]
            options |= {} if "." in target else {target: value}
    return options


def _refused(name: str, key: str, value: Any, spellings: Spellings) -> bool:
    """Return whether an option changes nothing; raise a ModelError if it cannot be used."""
    if (refusal := spellings.refused.get(key)) is None:
        return False
    if refusal.changes_nothing(value):
        return True
    raise ModelError(f"{name}({key}=...) cannot be used in a run: {refusal.reason}")


def _is_default(key: str, value: Any, defaults: Mapping[str, Any] | None) -> bool:
    return defaults is not None and key in defaults and bool(defaults[key] == value)


def validated(options: type[Options], name: str, given: Mapping[str, Any]) -> Options:
    """Validate the options of an estimator as those of a config are validated.

    Args:
        options: The pydantic model of the options.
        name: Name of the estimator, for the message.
        given: The options by name.

    Raises:
        ModelError: Some options are invalid; the message names each of them.
    """
    try:
        return options.model_validate({key: _plain(value) for key, value in given.items()})
    except ValidationError as error:
        listed = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or name}: {problem['msg']}" for problem in error.errors()
        )
        raise ModelError(f"model {name}: {listed}") from error


def _plain(value: Any) -> Any:
    """Return an option as a config would hold it: without NumPy scalars and tuples; keys are text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value
