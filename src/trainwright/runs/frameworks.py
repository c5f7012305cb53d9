"""The framework of a config's model, and what it asks of the data."""

from __future__ import annotations

from contextlib import suppress
from types import FunctionType
from typing import Any, cast, get_type_hints

from trainwright import plugins
from trainwright.config.schema import RunConfig
from trainwright.errors import InputError, ModelError
from trainwright.frameworks.base import Framework
from trainwright.require import import_path
from trainwright.types import FEATURES, DataInfo, FeatureForm


def framework_name(config: RunConfig, model: Any = None) -> str:
    """Return the name of the framework that the model belongs to.

    Raises:
        ModelError: The model's import path leads to no class, or no framework knows it.
    """
    if model is not None:
        return plugins.framework_of_class(type(model))
    if config.model.framework:
        return config.model.framework
    if (known := plugins.framework_of(config.model.type)) is not None:
        return known
    if ":" in config.model.type:
        try:
            model_type = import_path(config.model.type)
        except InputError as error:
            raise ModelError(f"model.type: {error}") from error
        if isinstance(model_type, FunctionType):
            return _framework_of_function(config.model.type, model_type)
        return plugins.framework_of_class(model_type if isinstance(model_type, type) else type(model_type))
    raise ModelError(
        f"model.type: no installed framework has a model {config.model.type!r}; "
        "see `trainwright doctor`, or give package.module:Class"
    )


def copied_model(model: Any) -> Any:
    """Return a copy of a model object that was passed in Python; None of None. See `Framework.copied`."""
    if model is None:
        return None
    return plugins.adapter("framework", plugins.framework_of_class(type(model))).copied(model)


def own_copy(model: Any) -> Any:
    """Return an object that is trained in the place of a model object; None of None.

    It is the object itself only where training does not change that.

    Raises:
        InputError: The model cannot be copied.
    """
    copied = copied_model(model)
    if model is not None and copied is model:
        framework = plugins.adapter("framework", plugins.framework_of_class(type(model)))
        if framework.copied is not Framework.copied:
            raise InputError(
                f"model: an object of {type(model).__name__} cannot be copied, but each run of a study has "
                "its own; give the class, or a function that makes the model"
            )
    return copied


def _framework_of_function(path: str, function: FunctionType) -> str:
    """Return the framework of a function that makes a model: that of the class which it is annotated with.

    Raises:
        ModelError: It does not say what it returns.
    """
    try:
        made = get_type_hints(function).get("return")
    except Exception:  # annotations may name what is imported for type checkers only
        made = None
    if isinstance(made, type):
        with suppress(ModelError):
            return plugins.framework_of_class(made)
    raise ModelError(
        f"model {path} is a function: name its framework in model.framework: torch, keras or sklearn"
    )


def framework_for(config: RunConfig, info: DataInfo, model: Any = None) -> type[Framework]:
    """Return the framework of a model, if it can do what the data ask for.

    Raises:
        ModelError: It does not do this task, or takes only an array of features; or no framework knows the
            model.
    """
    name = framework_name(config, model)
    framework = cast(type[Framework], plugins.adapter("framework", name))
    _check_task(framework, name, config, info)
    virtual = config.distributed.virtual.sizes
    if virtual.size > 1 and framework.processes() is None:
        raise ModelError(
            f"distributed.virtual: {max(virtual)} given, but {name} computes a step as a whole; leave it out"
        )
    return framework


def _check_task(framework: type[Framework], name: str, config: RunConfig, info: DataInfo) -> None:
    """Check that a framework can do what the data ask for.

    Raises:
        ModelError: It does not do this task, or takes only an array of features.
    """
    model = f"model {config.model.type}" + (f" ({name})" if config.model.type != name else "")
    if framework.tasks is not None and info.task not in framework.tasks:
        advice = plugins.task_of(info.task).mistaken
        raise ModelError(
            f"{model} does not support {info.task}, the task of the data; {name} supports "
            f"{', '.join(framework.tasks)}, and torch supports every task{advice and f'; {advice}'}"
        )
    if not framework.capabilities.named_inputs and list(info.inputs) != [FEATURES]:
        raise ModelError(
            f"{model} takes one array of features, but the data have {', '.join(info.inputs)}; use a model "
            "of torch, or put them into one array"
        )


def form_for(config: RunConfig, model: Any = None) -> FeatureForm:
    """Return the form in which the model's framework wants the rows of tables.

    Raises:
        ModelError: No framework knows the model, or it cannot be constructed.
    """
    framework = cast(type[Framework], plugins.adapter("framework", framework_name(config, model)))
    return framework.feature_form(config, model)._replace(
        is_own=model is not None or ":" in config.model.type
    )
