"""The space of a study: read from the config, and checked by loading configs from it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainyard.errors import ConfigError, Problem
from trainyard.samplers.base import Parameter, Space

log = logging.getLogger(__name__)

Load = Callable[[Mapping[str, Any]], Any]  # loads the user's config with overrides by dotted key
_KEYS = {"low", "high", "log", "step", "choices", "when"}
_EXAMPLE = "{low: 1e-5, high: 1e-1, log: true}, or a list of choices"


def read_space(space: Mapping[str, Any]) -> Space:
    """Return the parameters of `tuning.space`, each after those that it depends on.

    Raises:
        ConfigError: A range or a condition is wrong; all problems are listed.
    """
    if not space:
        raise ConfigError(
            [
                Problem(
                    "is empty; for example, {training.learning_rate: [1e-3, 1e-2]}",
                    "tuning.space",
                )
            ]
        )
    problems: list[Problem] = []
    parameters = {}
    for key, spec in _flat(space).items():
        try:
            parameters[key] = _parameter(key, spec)
        except ValueError as error:
            problems.append(Problem(str(error), f"tuning.space.{key}"))
    if not problems:
        problems = [
            Problem(message, f"tuning.space.{key}.when")
            for key, parameter in parameters.items()
            for message in _condition_problems(parameter, parameters)
        ]
    if problems:
        raise ConfigError(problems)
    return _sorted(parameters)


def _flat(space: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return a space by dotted key; sections may be nested, as those of the command line are."""
    flat: dict[str, Any] = {}
    for key, spec in space.items():
        at = f"{path}.{key}" if path else str(key)
        is_section = isinstance(spec, Mapping) and spec and not _KEYS.intersection(spec)
        if is_section and all(isinstance(inner, list | Mapping) for inner in spec.values()):
            flat |= _flat(spec, at)
        else:
            flat[at] = spec
    return flat


def _parameter(key: str, spec: Any) -> Parameter:
    if isinstance(spec, list):
        return Parameter(key, choices=_choices(spec))
    if not isinstance(spec, Mapping):
        raise ValueError(f"expected {_EXAMPLE}; got {spec!r}")
    if unknown := sorted(set(spec) - _KEYS):
        raise ValueError(
            f"there is no {unknown[0]!r}; a range has low, high, log and step (whole numbers if low "
            "and high are), a list has choices, and each may have when"
        )
    when = _when(spec.get("when"))
    if "choices" in spec:
        if extra := sorted(set(spec) & {"low", "high", "log", "step"}):
            raise ValueError(f"choices and {extra[0]} are both given; keep one")
        return Parameter(key, choices=_choices(spec["choices"]), when=when)
    return _range(key, spec, when)


def _choices(choices: Any) -> Sequence[Any]:
    if not isinstance(choices, list) or not choices:
        raise ValueError("the list of choices is empty; give at least one value")
    if len({repr(choice) for choice in choices}) < len(choices):
        raise ValueError("a choice is given twice")
    return choices


def _range(key: str, spec: Mapping[str, Any], when: Mapping[str, Sequence[Any]]) -> Parameter:
    for name in ("low", "high"):
        if spec.get(name) is None:
            raise ValueError(f"has no {name}; expected {_EXAMPLE}")
    numbers = [spec[name] for name in ("low", "high", "step") if spec.get(name) is not None]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ValueError(f"low, high and step are numbers; got {number!r}")
    low, high, step, log = spec["low"], spec["high"], spec.get("step"), spec.get("log", False)
    if not isinstance(log, bool):
        raise ValueError(f"log is true or false; got {log!r}")
    if low > high:
        raise ValueError(f"the range is empty: low is {low:g}, high is {high:g}; swap them")
    if log and low <= 0:
        raise ValueError(f"log: true needs a low above 0; got {low:g}")
    if log and step is not None:
        raise ValueError("log and step are both given; keep one")
    if step is not None and step <= 0:
        raise ValueError(f"step must be above 0; got {step:g}")
    integer = all(isinstance(number, int) for number in numbers)
    return Parameter(key, low, high, log, step, integer, when=when)


def _when(when: Any) -> Mapping[str, Sequence[Any]]:
    if when is None:
        return {}
    if not isinstance(when, Mapping) or not when:
        raise ValueError("when takes other parameters of the space and their values, as {model.type: mlp}")
    return {str(key): value if isinstance(value, list) else [value] for key, value in when.items()}


def _condition_problems(parameter: Parameter, others: Mapping[str, Parameter]) -> Sequence[str]:
    problems = []
    for key, values in parameter.when.items():
        other = others.get(key)
        if other is None:
            problems.append(f"{key} is not in the space, which has {', '.join(sorted(others))}")
        elif key == parameter.key or _depends(other, parameter.key, others):
            problems.append(f"{parameter.key} depends on itself, by {key}")
        elif not any(_can_be(other, value) for value in values):
            problems.append(f"never holds: {key} is never {' or '.join(map(repr, values))}")
    return problems


def _depends(parameter: Parameter, key: str, others: Mapping[str, Parameter], depth: int = 0) -> bool:
    return depth <= len(others) and any(
        name == key or (name in others and _depends(others[name], key, others, depth + 1))
        for name in parameter.when
    )


def _can_be(parameter: Parameter, value: Any) -> bool:
    if parameter.choices is not None:
        return value in parameter.choices
    return isinstance(value, int | float) and parameter.low <= value <= parameter.high


def _sorted(parameters: Mapping[str, Parameter]) -> Space:
    placed: dict[str, Parameter] = {}
    while len(placed) < len(parameters):
        placed |= {
            key: parameter
            for key, parameter in parameters.items()
            if key not in placed and all(name in placed for name in parameter.when)
        }
    return list(placed.values())


def check_space(space: Space, load: Load) -> None:
    """Check that the config takes every choice, and both ends of every range; warn of those without effect.

    Args:
        space: The parameters.
        load: Loads the config with some of them, as a `StudyConfig`.

    Raises:
        ConfigError: It does not take a key or a value; each is named once.
    """
    problems: dict[str, Problem] = {}
    for parameter in space:
        ends = [parameter.low, parameter.high] if parameter.choices is None else parameter.choices
        without = _with_conditions(parameter, space)
        unused: list[list[str]] = []
        for value in ends:
            try:
                own = set(load(without | {parameter.key: value}).resolved.unused)
                unused.append(sorted(own.difference(load(without).resolved.unused)) if own else [])
            except ConfigError as error:
                for problem in error.problems:
                    message = problem.message if problem.path == parameter.key else str(problem)
                    at = f"tuning.space.{parameter.key}"
                    problems.setdefault(at, Problem(f"{value!r}: {message}", at))
        if not _has_effect(parameter, space, unused):
            why = unused[0][-1].partition(": ")[2]
            log.warning("tuning.space.%s: %s; leave it out: it changes no trial", parameter.key, why)
    if problems:
        raise ConfigError(list(problems.values()))


def _has_effect(parameter: Parameter, space: Space, unused: Sequence[Sequence[str]]) -> bool:
    """Return whether a parameter has an effect with one of its values, as far as can be told.

    Under another model of the space it may have one.

    Args:
        parameter: The parameter.
        space: All parameters.
        unused: For each of its values, the lines on what then has no effect.
    """
    models = {"model", "model.type"} & {other.key for other in space} - parameter.when.keys()
    return bool(models) or not (unused and all(unused))


def _with_conditions(parameter: Parameter, space: Space) -> dict[str, Any]:
    """Return values of other parameters with which this one exists."""
    by_key = {other.key: other for other in space}
    params: dict[str, Any] = {}
    for key, values in parameter.when.items():
        params |= _with_conditions(by_key[key], space)
        params[key] = next(value for value in values if _can_be(by_key[key], value))
    return params
