"""The contract suite of tuners: subclass it in a test file, and set `cls` and, if needed, `params`.

Nothing is trained: a trial is a formula. Run it on a machine where the library of the tuner is installed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from trainwright.errors import TrainingError
from trainwright.samplers.base import Observation, Parameter, Space
from trainwright.samplers.random import RandomParams, RandomSampler
from trainwright.tuners.base import Point, Report, StartedTrial, Tuner
from trainwright.types import Mode

SPACE: Space = [
    Parameter("rate", 1e-4, 1.0, log=True),
    Parameter("stepped", 0.0, 1.0, step=0.25),
    Parameter("kind", choices=["a", None, True, 1, [64, 32]]),
]
EVALUATIONS = 4  # of a trial


def value_of(params: Mapping[str, Any], evaluation: int) -> float:
    """Return the metric of a trial after an evaluation: it becomes better, and less so for a low rate."""
    return float(params["rate"]) * (1.0 - 0.5**evaluation)


class FormulaTrainer:
    """Report a formula instead of training."""

    def go_on(self, trial: StartedTrial, after: Point) -> Report:
        at = Point(after.evaluation + 1, after.step + 10)
        if trial.number == 2:
            return Report(after, ended=True, error="it fails")
        return Report(at, value_of(trial.params, at.evaluation), ended=at.evaluation == EVALUATIONS)

    def commit(self, trial: StartedTrial, at: Point) -> Point:  # noqa: ARG002
        return at

    def leave(self) -> None:
        return

    def close(self) -> None:
        return


class MemoryTrials:
    """The trials of a study in memory (`tuners.base.Trials`)."""

    space: Space = SPACE
    seed: int = 3
    forkable: Sequence[str] = ("rate", "stepped")
    mode: Mode = "max"
    resources: Mapping[str, float] = {"cpu": 1, "gpu": 0}

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.trainer, self.count = folder, FormulaTrainer(), count
        self.all: list[StartedTrial] = []
        self.over: dict[int, str | None] = {}
        self.forks: dict[int, tuple[StartedTrial, Point, int]] = {}
        self.stop_after: int | None = None  # that many trials have ended

    @property
    def wanted(self) -> int:
        return self.count - (len(self.all) - len(self.forks))

    def begun(self) -> list[StartedTrial]:
        return [one for one in self.all if one.number not in self.over]

    def ended(self) -> list[Observation]:
        curve = [(10 * i, i / EVALUATIONS) for i in range(1, EVALUATIONS + 1)]
        done = (one for one in self.all if one.number in self.over)
        return [Observation(one.params, "completed", 1.0, curve) for one in done]

    def begin(self, params: Mapping[str, Any] | None = None) -> StartedTrial | None:
        if self.wanted <= 0:
            return None
        number = len(self.all)
        drawn = RandomSampler(RandomParams(), SPACE, self.mode, self.seed).propose(number, [])
        return self._begin(StartedTrial(number, f"run{number}", dict(params or drawn)))

    def fork(
        self, donor: StartedTrial, at: Point, params: Mapping[str, Any], instead_of: int
    ) -> StartedTrial:
        number = len(self.all)
        self.forks[number] = donor, at, instead_of
        self.over[instead_of] = None
        return self._begin(StartedTrial(number, f"run{number}", dict(params), at))

    def _begin(self, trial: StartedTrial) -> StartedTrial:
        self.all.append(trial)
        return trial

    def end(self, number: int, error: str | None = None) -> None:
        assert number < len(self.all), "it has begun"
        self.over[number] = error

    def cannot_go_on(self, number: int, error: str, *, is_input: bool = False) -> None:  # noqa: ARG002
        raise TrainingError(f"trial {number}: {error}")

    def tend(self) -> bool:
        return self.stop_after is not None and len(self.over) >= self.stop_after


class TunerSuite:
    """The contract of tuners; each test is one guarantee of `tuners.base`."""

    cls: ClassVar[type[Tuner]]
    params: ClassVar[Mapping[str, Any]] = {}

    def apart(self, test: Callable[[], None]) -> None:
        """Do what starts the system; override it to do that in a process of its own."""
        test()

    def tuner(self) -> Tuner:
        return self.cls(self.cls.Params(**self.params))

    def test_the_options_are_checked_without_the_library(self) -> None:
        assert self.tuner().refusal(SPACE, ("rate",)) is None

    def test_all_trials_begin_and_end(self, tmp_path: Path) -> None:
        self.apart(lambda: self.begin_and_end(tmp_path))

    def begin_and_end(self, tmp_path: Path) -> None:
        trials = MemoryTrials(tmp_path, 4)
        self.tuner().run(trials)
        assert trials.wanted == 0
        assert sorted(trials.over) == [one.number for one in trials.all]
        assert list(tmp_path.iterdir()) == [], "it leaves no files"
        for one in trials.all:
            self.check(one.params)

    def check(self, params: Mapping[str, Any]) -> None:
        assert list(params) == [one.key for one in SPACE]
        assert 1e-4 <= params["rate"] <= 1.0
        assert params["stepped"] in (0.0, 0.25, 0.5, 0.75, 1.0)
        choices = SPACE[2].choices or ()
        assert any(type(params["kind"]) is type(one) and params["kind"] == one for one in choices)

    def test_it_stops_and_goes_on(self, tmp_path: Path) -> None:
        self.apart(lambda: self.stop_and_go_on(tmp_path))

    def stop_and_go_on(self, tmp_path: Path) -> None:
        trials = MemoryTrials(tmp_path, 4)
        trials.stop_after = 1
        self.tuner().run(trials)
        assert len(trials.over) < 4, "what is left is not ended"
        trials.stop_after = None
        self.tuner().run(trials)
        assert trials.wanted == 0
        assert sorted(trials.over) == [one.number for one in trials.all]
