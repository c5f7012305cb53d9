"""The definition of a model, read from a config's options or from an estimator of a library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from trainwright.config.schema import RunConfig
from trainwright.config.spellings import METRICS, Spellings
from trainwright.errors import InputError, ModelError
from trainwright.frameworks.base import ModelInputs
from trainwright.require import import_path

Options = TypeVar("Options", bound=BaseModel)


@dataclass(frozen=True)
class ModelSpec(Generic[Options]):
    """The options of a model, and the user's functions or objects for objective and metric.

    `task` is the estimator's, or None without one.
    """

    params: Options
    objective: Any = None
    metric: Any = None
    task: str | None = None


def model_spec(
    config: RunConfig,
    model: Any,
    options: type[Options],
    of_estimator: Callable[[Any], ModelSpec[Options]],
    custom: Callable[[str, str | None], Any],
) -> ModelSpec[Options]:
    """Return the spec of a run's model: of its estimator (see `estimator_of`), or of its options.

    Args:
        config: The resolved config.
        model: The object that the user passed in Python, or None.
        options: The pydantic model of the options.
        of_estimator: Returns the spec of an estimator.
        custom: Returns the user's function or object of the options `objective` and `metric`, or None.

    Raises:
        ModelError: An option is wrong, or cannot be used in a run.
    """
    if (estimator := estimator_of(config, model)) is not None:
        return of_estimator(estimator)
    params: Any = options.model_validate(dict(config.model.params))
    return ModelSpec(params, custom("objective", params.objective), custom("metric", params.metric))


def import_custom(option: str, path: str, form: str) -> Any:
    """Import what the user gives for an option.

    Args:
        option: `objective` or `metric`.
        path: The option's value.
        form: `function` or `Class`, for the message.

    Raises:
        ModelError: The path does not lead to anything.
    """
    if ":" not in path:
        raise ModelError(
            f"model.params.{option}: {path!r} is not of the form package.module:{form}; "
            "use evaluation.metrics"
        )
    try:
        return import_path(path)
    except InputError as error:
        raise ModelError(f"model.params.{option}: {error}") from error


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


def booster_objective(objective: Any, *, of_estimator: bool = False) -> Any:
    """Return an objective as boosters call it: with the predictions, and their own form of the data.

    One of an estimator, or whose first argument is `y_true`, is called with arrays: targets, predictions.

    Args:
        objective: A function of the user's, or a name or None, for which None is returned.
        of_estimator: Whether an estimator has it.
    """
    if not callable(objective):
        return None
    if not of_estimator and next(iter(signature(objective).parameters), "") != "y_true":
        return objective
    return lambda predictions, data: objective(data.get_label(), predictions)


def task_of(model: Any, classifier: type, regressor: type, framework: str) -> str:
    """Return the task of an estimator.

    Args:
        model: The estimator.
        classifier: The library's class for classification.
        regressor: The library's class for regression.
        framework: Name of the framework, for the message.

    Raises:
        ModelError: The estimator is of neither class.
    """
    if isinstance(model, classifier):
        return "classification"
    if isinstance(model, regressor):
        return "regression"
    known = f"{classifier.__name__}, {regressor.__name__}"
    raise ModelError(
        f"model {type(model).__name__} is not supported; use {known}, or set model.type: {framework}"
    )


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
