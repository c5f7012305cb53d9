"""Decisions: durable before their first consequence, replayed at the same step, and never made twice."""

import json
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from scripted import BATCH, STEPS, Bench, checkpoints_of, steps_in

from trainwright.engine import outside as outside_module
from trainwright.engine.outside import Outside, StopRequest
from trainwright.engine.state import RunState
from trainwright.errors import InputError, TrainingError
from trainwright.frameworks.base import Plan
from trainwright.process.alarms import Alarm
from trainwright.records.decision import Decision, Decisions, journalled_decisions
from trainwright.types import Metrics

STOP, GO_ON = Decision(9, "stop"), Decision(9, "resume", {"after": "stopped", "train_seconds": 0.0})


def lines(folder: Path, attempt: int = 1) -> list[dict[str, Any]]:
    text = (folder / "journal" / f"{attempt:04d}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def evaluated(folder: Path, attempt: int = 1) -> list[int]:
    return [record["step"] for record in lines(folder, attempt) if record["kind"] == "evaluation"]


def logged(folder: Path, attempt: int = 1) -> list[int]:
    return [record["step"] for record in lines(folder, attempt) if record["kind"] == "metrics"]


def ask(bench: Bench, *, at: int, request: StopRequest = "stop", max_minutes: float | None = None) -> None:
    """Make a request while a step (from 1) is computed."""
    step = bench.learner.step

    def asking(number: int, lr: float) -> Any:
        if number + 1 == at:
            loop.parts.outside.request = request
            loop._wake()
        return step(number, lr)

    def made(*args: Any, **how: Any) -> Any:
        nonlocal loop
        loop = make(*args, **how)
        return loop

    loop: Any = None
    make, bench.loop, bench.learner.step = bench.loop, made, asking  # type: ignore[method-assign]
    bench.outside = lambda: Outside(max_minutes)


def test_a_stopped_run_ends_after_its_step_with_an_evaluation_and_a_checkpoint(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1])
    ask(bench, at=9)
    loop = bench.run()
    assert (bench.status, loop.state.step) == ("stopped", 9)
    assert evaluated(tmp_path) == [7, 9]
    assert logged(tmp_path) == [3, 6, 9]
    commit, _ = checkpoints_of(tmp_path).resume.newest()
    assert commit is not None
    state = RunState.from_json(checkpoints_of(tmp_path).resume.state(commit))
    assert (state.step, state.settled, list(state.decisions)) == (9, 9, [STOP])
    assert state == loop.state


def test_a_decision_is_on_the_disk_before_its_first_consequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[int, int] = {}  # the size of each file, by inode, when it was last brought to the disk
    fsync = os.fsync

    def counted(descriptor: int) -> None:
        state = os.fstat(descriptor)
        # The writer's thread, which brings the journal to the disk, too, may have asked for its size before.
        synced[state.st_ino] = max(state.st_size, synced.get(state.st_ino, 0))
        fsync(descriptor)

    bench = Bench(tmp_path, [3, 2, 1])
    ask(bench, at=9)
    evaluate, seen = bench._evaluate, []

    def looking() -> Metrics:
        if bench.learner.steps == 9:
            state = (tmp_path / "journal" / "0001.jsonl").stat()
            seen.append((lines(tmp_path)[-1]["name"], synced[state.st_ino] == state.st_size))
        return evaluate()

    monkeypatch.setattr(bench, "_evaluate", looking)
    monkeypatch.setattr(os, "fsync", counted)
    bench.run()
    assert seen == [("stop", True)]


@pytest.mark.parametrize("start", [0, 5])
def test_a_replayed_decision_ends_the_run_at_its_step(tmp_path: Path, start: int) -> None:
    bench = Bench(tmp_path, [3, 2, 1])
    loop = bench.run(RunState(step=start, settled=start, decisions=Decisions([STOP])))
    assert (bench.status, loop.state.step) == ("stopped", 9)
    assert evaluated(tmp_path) == [7, 9]
    assert [record for record in lines(tmp_path) if record["kind"] == "decision"] == []


def test_a_run_whose_end_is_carried_out_makes_no_step(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1])
    bench.run(RunState(step=9, settled=9, decisions=Decisions([STOP])))
    assert (bench.status, bench.learner.rates, evaluated(tmp_path)) == ("stopped", [], [])


def test_a_run_that_goes_on_repeats_the_evaluation_and_does_not_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1])
    went_on = Decision(8, "resume", {"after": "stopped", "train_seconds": 0.0})
    bench.run(RunState(decisions=Decisions([Decision(8, "stop"), went_on])))  # nothing else is due there
    assert bench.status == "completed"
    assert evaluated(tmp_path) == [7, 8, 14, 21, 23]
    assert 8 in logged(tmp_path)


PLATEAU = {"scheduler": {"type": "plateau", "factor": 0.5, "patience": 0}, "early_stopping": {"patience": 2}}


def test_an_evaluation_of_a_stop_tries_no_patience(tmp_path: Path) -> None:
    """Else a run that goes on would drop its learning rate, or end, sooner than one that was never stopped."""
    whole, again = (Bench(tmp_path / name, [3, 4, 5], training=PLATEAU) for name in ("whole", "again"))
    whole.run()
    again.run(RunState(decisions=Decisions([STOP, GO_ON])))  # the evaluation after step 9 is the worst
    assert again.learner.rates == whole.learner.rates
    assert (len(whole.learner.rates), whole.learner.rates[-1]) == (21, 0.05)


def test_a_model_that_is_best_when_the_run_is_stopped_is_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3])
    bench.validation[9] = 1.0
    ask(bench, at=9)
    bench.run()
    assert list(steps_in(tmp_path / "best")) == [9]


@pytest.mark.parametrize(
    ("boundary", "asked", "ends"), [(4, 9, 12), (4, 12, 12), (10, 3, 10), (10, 21, None)]
)
def test_a_run_ends_only_where_it_can_go_on(
    tmp_path: Path, boundary: int, asked: int, ends: int | None
) -> None:
    bench = Bench(tmp_path, [3, 2, 1], plan=Plan(BATCH, STEPS, 0.1, boundary=boundary))
    ask(bench, at=asked)
    loop = bench.run()
    expected = ("completed", STEPS) if ends is None else ("stopped", ends)
    assert (bench.status, loop.state.step) == expected
    assert [decision.step for decision in loop.state.decisions] == ([] if ends is None else [ends])
    assert ends is None or ends in evaluated(tmp_path)


def test_a_run_that_is_in_its_last_step_is_completed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1])
    ask(bench, at=STEPS)
    loop = bench.run()
    assert (bench.status, list(loop.state.decisions)) == ("completed", [])


def test_a_request_at_a_step_where_the_run_ended_before_is_not_lost(tmp_path: Path) -> None:
    """The newest checkpoint was damaged: the run replays the step at which it was stopped, and went on."""
    bench = Bench(tmp_path, [3, 2, 1])
    ask(bench, at=9)
    loop = bench.run(RunState(decisions=Decisions([STOP, GO_ON])))
    assert (bench.status, loop.state.step) == ("stopped", 10)


def test_a_run_is_not_asked_twice_to_end(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1], plan=Plan(BATCH, STEPS, 0.1, boundary=8))
    ask(bench, at=3)
    ask(bench, at=5, request="time_limit", max_minutes=1.0)
    loop = bench.run()
    assert list(loop.state.decisions) == [Decision(8, "stop")]


def test_the_end_that_comes_first_counts(tmp_path: Path) -> None:
    """A repetition, which will be stopped at step 20, may be stopped sooner."""
    bench = Bench(tmp_path, [3, 2, 1])
    ask(bench, at=9)
    loop = bench.run(RunState(decisions=Decisions([Decision(20, "stop")])))
    assert (bench.status, loop.state.step) == ("stopped", 9)


def test_a_run_that_ends_by_itself_before_it_was_to_be_stopped_is_completed(tmp_path: Path) -> None:
    """It was to end at step 20, from which it could go on; early stopping ends it at step 14."""
    stopping = {"early_stopping": {"metric": "val_loss", "patience": 1}}
    bench = Bench(tmp_path, [2, 3, 1], plan=Plan(BATCH, STEPS, 0.1, boundary=20), training=stopping)
    ask(bench, at=9)
    loop = bench.run()
    assert list(loop.state.decisions) == [Decision(20, "stop")]
    assert (bench.status, loop.state.step) == ("completed", 14)


def test_what_ends_a_run_is_brought_to_its_store_at_once(tmp_path: Path) -> None:
    bench, judge = Bench(tmp_path, [3, 2, 1]), Judge(14)
    judged(bench, judge)
    loop, stored = bench.loop(), list[int]()
    loop.parts.saver.store_journal = stored.append  # type: ignore[method-assign]
    loop.run()
    loop.parts.saver.close()
    assert len(loop.state.decisions) == 2, "one to go on, and one to end"
    assert stored == [14]


class Heard(Outside):
    """Tells when the loop was woken."""

    def __init__(self, is_asked: Callable[[], bool]) -> None:
        super().__init__(60.0, is_asked)
        self.woken = threading.Event()
        self.started: tuple[float, Decisions] | None = None

    def start(self, wake: Callable[[], None], train_seconds: float, decisions: Decisions) -> None:
        self.started = train_seconds, decisions
        super().start(lambda: (wake(), self.woken.set())[1], train_seconds, decisions)


def test_the_loop_watches_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside_module, "POLL_SECONDS", 0.01)
    asked = threading.Event()
    heard = Heard(asked.is_set)

    def loss(step: int) -> float:
        if step == 9:  # nothing else is due after it
            asked.set()
            assert heard.woken.wait(30)
        return 1.0

    bench = Bench(tmp_path, losses=loss)
    bench.outside = lambda: heard
    state = RunState(train_seconds=5.0)
    loop = bench.run(state)
    assert (bench.status, loop.state.step) == ("stopped", 10)
    assert heard.started == (5.0, state.decisions)
    assert not heard._is_watching


# -- the time limit


def watched(outside: Outside, train_seconds: float, decisions: Sequence[Decision] = ()) -> StopRequest | None:
    """Return what is requested while training goes on."""
    woken = threading.Event()
    outside.start(woken.set, train_seconds, Decisions(decisions))
    woken.wait(30)
    outside.close()
    return outside.take()


def test_the_time_limit_counts_the_training_time_of_earlier_attempts() -> None:
    assert watched(Outside(max_minutes=60.0), 3599.99) == "time_limit"
    assert watched(Outside(max_minutes=60.0), 4000.0) == "time_limit"


def test_a_run_that_goes_on_has_as_many_minutes_again() -> None:
    went_on = Decision(9, "resume", {"after": "stopped", "train_seconds": 3600.0})
    asked = iter([False, True])  # the second time, half a second later
    assert watched(Outside(max_minutes=60.0, is_asked=lambda: next(asked)), 3700.0, [went_on]) == "stop"
    assert watched(Outside(max_minutes=60.0), 7199.99, [went_on]) == "time_limit"


def test_a_request_to_stop_is_seen_without_a_time_limit() -> None:
    asked = iter([False, True])
    assert watched(Outside(is_asked=lambda: next(asked)), 0.0) == "stop"


class Clock:
    """Alarms that ring one after the other, as soon as they are set."""

    def __init__(self) -> None:
        self.now, self.set = 0.0, list[tuple[float, Callable[[], object], Alarm]]()
        self.looked = list[float]()

    def call_later(self, seconds: float, function: Callable[[], object]) -> Alarm:
        alarm = Alarm(self.now + seconds, function)
        alarm.cancel = lambda: self.cancel(alarm)  # type: ignore[method-assign]
        self.set.append((alarm.at, function, alarm))
        return alarm

    def cancel(self, alarm: Alarm) -> None:
        self.set = [one for one in self.set if one[2] is not alarm]

    def run(self) -> None:
        while self.set:
            self.now, function, alarm = min(self.set, key=lambda one: one[0])
            self.cancel(alarm)
            function()

    def look(self, *answers: bool) -> Callable[[], bool]:
        left = list(answers)
        return lambda: (self.looked.append(self.now), left.pop(0) if left else False)[1]


@pytest.mark.parametrize("is_asked", [True, False])
def test_it_waits_for_the_limit_and_asks_twice_a_second(
    is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, woken = Clock(), list[float]()
    monkeypatch.setattr(outside_module, "call_later", clock.call_later)
    outside = Outside(1.0, clock.look() if is_asked else None)
    outside.start(lambda: woken.append(clock.now), 58.75, Decisions())
    clock.run()
    assert (outside.take(), outside.take()) == ("time_limit", None)
    assert (woken, clock.looked) == ([1.25], [0.0, 0.5, 1.0] if is_asked else [])


@pytest.mark.parametrize("answers", [(True, True), (False, False, True)])
def test_a_request_that_was_there_before_is_seen_at_once(
    answers: Sequence[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, woken = Clock(), list[float]()
    monkeypatch.setattr(outside_module, "call_later", clock.call_later)
    outside = Outside(1.0, clock.look(*answers))
    outside.start(lambda: woken.append(clock.now), 0.0, Decisions())
    assert woken == [], "the loop has not begun"
    clock.run()
    assert woken == [0.5 * (len(answers) - 1) if len(answers) > 2 else 0.0]
    assert (outside.take(), clock.now) == ("stop", woken[0]), "it goes on to watch"


def test_watching_ends_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, woken = Clock(), list[float]()
    monkeypatch.setattr(outside_module, "call_later", clock.call_later)
    outside = Outside(60.0, clock.look())
    outside.start(lambda: woken.append(clock.now), 0.0, Decisions())
    assert len(clock.set) == 2
    begun = [function for _, function, _ in clock.set]
    outside.close()
    assert clock.set == []
    for function in begun:  # the thread was just about to call it
        function()
    assert (outside.request, woken, clock.set) == (None, [], [])
    Outside().start(lambda: None, 0.0, Decisions())
    assert clock.set == [], "there is nothing to watch for"


def test_the_limit_is_in_the_decision(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1])
    ask(bench, at=9, request="time_limit", max_minutes=30.0)
    loop = bench.run()
    assert bench.status == "stopped"
    assert list(loop.state.decisions) == [Decision(9, "time_limit", {"max_minutes": 30.0})]


# -- the verdict

Answer = Literal["keep", "prune"]


class Judge:
    """Says `prune` at a step, and notes what it was asked."""

    def __init__(self, prune_at: int) -> None:
        self._prune_at = prune_at
        self.asked: list[tuple[int, Metrics]] = []

    def __call__(self, step: int, metrics: Metrics) -> Answer:
        self.asked.append((step, metrics))
        return "prune" if step == self._prune_at else "keep"


def judged(bench: Bench, verdict: Callable[[int, Metrics], Any]) -> None:
    bench.outside = lambda: Outside(verdict=verdict)


def test_a_verdict_ends_the_run_after_its_evaluation(tmp_path: Path) -> None:
    bench, judge = Bench(tmp_path, [3, 2, 1]), Judge(14)
    judged(bench, judge)
    loop = bench.run()
    assert (bench.status, loop.state.step) == ("pruned", 14)
    assert judge.asked == [(7, {"val_loss": 3}), (14, {"val_loss": 2})]
    assert list(loop.state.decisions) == [Decision(7, "keep"), Decision(14, "prune", {"judged": 14})]
    assert 14 in steps_in(tmp_path / "checkpoints")


def test_what_was_judged_is_not_judged_again(tmp_path: Path) -> None:
    """The attempt before died after step 14, and what it was told there is in its journal."""
    bench, judge = Bench(tmp_path, [3, 2, 1]), Judge(0)
    judged(bench, judge)
    known = [Decision(7, "keep"), Decision(14, "keep")]
    loop = bench.run(RunState(decisions=Decisions(known)))
    assert bench.status == "completed"
    assert [step for step, _ in judge.asked] == [21], "the last step decides nothing any more"
    assert list(loop.state.decisions) == [*known, Decision(21, "keep")]


def test_a_verdict_is_replayed_without_anybody_to_ask(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1])
    loop = bench.run(RunState(decisions=Decisions([Decision(14, "prune", {"judged": 14})])))
    assert (bench.status, loop.state.step) == ("pruned", 14)
    assert evaluated(tmp_path) == [7, 14]


def test_a_pruned_run_ends_where_it_can_go_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1], plan=Plan(BATCH, STEPS, 0.1, boundary=5))
    judge = Judge(7)
    judged(bench, judge)
    loop = bench.run()
    assert (bench.status, loop.state.step, len(judge.asked)) == ("pruned", 10, 1)
    assert evaluated(tmp_path) == [7]


@pytest.mark.parametrize(("boundary", "end"), [(1, 7), (5, 10)])
def test_a_pause_ends_the_attempt_where_the_run_can_go_on(boundary: int, end: int, tmp_path: Path) -> None:
    """It decides nothing, and leaves a commit."""
    bench = Bench(tmp_path, [3, 2, 1], plan=Plan(BATCH, STEPS, 0.1, boundary=boundary))
    judged(bench, lambda step, metrics: "pause")
    loop = bench.run()
    assert (bench.status, loop.state.step, list(loop.state.decisions)) == ("paused", end, [])
    assert list(steps_in(tmp_path / "checkpoints"))[-1] == end


def test_a_verdict_that_comes_too_late_to_end_the_run_is_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1], plan=Plan(BATCH, STEPS, 0.1, boundary=30))
    judged(bench, Judge(7))
    loop = bench.run()
    assert bench.status == "completed"
    assert [decision.kind for decision in loop.state.decisions] == ["keep"] * 3


def test_a_verdict_must_be_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1])
    judged(bench, lambda step, metrics: None)
    with pytest.raises(InputError, match=r"step 7 is None; allowed: 'keep', 'prune', 'pause'"):
        bench.run()


def test_a_verdict_that_fails_fails_the_attempt(tmp_path: Path) -> None:
    def unreachable(step: int, metrics: Metrics) -> Answer:
        raise ConnectionError("nobody answers")

    bench = Bench(tmp_path, [3, 2, 1])
    judged(bench, unreachable)
    with pytest.raises(TrainingError, match="verdict on step 7 failed: ConnectionError: nobody answers"):
        bench.run()


# -- the record


def test_decisions_in_superseded_parts_of_the_journal_are_kept(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1])
    ask(bench, at=9)
    bench.run()
    Bench.run(bench, RunState(step=5, settled=5, decisions=journalled_decisions(tmp_path / "journal")))
    assert lines(tmp_path, 2)[0]["from_step"] == 5
    assert list(journalled_decisions(tmp_path / "journal")) == [STOP]


def test_a_decision_that_is_known_is_not_added_again() -> None:
    decisions = Decisions([STOP, GO_ON, STOP])
    assert list(decisions) == [STOP, GO_ON]
    assert decisions == Decisions([STOP, GO_ON]) != Decisions([STOP])
    assert decisions.end(0) is None
    assert decisions.next_end(8) == 9
    assert decisions.next_end(9) is None


def test_decisions_are_found_in_a_damaged_journal(tmp_path: Path) -> None:
    """The result depends on them; a decision that is itself damaged or torn is none."""
    first, second = (
        json.dumps(
            {"kind": "decision", "time": 1.0, "step": step, "name": "stop", "detail": {}},
            separators=(",", ":"),
        )
        for step in (5, 9)
    )
    text = f"not JSON\n{first}\n{first.replace('detail', 'detial')}\n{second}"
    (tmp_path / "0001.jsonl").write_text(text)
    assert list(journalled_decisions(tmp_path)) == [Decision(5, "stop")]


def test_two_changes_of_processes_at_one_step_are_two_decisions() -> None:
    first, second = (
        Decision(4, "processes", {"from": 4, "to": to, "attempt": attempt})
        for to, attempt in ((2, 2), (1, 3))
    )
    decisions = Decisions([first, second, first])
    assert list(decisions) == [first, second]
    assert decisions.processes() == 1
    assert Decisions([STOP, GO_ON]).processes() is None


class NoJudge:
    def __call__(self, step: int) -> str:
        return "keep"


def one_argument(step: int) -> str:
    return "keep"


@pytest.mark.parametrize(
    ("verdict", "problem"),
    [
        ("keep", "verdict: 'keep' is not a function; give a function that takes"),
        (one_argument, r"verdict: one_argument cannot be called with \(step, metrics\): too many"),
        (NoJudge(), r"verdict: NoJudge cannot be called with \(step, metrics\): too many"),
    ],
)
def test_a_verdict_that_cannot_be_asked_is_refused(verdict: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        outside_module.check_verdict(verdict)


@pytest.mark.parametrize("verdict", [None, max, lambda *_: "keep", lambda step, metrics: "keep"])
def test_a_verdict_that_may_be_asked_is_not(verdict: Any) -> None:
    """Of a function that is built in, Python may not know the arguments."""
    outside_module.check_verdict(verdict)
