"""`every_n_minutes: auto`: the interval by the formulas, and the decision on it, made once and replayed."""

import json
import logging
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from scipy.optimize import minimize_scalar
from scipy.special import lambertw
from scripted import STEPS, Bench, Scripted, Weights, steps_in

import trainwright
from small_runs import SMALL, Crash, CrashAt, assert_same
from trainwright.callbacks.base import Callback
from trainwright.engine import saver as saver_module
from trainwright.engine.interval import SaveCost, best_interval, chosen_interval, interval_in_words
from trainwright.engine.loop import Loop
from trainwright.engine.state import RunState
from trainwright.process.alarms import Alarm, call_later
from trainwright.records.decision import Decision, Decisions
from trainwright.runs.run import Run

AUTO: dict[str, Any] = {"every_n_steps": None, "every_n_minutes": "auto"}
CASES = [(0.05, 3.6e7), (1.0, 36_000.0), (30.0, 3600.0), (60.0, 600.0)]  # seconds of a save, between failures


def wasted(interval: float, cost: float, mtbf: float) -> float:
    """The expected time per second of training where failures come at random (Daly 2006, equation 13)."""
    return mtbf * math.expm1((interval + cost) / mtbf) / interval


@pytest.mark.parametrize(("cost", "mtbf"), CASES)
def test_the_interval_is_the_one_that_wastes_least(cost: float, mtbf: float) -> None:
    """The exact optimum has no formula of powers and roots; Lambert's function gives it."""
    exact = mtbf * (1 + lambertw(-math.exp(-cost / mtbf - 1)).real)
    searched = minimize_scalar(
        lambda log: wasted(math.exp(log), cost, mtbf), bounds=(math.log(cost) - 3, math.log(mtbf))
    ).x
    assert math.exp(searched) == pytest.approx(exact, rel=0.01)
    mine = best_interval(cost, mtbf)
    assert mine == pytest.approx(exact, rel=2e-3)
    assert wasted(mine, cost, mtbf) - 1 == pytest.approx(wasted(exact, cost, mtbf) - 1, rel=1e-4)


def test_cheap_saves_follow_the_formula_of_young() -> None:
    assert best_interval(0.01, 1e8) == pytest.approx(math.sqrt(2 * 0.01 * 1e8), rel=1e-4)
    # Daly's, written out for a save of 30 s and a failure every hour.
    root = math.sqrt(2 * 30 * 3600)
    assert best_interval(30, 3600) == pytest.approx(root * (1 + math.sqrt(30 / 7200) / 3 + 30 / 64800) - 30)


def test_saves_that_take_longer_than_failures_wait_do_not_diverge() -> None:
    assert best_interval(7200.0, 3600.0) == best_interval(9e9, 3600.0) == 3600.0


def test_more_processes_fail_more_often() -> None:
    one, many = (chosen_interval(SaveCost(2.0, 5.0), 10_000.0, count) for count in (1, 100))
    assert (one["mtbf_hours"], many["mtbf_hours"]) == (10_000.0, 100.0)
    assert one["minutes"] / many["minutes"] == pytest.approx(10, rel=0.02)
    assert 60 * many["minutes"] == pytest.approx(best_interval(2.0, 360_000.0))


def test_an_interval_is_not_shorter_than_a_write() -> None:
    assert chosen_interval(SaveCost(1e-6, 90.0), 1.0, 1)["minutes"] == 1.5


def test_a_decision_in_words() -> None:
    detail = {"minutes": 12.3456, "save_seconds": 0.678, "mtbf_hours": 10_000.0, "processes": 1}
    assert interval_in_words(detail) == (
        "every 12.3 minutes from now on, as training waits 0.68 s for a save, "
        "and 1 process fails every 10,000 hours"
    )
    assert interval_in_words(detail | {"processes": 8, "mtbf_hours": 1250.0}).endswith(
        "one of 8 processes fails every 1,250 hours"
    )


# -- the decision


class Clock:
    """Stands in for an alarm: it rings when it is told to."""

    def __init__(self, seconds: float, ring: Any) -> None:
        self.seconds, self.ring = seconds, ring
        made.append(self)

    def cancel(self) -> None:
        pass


made: list[Clock] = []


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[Clock]:
    monkeypatch.setattr(saver_module, "call_later", Clock)
    made.clear()
    return made


def decided(folder: Path, attempt: int = 1) -> list[dict[str, Any]]:
    lines = (folder / "journal" / f"{attempt:04d}.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if line["kind"] == "decision"]


def rung(
    folder: Path, clocks: list[Clock], *, at: int, known: Sequence[Decision] = (), **checkpoint: Any
) -> tuple[Bench, Loop]:
    """A run whose clock rings in one step, and that waits for the save before the next one."""

    def ring(step: int) -> float:
        if step == at:
            clocks[-1].ring()
        loop.parts.saver.drain()
        return 1.0

    bench = Bench(folder, losses=ring, checkpoint=AUTO | checkpoint)
    loop = bench.loop(RunState(decisions=Decisions(known)))
    loop.run()
    loop.parts.saver.drain()
    loop.parts.saver.close()
    loop.parts.recorder.journal.close()
    return bench, loop


def test_the_first_save_decides_the_interval(
    tmp_path: Path, clocks: list[Clock], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trainwright")
    bench, loop = rung(tmp_path, clocks, at=3, mtbf_hours=5)
    (decision,) = decided(tmp_path)
    detail = decision["detail"]
    assert f"checkpoints: {interval_in_words(detail)}" in caplog.messages
    assert decision["name"] == "checkpoint_interval"
    assert decision["step"] == 6, "the first step at which something was due after the save of step 4"
    assert detail["mtbf_hours"] == 5
    expected = max(best_interval(detail["save_seconds"], 5 * 3600), detail["write_seconds"])
    assert 60 * detail["minutes"] == pytest.approx(expected)
    seconds = [clock.seconds for clock in clocks]
    assert set(seconds[:-1]) == {60.0}
    assert seconds[-1] == 60 * detail["minutes"]
    assert list(loop.state.decisions) == [Decision(6, "checkpoint_interval", detail)]
    assert list(steps_in(tmp_path / "checkpoints")) == [4, STEPS]
    assert detail["processes"] == 1
    assert bench.learner.steps == STEPS


def test_the_first_save_is_what_a_save_costs(
    tmp_path: Path, clocks: list[Clock], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training is blocked for the copy; writing takes longer. Later saves do not count."""
    now = [100.0]
    monkeypatch.setattr(saver_module.time, "perf_counter", lambda: now[0])
    copy, write = Scripted.snapshot, Weights.write

    def slow_copy(learner: Scripted, **how: Any) -> Weights:
        now[0] += 0.5 * learner.steps
        return copy(learner, **how)

    def slow_write(weights: Weights, folder: Path) -> Any:
        now[0] += 3.0 * float(weights._array[0])
        return write(weights, folder)

    monkeypatch.setattr(Scripted, "snapshot", slow_copy)
    monkeypatch.setattr(Weights, "write", slow_write)
    loop = Bench(tmp_path, checkpoint=AUTO | {"mtbf_hours": 5}).loop()
    saver = loop.parts.saver
    assert saver.suggested_interval() is None
    for step in (1, 2):
        loop.parts.learner.steps = step  # type: ignore[attr-defined]
        saver.save(RunState(step=step, settled=step), [])
        saver.drain()
    assert saver.suggested_interval() == chosen_interval(SaveCost(0.5, 3.0), 5, 1)
    saver.save_every(1.0)
    assert saver.suggested_interval() is None, "it is decided"
    saver.close()


def test_the_default_is_in_the_decision(tmp_path: Path, clocks: list[Clock]) -> None:
    rung(tmp_path, clocks, at=3)
    assert decided(tmp_path)[0]["detail"]["mtbf_hours"] == 10_000, "docs/config.md says so"


def test_without_a_save_there_is_nothing_to_decide(tmp_path: Path, clocks: list[Clock]) -> None:
    Bench(tmp_path, checkpoint=AUTO).run()
    assert decided(tmp_path) == []
    assert [clock.seconds for clock in clocks] == [60.0]


@pytest.mark.parametrize(("processes", "seconds"), [(1, 150.0), (2, 60.0)])
def test_a_decision_holds_for_later_attempts_of_as_many_processes(
    tmp_path: Path, clocks: list[Clock], processes: int, seconds: float
) -> None:
    known = Decision(4, "checkpoint_interval", {"minutes": 2.5, "processes": processes})
    bench = Bench(tmp_path, checkpoint=AUTO)
    bench.run(RunState(decisions=Decisions([known])))
    assert [clock.seconds for clock in clocks] == [seconds]
    assert decided(tmp_path) == []


def test_a_decision_of_the_same_step_for_other_processes_is_kept(tmp_path: Path, clocks: list[Clock]) -> None:
    """No step has two decisions of a kind: the next step at which something is due gets this one."""
    known = Decision(6, "checkpoint_interval", {"minutes": 2.5, "processes": 2})
    _, loop = rung(tmp_path, clocks, at=3, known=[known])
    assert [one["step"] for one in decided(tmp_path)] == [7]
    assert [one.step for one in loop.state.decisions] == [6, 7]


def test_a_number_in_the_config_counts_more_than_a_decision(tmp_path: Path, clocks: list[Clock]) -> None:
    known = Decision(4, "checkpoint_interval", {"minutes": 2.5, "processes": 1})
    bench = Bench(tmp_path, checkpoint=AUTO | {"every_n_minutes": 7})
    bench.run(RunState(decisions=Decisions([known])))
    assert [clock.seconds for clock in clocks] == [420.0]


def test_a_save_that_is_due_is_made_though_the_interval_is_decided_then(
    tmp_path: Path, clocks: list[Clock]
) -> None:
    """The clock rings for the second time in the step after which the interval is decided."""

    def ring(step: int) -> float:
        if step in (3, 5):
            clocks[-1].ring()
        loop.parts.saver.drain()
        return 1.0

    loop = Bench(tmp_path, losses=ring, checkpoint=AUTO | {"keep_last": 9}).loop()
    loop.run()
    loop.parts.saver.drain()
    loop.parts.saver.close()
    assert [one["step"] for one in decided(tmp_path)] == [6]
    assert list(steps_in(tmp_path / "checkpoints")) == [4, 6, STEPS]


# -- whole runs


class Slow(Callback):
    """Lets a run last for several rings of its clock."""

    def on_log(self, step: int, metrics: Any) -> None:
        threading.Event().wait(0.01)


def intervals(run: Run) -> list[dict[str, Any]]:
    return [one for one in run.decisions if one["kind"] == "checkpoint_interval"]


def test_a_resume_and_a_repetition_replay_the_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trainwright.train(SMALL, runs_dir=tmp_path / "whole")
    monkeypatch.setattr(saver_module, "_FIRST_MINUTES", 0.0005)
    auto = {"checkpoint.every_n_minutes": "auto", "checkpoint.every_n_steps": None}
    with pytest.raises(Crash):
        trainwright.train(SMALL, auto, runs_dir=tmp_path / "runs", callbacks=[Slow(), CrashAt(25)])
    crashed = trainwright.get("last", runs_dir=tmp_path / "runs")
    (decision,) = intervals(crashed)
    assert decision["detail"]["minutes"] > 0
    seconds: list[float] = []

    def counted(interval: float, function: Any) -> Alarm:
        seconds.append(interval)
        return call_later(interval, function)

    monkeypatch.setattr(saver_module, "call_later", counted)
    run = trainwright.resume(crashed)
    assert_same(run, whole)
    assert intervals(run) == [decision]
    assert set(seconds) == {60 * decision["detail"]["minutes"]}
    repetition = trainwright.reproduce(run)
    assert repetition.verdict == "identical"
    assert intervals(trainwright.get(repetition.repetition, runs_dir=tmp_path / "runs")) == [decision]
    assert set(seconds) == {60 * decision["detail"]["minutes"]}
    assert "checkpoint interval" in (run.path / "report.html").read_text()
