"""Our space as Ray sees it: choices and ranges with steps are their indices there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ray import tune

from trainwright.samplers.base import Parameter, Space


def domains(space: Space) -> dict[str, Any]:
    """Return the search space of Ray, by dotted key."""
    return {parameter.key: _domain(parameter) for parameter in space}


def _domain(parameter: Parameter) -> Any:
    low, high = parameter.low, parameter.high
    if (count := _count(parameter)) is not None:
        return tune.choice([*range(count)]) if parameter.choices is not None else tune.randint(0, count)
    if parameter.integer:
        return (tune.lograndint if parameter.log else tune.randint)(int(low), int(high) + 1)
    return (tune.loguniform if parameter.log else tune.uniform)(low, high)


def mutation(parameter: Parameter) -> Any:
    """Return how population based training changes a parameter: to a neighbor, or by a factor."""
    count = _count(parameter)
    return [*range(count)] if count is not None else _domain(parameter)


def _count(parameter: Parameter) -> int | None:
    """Return the number of values of a parameter that Ray has by their indices."""
    if parameter.choices is not None:
        return len(parameter.choices)
    if parameter.step is None:
        return None
    return math.floor((parameter.high - parameter.low) / parameter.step + 1e-9) + 1


def encoded(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that Ray has for parameters of ours."""
    return {one.key: _encoded(one, params[one.key]) for one in space if one.key in params}


def _encoded(parameter: Parameter, value: Any) -> Any:
    if parameter.choices is not None:
        typed = [(type(choice), choice) for choice in parameter.choices]  # True is no 1
        return typed.index((type(value), value))
    if parameter.step is not None:
        return round((value - parameter.low) / parameter.step)
    return value


def decoded(space: Space, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that values of Ray's mean; Ray perturbs beyond the ends of a range."""
    return {one.key: _decoded(one, config[one.key]) for one in space if one.key in config}


def _decoded(parameter: Parameter, value: Any) -> Any:
    if parameter.choices is not None:
        return parameter.choices[int(value)]
    if parameter.step is not None:
        value = parameter.low + parameter.step * int(value)
    value = min(max(value, parameter.low), parameter.high)
    return round(value) if parameter.integer else float(value)
