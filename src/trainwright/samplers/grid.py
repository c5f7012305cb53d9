"""Grid search."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from trainwright.config.fields import Section
from trainwright.errors import ConfigError, Problem
from trainwright.samplers.base import Modes, Observation, Parameter, Space, exists

_MOST = 1_000_000  # combinations of a grid


class GridParams(Section):
    """A grid has no options: ranges need a `step`, or are of whole numbers."""


class GridSampler:
    """Goes through all combinations, the last parameter first."""

    Params: ClassVar[type[BaseModel]] = GridParams
    aliases = ("grid_search", "GridSampler")
    limits = ("earlier",)

    def __init__(self, params: BaseModel, space: Space, mode: Modes, seed: int) -> None:  # noqa: ARG002
        self._values = {parameter.key: _all_values(parameter) for parameter in space}
        total = math.prod(len(values) for values in self._values.values())
        if total > _MOST:
            what = f"the grid has {total} combinations; give fewer values, or another sampler"
            raise ConfigError([Problem(what, "tuning.space")])
        self._combinations = list(_combinations(space, self._values, {}))

    @property
    def size(self) -> int:
        """The number of combinations."""
        return len(self._combinations)

    def propose(self, number: int, known: Sequence[Observation]) -> dict[str, Any]:  # noqa: ARG002
        """Return the parameters of a trial; see `Sampler.propose`."""
        return dict(self._combinations[number])


def _all_values(parameter: Parameter) -> Sequence[Any]:
    if parameter.choices is not None:
        return parameter.choices
    step = parameter.step or (1 if parameter.integer else None)
    if step is None or parameter.log:
        what = "a grid needs single values; give a list of them, or a range with a step"
        raise ConfigError([Problem(what, f"tuning.space.{parameter.key}")])
    count = math.floor((parameter.high - parameter.low) / step + 1e-9) + 1
    if count > _MOST:
        what = f"{count} values are too many for a grid; give a larger step"
        raise ConfigError([Problem(what, f"tuning.space.{parameter.key}")])
    return [parameter.at((i + 0.5) / count) for i in range(count)]


def _combinations(
    space: Space, values: Mapping[str, Sequence[Any]], params: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    if not space:
        yield params
        return
    first, rest = space[0], space[1:]
    if not exists(first, params):
        yield from _combinations(rest, values, params)
        return
    for value in values[first.key]:
        yield from _combinations(rest, values, params | {first.key: value})
