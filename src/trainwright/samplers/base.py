"""The contract of samplers: from what is known of earlier trials to the parameters of the next one.

A sampler is made from the space and a seed, and proposes the parameters of one trial at a time. A proposal is
a pure function of these, the trial's number, and the trials that it is given: a study that is resumed makes
a new sampler, and gets the same proposals. The library of an engine is imported when the sampler is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from pydantic import BaseModel

from trainwright.records.trials import TrialStatus
from trainwright.types import Mode


class Observation(NamedTuple):
    """An earlier trial, as far as a proposal may know of it.

    Attributes:
        params: Its parameters, by dotted key.
        status: `running`, if its result may not be known yet.
        value: The value of the metric; None if it has none.
        curve: The metric at each evaluation, as (step, value).
        values: The values of all metrics, where there are several.
        violations: How far each constraint is exceeded, by its name; 0 or less where it holds.
    """

    params: Mapping[str, Any]
    status: TrialStatus
    value: float | None = None
    curve: Sequence[tuple[int, float]] = ()
    values: Sequence[float] = ()
    violations: Mapping[str, float] = {}


@dataclass(frozen=True)
class Parameter:
    """A parameter of the space: a range of numbers from `low` to `high`, both included, or a list of choices.

    `log` draws from the logarithms, `step` keeps to multiples of it above `low`, `integer` to whole numbers.
    The parameter exists only in trials whose other parameters have one of the values in `when`.
    """

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    integer: bool = False
    choices: Sequence[Any] | None = None
    when: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def holds(self, value: Any) -> bool:
        """Return whether a value is one of the choices, or a number."""
        if self.choices is not None:
            return value in self.choices
        return isinstance(value, int | float) and not isinstance(value, bool)

    def at(self, share: float) -> Any:
        """Return the value at a fraction of the range, 0 <= share < 1; all values cover equal parts of it."""
        share = float(share)  # a scalar of NumPy would make a value that no config can hold
        if self.choices is not None:
            return self.choices[int(share * len(self.choices))]
        step = self.step or (1 if self.integer else None)
        if self.log:
            # A whole number stands for the interval of half a unit to both sides.
            half = 0.5 if self.integer else 0.0
            low, high = np.log(self.low - half), np.log(self.high + half)
            value = float(np.exp(low + share * (high - low)))
            value = min(max(value, self.low), self.high)
            return round(value) if self.integer else value
        if step is None:
            return self.low + share * (self.high - self.low)
        count = int(np.floor((self.high - self.low) / step + 1e-9)) + 1
        value = self.low + step * int(share * count)
        return round(value) if self.integer else value


Modes = Mode | Sequence[Mode]  # of one metric, or of several
Space = Sequence[Parameter]  # each after those that its `when` names


def drawn(space: Space, shares: Iterator[float]) -> dict[str, Any]:
    """Return parameters at shares of their ranges, one share for each, leaving out what does not exist."""
    params: dict[str, Any] = {}
    for parameter, share in zip(space, shares, strict=False):
        if exists(parameter, params):
            params[parameter.key] = parameter.at(share)
    return params


def exists(parameter: Parameter, params: Mapping[str, Any]) -> bool:
    """Return whether a parameter exists, given the values of those before it."""
    return all(key in params and params[key] in values for key, values in parameter.when.items())


def trial_seed(seed: int, number: int) -> int:
    """Return the seed of a trial's proposal, 32 bits: a hash of both, so that neighbors are independent."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


class Sampler(Protocol):
    """An engine that proposes parameters.

    One that cannot search by several metrics, heed constraints, or learn from the trials of another study
    says so in a class attribute `limits`, which holds `metrics`, `constraints`, `earlier` or several of them.
    Other names that people use for it are in a class attribute `aliases`, if it has some.
    """

    Params: ClassVar[type[BaseModel]]

    def __init__(self, params: BaseModel, space: Space, mode: Modes, seed: int) -> None: ...

    @property
    def size(self) -> int | None:
        """The number of distinct proposals, if they are finite and tried in order; None: unlimited."""

    def propose(self, number: int, known: Sequence[Observation]) -> dict[str, Any]:
        """Return the parameters of a trial, by dotted key.

        Args:
            number: The number of the trial, from 0.
            known: The trials before it: those of an earlier study, all ended, if this one started from it;
                then `number` of its own.
        """
