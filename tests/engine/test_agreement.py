"""How often several processes agree, and what they tell each other then."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest
from scripted import BATCH, Bench

from trainwright.engine import agreement
from trainwright.engine.agreement import Agreement, SharedAgreement, _Report
from trainwright.engine.step_times import StepTimes
from trainwright.frameworks.base import Plan
from trainwright.world import World

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
    monkeypatch.setattr(agreement.time, "perf_counter", lambda: clock[0])
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
    bench.world = Twins(clock, gather)
    loop = bench.loop()
    meet = loop._agreement.meet
    loop._agreement.meet = lambda step: (agreed_at.append(step), meet(step))[1]  # type: ignore[func-returns-value, method-assign]
    loop.run()
    loop.parts.saver.drain()
    loop.parts.saver.close()
    distances = [later - earlier for earlier, later in itertools.pairwise(agreed_at[3:-1])]
    assert distances
    assert set(distances) <= {between, between - 1}, "the division may round down"


class Known(Agreement):
    """What one process knows, as it is written down."""

    def __init__(self) -> None:
        self.due = False
        self.suggested: dict[str, Any] | None = None

    signal = None

    def take_request(self) -> None:
        return None

    def save_is_due(self, step: int) -> bool:
        return self.due

    def interval(self) -> dict[str, Any] | None:
        return self.suggested


class Other(World):
    """The world of this process and another one, whose reports are written down; `gather` takes 0.25 s."""

    size = 2

    def __init__(self, rank: int, clock: list[float], *reports: Any) -> None:
        self.rank = rank
        self._clock, self._reports = clock, list(reports)
        self.said: list[Any] = []

    def gather(self, value: Any) -> list[Any]:
        self._clock[0] += 0.25
        self.said.append(value)
        other = self._reports.pop(0) if self._reports else SILENT
        return [value, other] if self.rank == 0 else [other, value]


class Recorded:
    """Stands in for `Stragglers`."""

    def __init__(self) -> None:
        self.windows: list[tuple[int, Sequence[StepTimes]]] = []

    def record(self, step: int, times: Sequence[StepTimes]) -> None:
        self.windows.append((step, times))


SILENT = _Report(None, None, 4, False, None, False, None, 0.0)
TIMES = StepTimes("there", 9, 0.5, 0.75)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(agreement.time, "perf_counter", lambda: now[0])
    return now


def shared(world: World, stragglers: Recorded, own: Known | None = None) -> SharedAgreement:
    """Return the agreement of a process whose steps take 1, 2, 3 ... seconds, two of them at a time."""
    seconds = itertools.count(1.0)
    return SharedAgreement(own or Known(), world, 0, lambda: [next(seconds), next(seconds)], stragglers)  # type: ignore[arg-type]


def test_all_report_their_times_after_a_minute(clock: list[float]) -> None:
    """The main process says so at one agreement, and all report at the next one; then a new minute begins."""
    other = [SILENT, SILENT, SILENT._replace(times=TIMES), SILENT]
    world, recorded = Other(0, clock, *other), Recorded()
    both = shared(world, recorded)
    for step in range(1, 5):
        both.meet(step)
        clock[0] += 61 if step == 1 else 0
    # The first step warms up, and does not count.
    mine = StepTimes(gethostname(), 5, 4.0, 6.0)
    assert [(report.wants_times, report.times) for report in world.said] == [
        (False, None),
        (True, None),
        (True, mine),
        (False, None),
    ]
    assert recorded.windows == [(3, [mine, TIMES])]


def test_the_main_process_asks_for_times_and_records_them(clock: list[float]) -> None:
    wants = SILENT._replace(wants_times=True)
    world, recorded = Other(1, clock, wants, wants._replace(times=TIMES), SILENT), Recorded()
    both = shared(world, recorded)
    for step in (1, 2, 3):
        both.meet(step)
    assert [report.times is None for report in world.said] == [True, False, True]
    assert recorded.windows == []


def test_what_an_agreement_took_is_told_at_the_next_one(clock: list[float]) -> None:
    """The cost is what the fastest process saw: the others waited for it."""
    world = Other(0, clock, SILENT, SILENT._replace(waited=0.125), SILENT)
    both = shared(world, Recorded())
    for step in (10, 20, 30):
        clock[0] += 10 * 0.125
        both.meet(step)
    assert [report.waited for report in world.said] == [0.0, 0.25, 0.25]
    # Half a second of steps of 0.125 s; then 50 times the cost of 0.125 s.
    assert [report.steps for report in world.said] == [4, 4, 50]
    assert both.next_step == 80


def test_the_main_process_decides_on_saves(clock: list[float]) -> None:
    own = Known()
    main = SILENT._replace(save_is_due=True, interval={"minutes": 7.0})
    both = shared(Other(1, clock, main, SILENT), Recorded(), own)
    assert (both.save_is_due(1), both.interval()) == (False, None), "before they met"
    both.meet(1)
    assert (both.save_is_due(1), both.interval()) == (True, {"minutes": 7.0})
    own.due, own.suggested = True, {"minutes": 9.0}
    both.meet(2)
    assert (both.save_is_due(2), both.interval()) == (False, None)
    both = shared(Other(0, clock, SILENT), Recorded(), own)
    both.meet(1)
    assert (both.save_is_due(1), both.interval()) == (True, {"minutes": 9.0})


def test_the_last_times_are_recorded_at_the_end(clock: list[float]) -> None:
    world, recorded = Other(0, clock, TIMES), Recorded()
    shared(world, recorded).finish(23)
    assert recorded.windows == [(23, [StepTimes(gethostname(), 1, 2.0, 2.0), TIMES])]


@pytest.mark.parametrize("begin", [0, 17])
def test_they_meet_first_after_the_first_step(begin: int, clock: list[float]) -> None:
    both = SharedAgreement(Known(), Other(0, clock), begin, list, Recorded())  # type: ignore[arg-type]
    assert both.next_step == begin + 1
