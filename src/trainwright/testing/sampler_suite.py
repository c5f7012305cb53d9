"""The contract suite of samplers: subclass it in a test file, and set `cls` and, if needed, `params`.

Run it on a machine where the library of the sampler is installed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from trainwright.samplers.base import Observation, Parameter, Sampler, Space, exists
from trainwright.types import Mode

SPACE: Space = [
    Parameter("rate", 1e-4, 1.0, log=True),
    Parameter("share", -0.5, 0.5),
    Parameter("stepped", 0.0, 1.0, step=0.25),
    Parameter("layers", 1, 5, integer=True),
    Parameter("width", 8, 512, log=True, integer=True),
    Parameter("kind", choices=["a", "b", None, True, 1, 2.5, [64, 32], {"x": 1}]),
    Parameter("of_a", 0.0, 1.0, when={"kind": ["a", "b"]}),
]
GRID: Space = [
    Parameter("layers", 1, 3, integer=True),
    Parameter("kind", choices=["a", "b", [64]]),
    Parameter("of_a", 0.0, 1.0, step=0.5, when={"kind": ["a"]}),
]


class SamplerSuite:
    """The contract of samplers; each test is one guarantee of `samplers.base`."""

    cls: ClassVar[type[Sampler]]
    params: ClassVar[Mapping[str, Any]] = {}
    space: ClassVar[Space] = SPACE
    is_seeded: ClassVar[bool] = True
    trials: ClassVar[int] = 18

    def sampler(self, seed: int = 0, mode: Mode = "min", space: Space | None = None) -> Sampler:
        return self.cls(self.cls.Params(**self.params), space or self.space, mode, seed)

    def study(self, sampler: Sampler, horizon: int = 1) -> list[Observation]:
        """Return the trials of a study, of which the last ones before a trial are not known to it."""
        done: list[Observation] = []
        for number in range(min(self.trials, sampler.size or self.trials)):
            known = [
                one if i <= number - horizon else Observation(one.params, "running")
                for i, one in enumerate(done)
            ]
            done.append(self.ended(number, sampler.propose(number, known)))
        return done

    def ended(self, number: int, params: Mapping[str, Any]) -> Observation:
        """Return what becomes of a trial: most are completed, some pruned or failed."""
        if number % 7 == 3:
            return Observation(params, "failed")
        value = float(params.get("layers", 0.0)) + (0.5 if params.get("kind") == "a" else 0.0)
        curve = [(1, value + 1.0), (2, math.nan if number == 4 else value)]
        return Observation(params, "pruned" if number % 7 == 5 else "completed", value, curve)

    def test_proposals_are_in_the_space(self) -> None:
        for trial in self.study(self.sampler()):
            assert list(trial.params) == [p.key for p in self.space if exists(p, trial.params)]
            for parameter in self.space:
                if parameter.key in trial.params:
                    self.check(parameter, trial.params[parameter.key])

    def check(self, parameter: Parameter, value: Any) -> None:
        """Check one value of a proposal."""
        if parameter.choices is not None:
            assert any(value == choice and type(value) is type(choice) for choice in parameter.choices)
            return
        assert parameter.low <= value <= parameter.high
        assert type(value) is (int if parameter.integer else float)
        if parameter.step:
            steps = (value - parameter.low) / parameter.step
            assert steps == pytest.approx(round(steps))

    def test_a_new_sampler_proposes_the_same(self) -> None:
        """A study that is resumed makes a new sampler, and asks for trials that are not the first."""
        trials = self.study(self.sampler())
        for number in (0, len(trials) - 1, 1):
            assert self.sampler().propose(number, trials[:number]) == trials[number].params

    def test_what_is_not_known_changes_nothing(self) -> None:
        trials = self.study(self.sampler(), horizon=4)
        number = len(trials) - 1
        known = [
            trial if i <= number - 4 else Observation(trial.params, "running")
            for i, trial in enumerate(trials[:number])
        ]
        assert self.sampler().propose(number, known) == trials[number].params

    def test_the_seed_matters(self) -> None:
        both = [[trial.params for trial in self.study(self.sampler(seed))] for seed in (0, 1)]
        assert (both[0] != both[1]) == self.is_seeded

    def test_trials_differ(self) -> None:
        """Most of them: one that learns may come to the same point again."""
        trials = self.study(self.sampler(space=self.space[:2]) if self.is_seeded else self.sampler())
        assert len({repr(trial.params) for trial in trials}) > len(trials) // 2

    def test_both_modes(self) -> None:
        trials: Sequence[Observation] = self.study(self.sampler(mode="max"))
        assert trials
