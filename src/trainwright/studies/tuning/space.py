"""The space of a study, as the config has it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from trainwright.errors import ConfigError, Problem
from trainwright.samplers.base import Parameter, Space

_KEYS = {"low", "high", "log", "step", "choices", "when"}
_LISTED = 6  # values that a message lists
# Sections and keys that are those of the study, or of its records: the same for all trials.
_OF_STUDY = ("tuning", "experiment.name", "checkpoint.metric", "checkpoint.mode", "tracking", "logging")
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
    if any(key == name or key.startswith(f"{name}.") for name in _OF_STUDY):
        raise ValueError("is the same for all trials of a study; leave it out of the space")
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
    if step is not None and step > high - low:
        raise ValueError(f"step {step:g} leads beyond the range of {low:g} to {high:g}; give a smaller one")
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
            way = f"write {key}.type" if f"{key}.type" in others else "add it there, or leave when out"
            problems.append(f"{key} is not in the space; {way}")
        elif key == parameter.key or _depends(other, parameter.key, others):
            problems.append(f"{parameter.key} depends on itself, by {key}; leave one of the conditions out")
        elif not any(can_be(other, value) for value in values):
            never = " or ".join(map(repr, values))
            problems.append(f"never holds: {key} is never {never}; it is {_values(other)}")
    return problems


def _depends(parameter: Parameter, key: str, others: Mapping[str, Parameter], depth: int = 0) -> bool:
    return depth <= len(others) and any(
        name == key or (name in others and _depends(others[name], key, others, depth + 1))
        for name in parameter.when
    )


def _values(parameter: Parameter) -> str:
    if parameter.choices is None:
        return f"from {parameter.low:g} to {parameter.high:g}"
    listed = " or ".join(map(repr, parameter.choices[:_LISTED]))
    return listed + (" ..." if len(parameter.choices) > _LISTED else "")


def can_be(parameter: Parameter, value: Any) -> bool:
    """Return whether a parameter can have a value."""
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
