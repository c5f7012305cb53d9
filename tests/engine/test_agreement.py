"""How often several processes agree: twice a second, or less often where agreeing itself takes long."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted import BATCH, Bench

from trainyard.engine import loop as loop_module
from trainyard.frameworks.base import Plan
from trainyard.world import World

RARE = {"every_n_steps": 10_000}


class Twins(World):
    """The world of two processes that do the same; `gather` takes some time of a clock."""

    size = 2

    def __init__(self, clock: list[float], seconds: float) -> None:
        self._clock, self._seconds = clock, seconds
        self.gathered: list[Any] = []

    def gather(self, value: Any) -> list[Any]:
        self._clock[0] += self._seconds
        self.gathered.append(value)
        return [value, value]


@pytest.mark.parametrize(("step", "gather", "between"), [(0.1, 0.001, 5), (0.1, 0.1, 50), (2.0, 0.01, 1)])
def test_agreeing_takes_a_fiftieth_of_the_time_at_most(
    step: float, gather: float, between: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(loop_module.time, "perf_counter", lambda: clock[0])
    agreed_at: list[int] = []

    def loss(number: int) -> float:
        clock[0] += step
        return 1.0

    bench = Bench(
        tmp_path,
        losses=loss,
        plan=Plan(BATCH, 400, 0.1),
        evaluation=RARE,
        logging=RARE,
        checkpoint={"every_n_steps": None},
        training={"max_steps": 400},
    )
    bench.learner.step_seconds = lambda: ()  # type: ignore[attr-defined]
    loop = bench.loop()
    world = Twins(clock, gather)
    loop.parts = replace(loop.parts, world=world)
    agree = loop._agree

    def counted() -> None:
        agree()
        agreed_at.append(loop.state.step)

    monkeypatch.setattr(loop, "_agree", counted)
    loop.run()
    loop.parts.saver.drain()
    loop.parts.saver.close()
    distances = [later - earlier for earlier, later in itertools.pairwise(agreed_at[3:-1])]
    assert distances
    assert set(distances) <= {between, between - 1}, "the division may round down"
