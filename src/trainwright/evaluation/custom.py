"""A user's own metrics, which a config names by their import paths: `mine:profit`.

A function is called as scikit-learn's metrics are, with targets and predictions, and returns one number.
`Task.answers` has their form. Probabilities go to a parameter that is called `y_score` or the like, the
weights of the rows to `sample_weight`, and the positive one of two labels to `pos_label`. A class of objects
that are called so is constructed without arguments. A class or an object with `update` and `compute` adds up
by itself, from what the model returns: see `tasks.support.accumulators`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from trainwright.config.metrics import custom_name
from trainwright.errors import InputError, ModelError
from trainwright.frameworks.base import Library
from trainwright.plugins import adapters
from trainwright.require import home_of, import_path, is_class_of_functions, kind_of
from trainwright.tasks.base import Metric, Scores, Task
from trainwright.tasks.support.accumulators import Accumulator, is_accumulator
from trainwright.types import Mode

PROBABILITIES = ("y_score", "y_proba", "y_prob", "proba")  # parameters that get probabilities
_MORE = ("sample_weight", "pos_label")  # parameters that get what there is of them


def custom_metric(path: str, task: type[Task] | None = None) -> Metric:
    """Import a metric; no function is called.

    Args:
        path: The import path, `package.module:function`.
        task: The task whose predictions it is to get; None: not known.

    Raises:
        InputError: It cannot be imported, is no function of targets and predictions, or the task keeps no
            predictions to give it.
    """
    function = _imported(path)
    if is_accumulator(function):
        return Metric(_mode(function), f"your own: {path}", _not_by_row)
    given = _arguments(path, function)
    if task is not None and task.sums:
        raise InputError(
            f"evaluation.metrics: {path} is a function of all predictions, and {task.name} keeps only sums "
            f"over each row ({', '.join(task.sums)}); name a class with update(self, outputs, targets) and "
            "compute(self), which adds up by itself"
        )
    if task is not None and "probabilities" in given.values() and not task.gives_probabilities:
        raise InputError(
            f"evaluation.metrics: {path} asks for probabilities, and {task.name} has none; "
            "name a metric of predictions"
        )
    return Metric(_mode(function), f"your own: {path}", _checked(path, function, given))


def accumulator(path: str) -> Accumulator | None:
    """Import a metric that adds up by itself; None for a function of all predictions.

    Raises:
        InputError: It cannot be imported, or not be constructed.
    """
    value = _imported(path)
    return Accumulator(path, custom_name(path), value) if is_accumulator(value) else None


def _imported(path: str) -> Any:
    """Import a metric; construct a class of objects that are called, as functions are."""
    try:
        metric = import_path(path)
    except InputError as error:
        raise InputError(f"evaluation.metrics: {error}") from error
    if is_accumulator(metric) or not is_class_of_functions(metric):
        return metric
    try:
        return metric()
    except Exception as error:
        raise InputError(
            f"evaluation.metrics: {path} cannot be constructed without arguments ({error}); name a "
            "function of your own that calls it"
        ) from error


def _not_by_row(scores: Scores) -> float:  # noqa: ARG001 - predictions are not what it is computed from
    return float("nan")


def _arguments(path: str, function: Any) -> dict[str, str]:
    """Return what the parameters get that are filled, by name: the targets, the predictions, probabilities.

    Raises:
        InputError: It cannot be called with targets and predictions.
    """
    wrong = (
        f"evaluation.metrics: {path} must be a function of (targets, predictions), or a class with __call__, "
        "or with update and compute"
    )
    if not callable(function) or isinstance(function, type):
        raise InputError(f"{wrong}, and is {kind_of(function)}")
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise InputError(f"{wrong}; its parameters cannot be read") from error
    positional = [
        one.name for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    if any(one.kind is one.VAR_POSITIONAL for one in parameters):
        positional += ["*"] * 2
    given = dict(zip(positional[:2], ("targets", "predictions"), strict=False))
    given |= {one.name: "probabilities" for one in parameters if one.name in PROBABILITIES}
    given |= {one.name: one.name for one in parameters if one.name in _MORE}
    needed = (
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    )
    if missing := [name for name in needed if name not in given]:
        raise InputError(f"{wrong}; it also needs {', '.join(missing)}: wrap it in a function of your own")
    if len(positional) < 2:
        raise InputError(f"{wrong}, and takes {len(positional)} of them")
    return given


def _mode(function: Any) -> Mode | None:
    """Return whether lower or higher is better, as far as the function says so."""
    mode = getattr(function, "mode", None)
    if mode in ("min", "max"):
        return "min" if mode == "min" else "max"
    greater = getattr(function, "greater_is_better", getattr(function, "higher_is_better", None))
    if isinstance(greater, bool):
        return "max" if greater else "min"
    name, known = (
        str(getattr(function, "__name__", "")),
        [one.metric_modes.items() for one in _libraries(function)],
    )
    return next((mode for modes in known for ending, mode in modes if name.endswith(ending)), None)


def _is_of_a_library(function: Any) -> bool:
    return next(_libraries(function), None) is not None


def _libraries(function: Any) -> Iterator[Library]:
    """Yield the libraries of frameworks that a function is from."""
    home = home_of(function).partition(".")[0]
    return (one.library for _, one in adapters("framework") if home in one.library.modules)


def _more(scores: Scores) -> dict[str, Any]:
    """Return the weights of the rows, and the positive of two classes, where there are any."""
    has_two = scores.labels is not None and len(scores.labels) == 2
    positive = scores.labels[scores.positive] if scores.labels is not None and has_two else None
    plain = positive.item() if isinstance(positive, np.generic) else positive
    return {"sample_weight": scores.weights, "pos_label": plain}


def _described(value: Any) -> str:
    return f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else repr(value)


def _checked(path: str, function: Callable[..., Any], given: dict[str, str]) -> Callable[[Scores], float]:
    """Return the metric as a function of scores, which checks what the user's function returns."""
    # Without `pos_label`, a library's own metrics take the second label in order for the positive one.
    of_second = "pos_label" not in given and _is_of_a_library(function)

    def metric(scores: Scores) -> float:
        scores = replace(scores, positive=1) if of_second else scores
        values = scores.task.answers(scores)._asdict() | _more(scores)
        first, second, *others = (values.get(what) for what in given.values())
        named = {
            name: value for name, value in zip(list(given)[2:], others, strict=True) if value is not None
        }
        try:
            value = function(first, second, **named)
        except Exception as error:
            got = ", ".join(f"{name}: {_described(values.get(what))}" for name, what in given.items())
            lacks = "probabilities" not in given.values() and values["probabilities"] is not None
            scored = "; a parameter called `y_score` gets the probabilities" if lacks else ""
            raise ModelError(
                f"evaluation.metrics: {path} failed: {type(error).__name__}: {error}\n"
                f"it was called with NumPy arrays ({got}); only losses get tensors{scored}"
            ) from error
        if isinstance(value, bool | np.bool_ | str) or np.ndim(value) or not np.isrealobj(value):
            what = f"of shape {np.shape(value)}" if np.ndim(value) else f"{value!r}"
            raise ModelError(f"evaluation.metrics: {path} returned a value {what}; it must return one number")
        try:
            return float(value)
        except (TypeError, ValueError) as error:
            raise ModelError(
                f"evaluation.metrics: {path} returned {type(value).__name__}; it must return one number"
            ) from error

    return metric
