"""The loop of one of several processes: when it agrees with the others, on what, and how long it is given."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scripted import BATCH, STEPS, Bench, steps_in

from trainwright.engine import agreement
from trainwright.engine.agreement import _Report
from trainwright.engine.loop import Loop
from trainwright.engine.outside import Outside
from trainwright.engine.state import RunState
from trainwright.frameworks.base import Plan
from trainwright.records.decision import Decision
from trainwright.types import Evaluation
from trainwright.world import World

SELDOM: dict[str, Any] = {
    "evaluation": {"every_n_steps": 1000},
    "checkpoint": {"every_n_steps": None},
    "logging": {"every_n_steps": 1000},
}


def told(signal: Any = None, request: Any = None, steps: int = 99, *, save: bool = False) -> _Report:
    """What a process says that has no times to tell."""
    return _Report(signal, request, steps, save, None, False, None, 0.0)


class Pair(World):
    """The world of two processes, the other of which says at each agreement what is written down."""

    size = 2

    def __init__(self, rank: int, other: Callable[[int], _Report], main: Any = None) -> None:
        self.rank = rank
        self.said: list[_Report] = []  # by this process
        self.calls: list[Any] = []  # the seconds of `watch`, "rest", "barrier", and "meet"
        self._other = other
        self._main = main  # what the main process answers, where this is the other one

    def gather(self, value: Any) -> list[Any]:
        if not isinstance(value, _Report):
            return [value, None]
        self.said.append(value)
        self.calls.append("meet")
        both = [value, self._other(len(self.said) - 1)]
        return both if self.is_main else both[::-1]

    def from_main(self, function: Callable[[], Any]) -> Any:
        return function() if self.is_main else self._main

    def barrier(self) -> None:
        self.calls.append("barrier")

    def watch(self, seconds: float) -> None:
        self.calls.append(seconds)

    def rest(self) -> None:
        self.calls.append("rest")


def quiet(_: int) -> _Report:
    """The other process has nothing to say, and its clock is another one."""
    return told()


def paced(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Callable[[int], float]:
    """Return losses whose steps take some seconds each."""
    now = [100.0]
    monkeypatch.setattr(agreement.time, "perf_counter", lambda: now[0])

    def loss(step: int) -> float:
        now[0] += seconds
        return 1.0 / (step + 1)

    return loss


def run(bench: Bench, state: RunState | None = None) -> tuple[Loop, list[int]]:
    """Run a loop to its end; return it, and the steps after which the processes agreed."""
    loop = bench.loop(state)
    agreed: list[int] = []
    gather = bench.world.gather
    bench.world.gather = lambda value: (
        isinstance(value, _Report) and agreed.append(loop.state.step),
        gather(value),
    )[1]  # type: ignore[method-assign]
    bench.status = loop.run()
    loop.parts.saver.drain()
    loop.parts.saver.close()
    loop.parts.recorder.journal.close()
    return loop, agreed


def test_they_agree_about_twice_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "_HANG_SECONDS", 1.0)
    monkeypatch.setattr(agreement, "_FIRST_HANG_SECONDS", 30.0)
    bench = Bench(tmp_path, losses=paced(monkeypatch, 0.125), **SELDOM)
    bench.world = world = Pair(0, quiet)
    _, agreed = run(bench)
    assert agreed == [1, 5, 9, 13, 17, 21, STEPS]
    assert [one[:3] for one in world.said] == [(None, None, 4)] * 7
    # It is given ten times what the last steps took for as many as there are, and a second at least.
    stretches = [30.0] + [10 * 4 * 0.125] * 5 + [10 * 2 * 0.125]
    # It is watched from the moment at which all begin to the one at which all are there: what one does alone
    # in between may take as long as it likes.
    calls = [call for seconds in stretches for call in ("barrier", seconds, "meet", "rest")] + ["rest"]
    assert world.calls == calls


@pytest.mark.parametrize(
    ("seconds", "stretch", "given"), [(20.0, 1, 200.0), (0.5, 1, 60.0), (0.0, 1024, 60.0)]
)
def test_slow_steps_agree_each_time_and_fast_ones_seldom(
    seconds: float, stretch: int, given: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, losses=paced(monkeypatch, seconds), **SELDOM)
    bench.world = world = Pair(0, quiet)
    _, agreed = run(bench)
    assert agreed == (list(range(1, STEPS + 1)) if stretch == 1 else [1, STEPS])
    assert {one.steps for one in world.said} == {stretch}
    assert [one for one in world.calls if isinstance(one, float)][1] == given


def test_the_main_process_says_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, losses=paced(monkeypatch, 0.125), **SELDOM)
    bench.world = world = Pair(1, lambda _: told(steps=7))
    _, agreed = run(bench)
    assert agreed == [1, 8, 15, 22, STEPS]
    assert {one.steps for one in world.said} == {4}


def test_where_something_else_is_due_they_agree_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(
        tmp_path, [3, 2, 1], paced(monkeypatch, 0.125), **(SELDOM | {"evaluation": {"every_n_steps": 7}})
    )
    bench.world = Pair(0, quiet)
    _, agreed = run(bench)
    assert agreed == [1, 5, 7, 11, 14, 18, 21, STEPS]


def test_a_process_that_owes_an_evaluation_agrees_first(tmp_path: Path) -> None:
    state = RunState(step=7, settled=6)
    bench = Bench(tmp_path, [3, 2, 1], **SELDOM)
    bench.world = world = Pair(0, quiet)
    _, agreed = run(bench, state)
    assert agreed[:2] == [7, 8]
    assert world.said[0][:3] == (None, None, 1)


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_ends_all_at_the_next_agreement(
    rank: int, is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_of = paced(monkeypatch, 0.125)

    def loss(step: int) -> float:
        if step == 6 and is_own:
            loop.parts.signals.status = "preempted"
            loop._wake()
        return step_of(step)

    bench = Bench(tmp_path, losses=loss, **SELDOM)
    bench.world = world = Pair(rank, lambda i: told(None if is_own or i < 2 else "preempted", None, 4))
    loop = bench.loop()
    assert loop.run() == "preempted"
    loop.parts.saver.drain()
    assert loop.state.step == 9, "not at step 7, of which the other process would not know"
    assert world.said[-1].signal == ("preempted" if is_own else None)
    assert list(steps_in(tmp_path / "checkpoints")) == ([9] if rank == 0 else [])
    loop.parts.saver.close()


@pytest.mark.parametrize("is_own", [True, False])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_request_is_a_decision_of_all(
    rank: int, is_own: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step_of = paced(monkeypatch, 0.125)

    def loss(step: int) -> float:
        if step == 6 and is_own:
            loop.parts.outside.request = "time_limit"
            loop._wake()
        return step_of(step)

    bench = Bench(tmp_path, [], loss, **SELDOM)
    bench.outside = lambda: Outside(30.0)
    bench.world = world = Pair(rank, lambda i: told(None, None if is_own or i < 2 else "time_limit", 4), 30.0)
    loop = bench.loop()
    assert loop.run() == "stopped"
    loop.parts.saver.drain()
    loop.parts.saver.close()
    assert list(loop.state.decisions) == [Decision(9, "time_limit", {"max_minutes": 30.0})]
    assert loop.state.step == 9
    assert [one.request for one in world.said] == [None, None, "time_limit" if is_own else None]
    assert loop.parts.outside.request is None, "it is forgotten"


def test_the_main_process_judges(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1])
    bench.outside = lambda: Outside(verdict=lambda step, metrics: "keep")
    bench.world = Pair(1, quiet, "prune")
    loop, _ = run(bench)
    assert (bench.status, loop.state.step) == ("pruned", 7)


def test_a_process_that_fails_is_watched_no_more(tmp_path: Path) -> None:
    def loss(step: int) -> float:
        if step == 3:
            raise OSError("the disk is gone")
        return 1.0

    bench = Bench(tmp_path, losses=loss, **SELDOM)
    bench.world = world = Pair(0, lambda _: told(steps=1))
    loop = bench.loop()
    with pytest.raises(OSError, match="the disk is gone"):
        loop.run()
    loop.parts.saver.close()
    assert world.calls[-1] == "rest"


@pytest.mark.parametrize("wants", [True, False])
def test_each_process_copies_its_share_where_the_main_one_saves(
    wants: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When that is, the main one says; so it does at the end, where nothing may be left to save."""
    bench = Bench(tmp_path, losses=paced(monkeypatch, 0.125), **SELDOM)
    bench.world = Pair(1, lambda i: told(steps=4, save=i == 1), wants)
    snapshot, copied = bench.learner.snapshot, list[int]()
    bench.learner.snapshot = lambda **how: (copied.append(bench.learner.steps), snapshot(**how))[1]  # type: ignore[method-assign]
    run(bench)
    assert copied == ([5, STEPS] if wants else [])


def test_the_main_process_says_when_it_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path, losses=paced(monkeypatch, 0.125), **SELDOM | {"checkpoint": {"every_n_steps": 6}})
    bench.world = world = Pair(0, lambda _: told(save=True))
    _, agreed = run(bench)
    assert [step for step, one in zip(agreed, world.said, strict=True) if one.save_is_due] == [6, 12, 18]
    assert agreed == [1, 5, 6, 10, 12, 16, 18, 22, STEPS]
    assert max(steps_in(tmp_path / "checkpoints")) == STEPS


def test_only_the_main_process_saves(tmp_path: Path) -> None:
    timed = {"every_n_steps": 5, "every_n_minutes": 1, "keep_last": 9}
    bench = Bench(tmp_path, [3, 2, 1], plan=Plan(BATCH, STEPS, 0.1, boundary=5), checkpoint=timed)
    bench.world = Pair(1, quiet)
    loop, _ = run(bench)
    saver = loop.parts.saver
    assert saver._clock is None
    assert not saver.overdue
    assert not any(saver.is_due(step) or saver.at_boundary(step) for step in range(1, STEPS + 1))
    saver.resume_from(RunState(step=5, settled=5, evaluations=[Evaluation(5, {"val_loss": 1.0})]), [5])
    saver.drop_superseded_best()
    assert not (tmp_path / "checkpoints").exists()
    assert not (tmp_path / "best").exists()
    assert bench.learner.released == 0


def test_the_last_step_times_are_exchanged_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window of a minute is not over then: all that is there is reported."""
    finished: list[int] = []
    monkeypatch.setattr(agreement.SharedAgreement, "finish", lambda _, step: finished.append(step))
    bench = Bench(tmp_path, **SELDOM)
    bench.world = Pair(0, quiet)
    run(bench)
    assert finished == [STEPS]
