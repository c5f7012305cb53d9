"""The loop, against formulas.

What it logs, when it evaluates and saves, which rate a step gets, and where it ends.
"""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest
from scripted import BATCH, SAMPLES, STEPS, Bench, checkpoints_of, steps_in

from small_runs import Crash, CrashAt
from trainwright.callbacks.base import Callback
from trainwright.engine import loop as loop_module
from trainwright.engine.loop import Loop
from trainwright.engine.state import RunState
from trainwright.errors import TrainingError
from trainwright.frameworks.base import Plan

SIZES = [BATCH if step % 5 < 4 else 4 for step in range(STEPS)]


def loss(step: int) -> float:
    return 1.0 / (step + 1)


def journal(folder: Path, attempt: int = 1) -> list[dict[str, Any]]:
    return [
        json.loads(line) for line in (folder / "journal" / f"{attempt:04d}.jsonl").read_text().splitlines()
    ]


def of_kind(records: list[dict[str, Any]], kind: str) -> dict[int, Any]:
    return {record["step"]: record["values"] for record in records if record["kind"] == kind}


def train_loss(first: int, last: int) -> float:
    """The mean over the samples of the steps numbered first .. last-1, counted from 0."""
    steps = range(first, last)
    return sum(loss(s) * SIZES[s] for s in steps) / sum(SIZES[s] for s in steps)


def ended(loop: Loop) -> None:
    loop.parts.saver.drain()
    loop.parts.saver.close()
    loop.parts.recorder.journal.flush()
    loop.parts.recorder.journal.close()


def test_every_loss_is_journalled_once_and_in_order(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1])
    bench.run()
    parts = [(r["first"], r["values"]) for r in journal(tmp_path) if r["kind"] == "losses"]
    assert [value for _, values in parts for value in values] == [loss(step) for step in range(STEPS)]
    assert [first for first, _ in parts] == [1 + sum(bench.learner.reads[:i]) for i in range(len(parts))]
    assert bench.status == "completed"


def test_metrics_are_those_of_the_steps_since_the_last_log(tmp_path: Path) -> None:
    Bench(tmp_path, [3, 2, 1]).run()
    logged = of_kind(journal(tmp_path), "metrics")
    assert list(logged) == [3, 6, 9, 12, 15, 18, 21, 23], "every third step, and the last"
    before = 0
    for step, values in logged.items():
        assert values["train_loss"] == pytest.approx(train_loss(before, step), rel=1e-12)
        assert values["learning_rate"] == 0.1
        seen = sum(SIZES[:step])
        assert values["epoch"] == pytest.approx(seen / SAMPLES)
        assert values["samples_per_second"] > 0
        before = step


def test_the_speed_is_samples_over_the_time_since_the_last_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(loop_module.time, "perf_counter", lambda: now[0])

    def slow(step: int) -> float:
        now[0] += 0.125
        return loss(step)

    bench = Bench(tmp_path, [], slow)
    loop = bench.loop()
    now[0] += 50  # what passes before the first step is no training
    loop.run()
    ended(loop)
    state = loop.state
    rates = [values["samples_per_second"] for values in of_kind(journal(tmp_path), "metrics").values()]
    ends = [0, 3, 6, 9, 12, 15, 18, 21, 23]
    expected = [sum(SIZES[a:b]) / (0.125 * (b - a)) for a, b in itertools.pairwise(ends)]
    assert rates == pytest.approx(expected)
    assert state.train_seconds == pytest.approx(0.125 * STEPS)


def test_the_mean_of_a_single_sample_is_its_loss(tmp_path: Path) -> None:
    bench = Bench(tmp_path, logging={"every_n_steps": 1})
    bench.learner.sizes = lambda step: 1
    bench.run()
    logged = of_kind(journal(tmp_path), "metrics")
    assert [values["train_loss"] for values in logged.values()] == [loss(step) for step in range(STEPS)]


def test_what_is_settled_can_be_read_while_training_goes_on(tmp_path: Path) -> None:
    seen: list[int] = []

    def looking(step: int) -> float:
        if step == 8:
            records = [record for record in journal(tmp_path) if record["kind"] == "losses"]
            seen.extend(record["first"] + len(record["values"]) - 1 for record in records)
        return loss(step)

    Bench(tmp_path, [3, 2, 1], looking).run()
    assert max(seen) == 7


@pytest.mark.parametrize("at", [1, 4, 8])
def test_a_signal_stops_it_after_the_step_that_it_comes_in(at: int, tmp_path: Path) -> None:
    def signalled(step: int) -> float:
        if step == at:
            loop.parts.signals.status = "preempted"
            loop.parts.signals.wake()  # type: ignore[misc]
        return loss(step)

    bench = Bench(tmp_path, [3, 2, 1], signalled)
    loop = bench.loop()
    assert loop.run() == "preempted"
    ended(loop)
    assert bench.learner.steps == at + 1
    assert max(steps_in(tmp_path / "checkpoints")) == at + 1


@pytest.mark.parametrize(
    ("found", "looks"), [(False, [1, 2, 4, 6, 23]), (True, [1])], ids=["nothing found", "found at once"]
)
def test_the_owner_looks_at_the_first_step_the_first_saves_and_the_end(
    found: bool, looks: list[int], tmp_path: Path
) -> None:
    bench, calls = Bench(tmp_path, [3, 2, 1], checkpoint={"every_n_steps": 2}), list[int]()
    loop = bench.loop()

    def look() -> bool:
        calls.append(bench.learner.steps)
        return found

    loop.run(look)
    ended(loop)
    assert calls == looks


def test_a_clock_that_rings_while_it_plans_is_heard_at_the_next_step(tmp_path: Path) -> None:
    """The plan must not cover up what was asked for while it was made."""
    seldom = {"every_n_steps": 100}
    bench = Bench(tmp_path, [3, 2, 1], checkpoint={"every_n_steps": None}, logging=seldom)
    loop = bench.loop()
    evaluate = bench._evaluate

    def ringing() -> Any:
        saver = loop.parts.saver
        if bench.learner.steps == 7:
            is_due = saver.is_due

            def ring_afterwards(step: int) -> bool:
                due = is_due(step)
                saver._overdue = step == 7  # the thread of the clock, just after the question
                return due

            saver.is_due = ring_afterwards  # type: ignore[method-assign]
        return evaluate()

    object.__setattr__(loop.parts, "evaluate", ringing)
    saved: list[int] = []
    save = loop.parts.saver.save
    loop.parts.saver.save = lambda state, *a, **k: (saved.append(state.step), save(state, *a, **k))[1]  # type: ignore[method-assign]
    loop.run()
    ended(loop)
    assert saved == [8, STEPS]


def test_it_evaluates_on_the_cadence_and_at_the_end(tmp_path: Path) -> None:
    state = Bench(tmp_path, [3, 2, 1]).run().state
    evaluated = {7: 3, 14: 2, 21: 1, 23: 9.0}
    assert of_kind(journal(tmp_path), "evaluation") == {s: {"val_loss": v} for s, v in evaluated.items()}
    assert [(e.step, e.metrics["val_loss"]) for e in state.evaluations] == list(evaluated.items())


def test_without_a_validation_split_nothing_is_decided(tmp_path: Path) -> None:
    state = Bench(tmp_path).run().state
    assert state.evaluations == []
    assert of_kind(journal(tmp_path), "evaluation") == {}
    assert not (tmp_path / "best").exists()


def test_it_saves_on_the_cadence_and_at_the_end(tmp_path: Path) -> None:
    class Saves(Callback):
        steps: list[int] = []  # noqa: RUF012

        def on_checkpoint(self, step: int) -> None:
            self.steps.append(step)

    bench = Bench(tmp_path, [3, 2, 1], waits=True)
    bench.run(callbacks=[Saves()])
    assert Saves.steps == [5, 10, 15, 20, 23]
    assert 21 in steps_in(tmp_path / "best")
    assert 7 not in steps_in(tmp_path / "best"), "no checkpoint that is kept knows it as the best"
    commit, complaints = checkpoints_of(tmp_path).resume.newest()
    assert commit is not None
    assert (commit.step, complaints) == (23, [])


def test_early_stopping_ends_with_the_evaluation_that_decides_it(tmp_path: Path) -> None:
    stopping = {"early_stopping": {"metric": "val_loss", "patience": 1}}
    bench = Bench(tmp_path, [2, 3, 1], training=stopping)
    loop = bench.run()
    assert (loop.state.step, bench.learner.steps, bench.status) == (14, 14, "completed")
    logged = of_kind(journal(tmp_path), "metrics")
    assert list(logged) == [3, 6, 9, 12, 14], "the last step is logged wherever it is"
    assert [r["name"] for r in journal(tmp_path) if r["kind"] == "event"] == ["best", "early_stop"]
    assert max(steps_in(tmp_path / "checkpoints")) == 14


def test_a_plateau_lowers_the_rate_of_the_next_step(tmp_path: Path) -> None:
    plateau = {"scheduler": {"type": "plateau", "metric": "val_loss", "patience": 0, "factor": 0.5}}
    bench = Bench(tmp_path, [2, 3, 1], training=plateau)
    bench.run()
    assert bench.learner.rates == [0.1] * 14 + [0.05] * 9
    rates = [values["learning_rate"] for values in of_kind(journal(tmp_path), "metrics").values()]
    assert rates == [0.1] * 4 + [0.05] * 4


def test_the_rate_is_that_of_the_schedule_at_each_step(tmp_path: Path) -> None:
    cosine = {"scheduler": {"type": "cosine", "warmup_steps": 4, "final_lr_ratio": 0.1}}
    bench = Bench(tmp_path, training=cosine)
    bench.run()
    warm = [0.1 * (s + 1) / 4 for s in range(4)]
    decayed = [0.1 * (0.1 + 0.9 * (1 + math.cos(math.pi * s / 19)) / 2) for s in range(19)]
    assert bench.learner.rates == pytest.approx(warm + decayed, rel=1e-12)
    logged = of_kind(journal(tmp_path), "metrics")
    assert [v["learning_rate"] for v in logged.values()] == [bench.learner.rates[s - 1] for s in logged]


def test_a_framework_without_a_rate_is_given_one_and_logs_none(tmp_path: Path) -> None:
    cosine = {"scheduler": {"type": "cosine"}}
    bench = Bench(tmp_path, plan=Plan(BATCH, STEPS, None), training=cosine)
    bench.run()
    assert bench.learner.rates == [1.0] * STEPS
    assert "learning_rate" not in of_kind(journal(tmp_path), "metrics")[3]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("at", [0, 4, 22])
def test_a_loss_that_is_not_finite_is_named_by_its_step(bad: float, at: int, tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1], lambda step: bad if step >= at else loss(step))
    loop = bench.loop()
    with pytest.raises(TrainingError, match=f"the loss of step {at + 1} is not finite"):
        loop.run()
    loop.parts.saver.drain()
    loop.parts.saver.close()
    last = at - at % 5  # a checkpoint is due every five steps
    assert max(steps_in(tmp_path / "checkpoints"), default=0) == last, "it saved what it made of it"
    assert loop.parts.saver._clock is None


def test_losses_are_read_after_many_steps_even_where_nothing_is_due(tmp_path: Path) -> None:
    seldom = {"every_n_steps": 10**6}
    bench = Bench(tmp_path, plan=Plan(BATCH, 2100, 0.1), evaluation=seldom, checkpoint=seldom, logging=seldom)
    bench.run()
    assert [count for count in bench.learner.reads if count] == [1024, 1024, 52]
    metrics = of_kind(journal(tmp_path), "metrics")
    samples = [BATCH if step % 5 < 4 else 4 for step in range(2100)]
    mean = sum(loss(s) * n for s, n in enumerate(samples)) / sum(samples)
    assert metrics[2100]["train_loss"] == pytest.approx(mean)


# -- going on from a checkpoint


def saved_state(folder: Path, attempt: int = 1) -> RunState:
    checkpoints = checkpoints_of(folder, attempt).resume
    commit, _ = checkpoints.newest()
    assert commit is not None
    return RunState.from_json(checkpoints.state(commit))


def cut(bench: Bench, at: int) -> RunState:
    """Run it until it dies after the log of step `at`; return what the newest checkpoint holds."""
    loop = bench.loop(callbacks=[CrashAt(at)])
    with pytest.raises(Crash):
        loop.run()
    loop.parts.saver.drain()
    loop.parts.saver.close()
    return saved_state(bench.folder)


def test_a_checkpoint_holds_every_consequence_of_its_step(tmp_path: Path) -> None:
    state = cut(Bench(tmp_path, [3, 2, 1], checkpoint={"every_n_steps": 7}), at=9)
    assert (state.step, state.settled) == (7, 7)
    assert [(e.step, e.metrics) for e in state.evaluations] == [(7, {"val_loss": 3})]
    assert state.loss_sum == loss(6) * SIZES[6], "only what was not logged yet"
    assert state.loss_samples == SIZES[6]
    assert state.train_seconds > 0


def test_a_resumed_run_logs_what_the_uninterrupted_one_does(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1])
    state = cut(bench, at=12)
    assert state.step == 10
    bench.run(state)
    logged = of_kind(journal(tmp_path, 2), "metrics")
    assert list(logged) == [12, 15, 18, 21, 23]
    assert logged[12]["train_loss"] == pytest.approx(train_loss(9, 12), rel=1e-12)
    assert of_kind(journal(tmp_path, 2), "evaluation").keys() == {14, 21, 23}
    assert 21 in steps_in(tmp_path / "best")


def test_what_a_cut_evaluation_owes_is_drawn_before_the_next_step(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1])
    state = cut(bench, at=9)
    state.step, state.settled = 7, 6
    bench.run(state)
    records = journal(tmp_path, 2)
    assert [record["kind"] for record in records[1:3]] == ["evaluation", "event"]
    assert records[1]["step"] == 7


def test_a_completed_state_makes_no_step(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1])
    state = bench.run().state
    folders = sorted((tmp_path / "checkpoints").iterdir())
    bench.run(state)
    assert bench.learner.steps == STEPS
    assert sorted((tmp_path / "checkpoints").iterdir()) == folders, "it was saved again"


def test_a_failed_save_is_an_event_and_the_next_one_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from scripted import Weights

    write, failing = Weights.write, [True]

    def fail_once(snapshot: Weights, folder: Path) -> Any:
        if failing:
            failing.clear()
            raise OSError(28, "No space left on device")
        return write(snapshot, folder)

    monkeypatch.setattr(Weights, "write", fail_once)
    bench = Bench(tmp_path, losses=lambda step: wait(loop, step))

    def wait(loop: Any, step: int) -> float:
        loop.parts.saver.drain()
        return loss(step)

    loop = bench.loop()
    loop.run()
    loop.parts.saver.drain()
    loop.parts.saver.close()
    loop.parts.recorder.journal.flush()
    (event,) = [record for record in journal(tmp_path) if record["kind"] == "event"]
    assert (event["name"], event["detail"]["saved_step"], event["step"]) == ("checkpoint_failed", 5, 6)
    assert "No space left" in event["detail"]["message"]
    assert "training continues, and will save again" in caplog.text
    assert list(steps_in(tmp_path / "checkpoints")) == [20, 23]


def test_closing_ends_what_learner_and_saver_have_started(tmp_path: Path) -> None:
    loop = Bench(tmp_path).loop()
    loop.parts.recorder.journal.close()
    closed: list[str] = []
    loop.parts.learner.close = lambda: closed.append("learner")  # type: ignore[method-assign]
    loop.parts.saver.close = lambda: closed.append("saver")  # type: ignore[method-assign]
    loop.parts.close()
    assert closed == ["learner", "saver"]
