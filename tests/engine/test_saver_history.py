"""What the saver remembers over a resume, and what it forgets in time.

With a framework that is written down.
"""

import errno
import math
import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from scripted import BATCH, STEPS, Bench, Weights, checkpoints_of, steps_in

from small_runs import SMALL, flip, preempted
from trainwright import resume
from trainwright.engine import saver as saver_module
from trainwright.engine.checkpoint import Checkpoints, RunCheckpoints
from trainwright.engine.loop import Loop
from trainwright.engine.state import RunState
from trainwright.engine.writer import PendingWrite
from trainwright.errors import CheckpointError, TrainingError
from trainwright.frameworks.base import Plan
from trainwright.frameworks.torch.learner import TorchLearner
from trainwright.records.checkpoint_names import step_of
from trainwright.types import Evaluation


def state_at(step: int, *values: float) -> RunState:
    """The state after a step, with an evaluation at every seventh before it."""
    return RunState(
        step, step, evaluations=[Evaluation(7 * (i + 1), {"val_loss": v}) for i, v in enumerate(values)]
    )


def ended(loop: Loop) -> None:
    loop.parts.saver.drain()
    loop.parts.saver.close()


def committed(bench: Bench, state: RunState, best: list[int]) -> Loop:
    """Make best models and a checkpoint, as an attempt that then dies."""
    loop = bench.loop(RunState())
    for step in best:
        bench.learner.steps = step
        loop.parts.saver.keep_best(step, [step])
    bench.learner.steps = state.step
    loop.parts.saver.save(state, best)
    ended(loop)
    return loop


def best_of(folder: Path) -> list[int]:
    return sorted(steps_in(folder / "best"))


def test_a_resume_keeps_the_best_models_of_its_commit_until_a_newer_commit(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    committed(bench, state_at(10, 3.0), best=[7])
    state = state_at(10, 3.0)
    loop = bench.loop(state)
    assert best_of(tmp_path) == [7]
    bench.learner.steps = 14
    loop.parts.saver.keep_best(14, [14])  # better, but no checkpoint knows of it yet
    loop.parts.saver.drain()
    assert best_of(tmp_path) == [7, 14], (
        "a crash here goes on from step 10, whose best model is that of step 7"
    )
    loop.parts.saver.save(state_at(15, 3.0, 2.0), [14])
    ended(loop)
    assert 14 in best_of(tmp_path)


def test_a_resume_removes_the_best_models_of_later_steps(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    committed(bench, state_at(10, 3.0), best=[7])
    checkpoints_of(tmp_path).best.commit(14, Weights(14))
    ended(bench.loop(state_at(10, 3.0)))
    assert best_of(tmp_path) == [7], "it will be made again, by a process that knows of it"


def best_at(bench: Bench, loop: Loop, step: int) -> None:
    """The best model so far is that of this step."""
    bench.learner.steps = step
    loop.parts.saver.keep_best(step, [step])
    loop.parts.saver.drain()


def saved(bench: Bench, loop: Loop, step: int, best: list[int]) -> None:
    bench.learner.steps = step
    loop.parts.saver.save(state_at(step), best)
    loop.parts.saver.drain()


def test_each_checkpoint_that_is_kept_has_its_best_models(tmp_path: Path) -> None:
    bench = Bench(tmp_path, checkpoint={"keep_last": 2})
    loop = bench.loop()
    best_at(bench, loop, 7)
    saved(bench, loop, 10, [7])
    best_at(bench, loop, 14)
    saved(bench, loop, 20, [14])
    assert best_of(tmp_path) == [7, 14]
    saved(bench, loop, 30, [14])
    assert best_of(tmp_path) == [14], "nothing resumes from step 10 any more"
    best_at(bench, loop, 35)
    loop.parts.saver.drop_superseded_best()
    assert best_of(tmp_path) == [35]
    ended(loop)


def test_a_save_that_failed_needs_no_best_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, full = Bench(tmp_path), FullOnce(monkeypatch, 10)
    loop = bench.loop()
    best_at(bench, loop, 7)
    saved(bench, loop, 10, [7])
    assert full.failed
    assert not loop.parts.saver.newest_is_committed
    best_at(bench, loop, 14)
    assert best_of(tmp_path) == [14]
    ended(loop)


def test_the_first_step_counts_as_saved_only_when_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, full = Bench(tmp_path), FullOnce(monkeypatch, 1)
    loop = bench.loop()
    assert loop.parts.saver.newest_is_committed, "nothing was asked for yet"
    saved(bench, loop, 1, [])
    assert full.failed
    assert not loop.parts.saver.newest_is_committed
    saved(bench, loop, 1, [])
    assert loop.parts.saver.newest_is_committed
    ended(loop)


def test_a_checkpoint_without_a_manifest_takes_no_place(tmp_path: Path) -> None:
    bench = Bench(tmp_path, checkpoint={"keep_last": 2})
    loop = bench.loop()
    saved(bench, loop, 5, [])
    torn = tmp_path / "checkpoints" / "step-000000008-a0001"
    torn.mkdir()
    (torn / "weights.safetensors").write_bytes(b"half")
    saved(bench, loop, 10, [])
    assert {5, 10} <= set(steps_in(tmp_path / "checkpoints"))
    ended(loop)


def test_best_models_of_a_checkpoint_that_does_not_name_them_are_kept(tmp_path: Path) -> None:
    """The evaluations tell."""
    bench = Bench(tmp_path)
    checkpoints_of(tmp_path).best.commit(7, Weights(7))
    checkpoints_of(tmp_path).resume.commit(10, Weights(10), state_at(10, 3.0).to_json())
    ended(bench.loop(state_at(10, 3.0)))
    assert best_of(tmp_path) == [7]


def test_a_damaged_manifest_of_an_older_checkpoint_keeps_nobody_from_resuming(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    committed(bench, state_at(5), best=[3])
    committed(bench, state_at(10, 3.0), best=[7])
    (old,) = (tmp_path / "checkpoints").glob("step-000000005-*")
    (old / "manifest.json").write_text("{")
    ended(bench.loop(state_at(10, 3.0)))
    assert best_of(tmp_path) == [7]


def test_a_resume_extracts_only_the_best_models_that_are_missing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, plan=Plan(BATCH, STEPS, 0.1, cumulative=True), checkpoint={"save_top_k": 2})
    state = state_at(15, 3.0, 2.0)
    checkpoints_of(tmp_path).best.commit(7, Weights(7))
    torn = tmp_path / "best" / "step-000000014-a0001"  # its writer was killed
    torn.mkdir()
    (torn / "weights.safetensors").write_bytes(b"half")
    extracted: list[int | None] = []
    snapshot = bench.learner.snapshot
    bench.learner.snapshot = lambda **how: (extracted.append(how.get("step")), snapshot(**how))[1]  # type: ignore[method-assign]
    bench.attempt = 1
    loop = bench.loop(state)
    saved(bench, loop, 20, [14, 7])
    ended(loop)
    assert [step for step in extracted if step is not None] == [14]
    assert len(checkpoints_of(tmp_path).best.names(published=True)) == 2


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_damaged_checkpoints_of_later_steps_take_no_place(keep: int, tmp_path: Path) -> None:
    bench = Bench(tmp_path, checkpoint={"keep_last": keep})
    resume = checkpoints_of(tmp_path).resume
    for step in (5, 10, 20):
        resume.commit(step, Weights(step), state_at(step).to_json())
    flip(tmp_path / "checkpoints" / "step-000000020-a0001" / "weights.safetensors")
    commit, complaints = resume.newest()
    assert commit is not None
    assert (commit.step, len(complaints)) == (10, 1)
    loop = bench.loop(state_at(10))
    bench.learner.steps = 15
    loop.parts.saver.save(state_at(15), [])
    ended(loop)
    assert list(steps_in(tmp_path / "checkpoints")) == [5, 10, 15][-keep:], (
        "the damaged one counts as one that is kept"
    )


@pytest.mark.parametrize("step", [1, 5])
def test_the_same_step_is_saved_once(step: int, tmp_path: Path) -> None:
    bench, taken = Bench(tmp_path), list[int]()
    snapshot = bench.learner.snapshot
    bench.learner.snapshot = lambda **how: (taken.append(5), snapshot(**how))[1]  # type: ignore[method-assign]
    loop = bench.loop(RunState())
    for _ in range(2):
        loop.parts.saver.save(state_at(step), [])
    assert taken == [5], "a copy was made for nothing"
    ended(loop)
    assert loop.parts.saver.newest_is_committed
    assert bench.learner.released == 1
    (folder,) = (tmp_path / "checkpoints").iterdir()
    again = bench.loop(state_at(step))
    again.parts.saver.save(state_at(step), [])
    ended(again)
    assert list((tmp_path / "checkpoints").iterdir()) == [folder]


def test_an_evaluation_that_is_owed_is_saved_again(tmp_path: Path) -> None:
    """A commit of an evaluation that was cut short is replaced by one that holds its consequences."""
    bench = Bench(tmp_path)
    owing = state_at(7)
    owing.settled = 6
    checkpoints_of(tmp_path, attempt=1).resume.commit(7, Weights(7), owing.to_json())
    bench.attempt = 1
    loop = bench.loop(owing)
    loop.parts.saver.save(state_at(7, 3.0), [])
    ended(loop)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir())[-1] == "step-000000007-a0002"


@pytest.mark.parametrize("cumulative", [False, True])
def test_every_snapshot_is_released(cumulative: bool, tmp_path: Path) -> None:
    bench = Bench(tmp_path, [3, 2, 1], plan=Plan(BATCH, STEPS, 0.1, cumulative=cumulative))
    taken: list[bool] = []
    snapshot = bench.learner.snapshot

    def counted(**how: Any) -> Weights:
        taken.append(how.get("weights_only", False))
        return snapshot(**how)

    bench.learner.snapshot = counted  # type: ignore[method-assign]
    loop = bench.loop()
    save = loop.parts.saver.save

    def save_and_wait(*args: Any, **how: Any) -> None:
        save(*args, **how)
        loop.parts.saver.drain()

    loop.parts.saver.save = save_and_wait  # type: ignore[method-assign]
    loop.run()
    ended(loop)
    assert bench.learner.released == len(taken), "spare buffers are lost"
    assert (taken.count(False), taken.count(True)) == (5, 3), "a best model is weights alone"


# -- the clock


class Clock:
    """Stands in for an alarm: it rings when it is told to."""

    made: list["Clock"] = []  # noqa: RUF012

    def __init__(self, seconds: float, ring: Any) -> None:
        self.seconds, self.ring = seconds, ring
        self.is_running = True
        self.made.append(self)

    def cancel(self) -> None:
        self.is_running = False


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> list[Clock]:
    monkeypatch.setattr(saver_module, "call_later", Clock)
    monkeypatch.setattr(Clock, "made", [])
    return Clock.made


def test_the_clock_asks_for_a_save_after_the_step_that_it_rings_in(
    tmp_path: Path, clocks: list[Clock]
) -> None:
    timed = {"every_n_steps": None, "every_n_minutes": 2.5}

    def ring(step: int) -> float:
        if step == 3:
            assert not bench_loop.parts.saver.overdue
            clocks[-1].ring()
            assert bench_loop.parts.saver.overdue
        if step == 5:
            bench_loop.parts.saver.drain()
            assert list(steps_in(tmp_path / "checkpoints")) == [4]
            assert not bench_loop.parts.saver.overdue
            assert clocks[-1].is_running, "it counts anew from the save"
        return 1.0

    bench = Bench(tmp_path, losses=ring, checkpoint=timed)
    bench_loop = bench.loop()
    bench_loop.run()
    ended(bench_loop)
    assert {clock.seconds for clock in clocks} == {150.0}
    assert not any(clock.is_running for clock in clocks)
    assert list(steps_in(tmp_path / "checkpoints")) == [4, STEPS]


def test_a_run_that_fails_stops_its_clock(tmp_path: Path, clocks: list[Clock]) -> None:
    timed = {"every_n_steps": None, "every_n_minutes": 1}
    loop = Bench(tmp_path, losses=lambda step: math.nan, checkpoint=timed).loop()
    with pytest.raises(TrainingError, match="the loss of step 1 is not finite"):
        loop.run()
    assert clocks
    assert not clocks[-1].is_running
    ended(loop)


def test_a_save_after_the_end_starts_no_clock(tmp_path: Path, clocks: list[Clock]) -> None:
    bench = Bench(tmp_path, checkpoint={"every_n_steps": None, "every_n_minutes": 1})
    loop = bench.run()
    number = len(clocks)
    again = bench.loop(state_at(STEPS))
    again.parts.saver.start(lambda: None)
    again.parts.saver.stop_clock()
    again.parts.saver.save(state_at(STEPS + 1), [])
    ended(again)
    assert len(clocks) == number + 1
    assert not any(clock.is_running for clock in clocks)
    assert loop.state.step == STEPS
    again.parts.saver.start(lambda: None)
    again.parts.saver.close()
    assert not any(clock.is_running for clock in clocks)
    assert not again.parts.saver._writer._thread.is_alive()


@pytest.mark.parametrize(
    ("parameters", "written"), [(None, [7, 14, 21]), (4_000_000, [21]), (4_000_001, [7, 14, 21])]
)
def test_the_best_weights_of_a_small_model_wait_for_the_save_that_names_them(
    parameters: int | None, written: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two better ones come before that, so the first two are never written, and let their memory go."""
    best, made = list[int](), list[Any]()
    commit = Checkpoints.commit

    def noted(checkpoints: Checkpoints, step: int, *rest: Any) -> Any:
        if len(rest) == 1:  # without the state of a loop
            best.append(step)
        return commit(checkpoints, step, *rest)

    monkeypatch.setattr(Checkpoints, "commit", noted)
    bench = Bench(tmp_path, [3, 2, 1], waits=True, checkpoint={"every_n_steps": None})
    bench.learner.parameters = parameters
    snapshot = bench.learner.snapshot
    bench.learner.snapshot = lambda **how: made.append(snapshot(**how)) or made[-1]  # type: ignore[method-assign,func-returns-value]
    bench.run()
    assert best == written
    assert bench.learner.released == len(made) == 4


def test_without_a_clock_nothing_is_saved_between(tmp_path: Path, clocks: list[Clock]) -> None:
    Bench(tmp_path, checkpoint={"every_n_steps": None, "every_n_minutes": None}).run()
    assert list(steps_in(tmp_path / "checkpoints")) == [STEPS]
    assert clocks == []


def test_between_boundaries_the_clock_waits_for_something_new_to_save(
    tmp_path: Path, clocks: list[Clock]
) -> None:
    plan = Plan(BATCH, STEPS, 0.1, boundary=8)
    timed = {"every_n_steps": None, "every_n_minutes": 1}
    asked: dict[int, bool] = {}

    def loss(step: int) -> float:
        if step in (2, 9, 11):
            clocks[-1].ring()
        asked[step] = loop.parts.saver.overdue
        loop.parts.saver.drain()
        return 1.0

    bench = Bench(tmp_path, losses=loss, plan=plan, checkpoint=timed | {"keep_last": 9})
    loop = bench.loop()
    loop.run()
    ended(loop)
    assert list(steps_in(tmp_path / "checkpoints")) == [8, 16, STEPS]
    assert not asked[2], "there was no boundary before it"


def test_a_clock_that_rings_after_a_boundary_saves_that_boundary(tmp_path: Path, clocks: list[Clock]) -> None:
    timed = {"every_n_steps": None, "every_n_minutes": 1, "keep_last": 9}

    def loss(step: int) -> float:
        if step == 9:
            clocks[-1].ring()
            assert loop.parts.saver.overdue, "the state of step 8 is not saved"
        loop.parts.saver.drain()
        if step == 11:
            assert list(steps_in(tmp_path / "checkpoints")) == [8]
            clocks[-1].ring()
            assert not loop.parts.saver.overdue, "there is nothing new before step 16"
        return 1.0

    loop = Bench(tmp_path, losses=loss, plan=Plan(BATCH, STEPS, 0.1, boundary=8), checkpoint=timed).loop()
    loop.run()
    ended(loop)
    assert list(steps_in(tmp_path / "checkpoints")) == [8, 16, STEPS]


def test_boundaries_of_two_steps_are_boundaries(tmp_path: Path) -> None:
    def loss(step: int) -> float:
        loop.parts.saver.drain()
        return 1.0

    plan = Plan(BATCH, STEPS, 0.1, boundary=2)
    loop = Bench(tmp_path, losses=loss, plan=plan, checkpoint={"keep_last": 9}).loop()
    loop.run()
    ended(loop)
    assert list(steps_in(tmp_path / "checkpoints")) == [4, 10, 14, 20, STEPS]


def test_between_two_boundaries_the_state_of_the_last_one_is_saved(tmp_path: Path) -> None:
    bench = Bench(tmp_path, plan=Plan(BATCH, STEPS, 0.1, boundary=2))
    loop = bench.loop()
    saver = loop.parts.saver
    assert not saver.wants(1), "nothing is marked yet"
    bench.learner.steps = 2
    saver.mark(state_at(2), [])
    assert saver.wants(3)
    bench.learner.steps = 3
    saver.save(state_at(3), [])
    assert not saver.wants(3)
    assert saver.wants(3, finished=True)
    ended(loop)
    assert list(steps_in(tmp_path / "checkpoints")) == [2]


# -- what waits to be written


def test_a_best_model_that_a_waiting_checkpoint_knows_of_is_written(tmp_path: Path) -> None:
    """It was surpassed while both waited; the checkpoint needs it all the same."""
    bench = Bench(tmp_path)
    loop, release = bench.loop(), threading.Event()
    saver = loop.parts.saver
    saver._writer.submit(PendingWrite(0, lambda: (release.wait(30), None)[1], replaceable=False))
    bench.learner.steps = 7
    saver.keep_best(7, [7])
    bench.learner.steps = 10
    saver.save(state_at(10, 3.0), [7])
    saver.keep_best(13, [14])
    release.set()
    ended(loop)
    assert list(steps_in(tmp_path / "checkpoints")) == [10]
    assert 7 in best_of(tmp_path)


def test_a_checkpoint_that_waits_gives_way_to_a_newer_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    loop, release = bench.loop(), threading.Event()
    loop.parts.saver._writer.submit(PendingWrite(0, lambda: (release.wait(30), None)[1], replaceable=False))
    for step in (5, 10):
        loop.parts.saver.save(state_at(step), [])
    release.set()
    ended(loop)
    assert list(steps_in(tmp_path / "checkpoints")) == [10]


class FullOnce:
    """Fails the first write of a snapshot of one step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
        write, self.failed = Weights.write, False

        def failing(weights: Weights, folder: Path) -> Any:
            if weights._array[0] == step and not self.failed:
                self.failed = True
                raise OSError(28, "No space left on device")
            return write(weights, folder)

        monkeypatch.setattr(Weights, "write", failing)


def test_a_step_whose_save_failed_may_be_saved_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench, full = Bench(tmp_path), FullOnce(monkeypatch, 5)
    loop = bench.loop()
    bench.learner.steps = 5
    for _ in range(2):
        loop.parts.saver.save(state_at(5), [])
        loop.parts.saver.drain()
    ended(loop)
    assert full.failed
    assert list(steps_in(tmp_path / "checkpoints")) == [5]


def test_a_best_model_that_could_not_be_written_comes_before_the_next_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, full = Bench(tmp_path), FullOnce(monkeypatch, 7)
    loop = bench.loop()
    bench.learner.steps = 7
    loop.parts.saver.keep_best(7, [7])
    loop.parts.saver.drain()
    assert full.failed
    assert best_of(tmp_path) == []
    bench.learner.steps = 10
    loop.parts.saver.save(state_at(10, 3.0), [7])
    ended(loop)
    assert best_of(tmp_path) == [7]


def test_what_was_journalled_before_a_save_is_durable_with_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    loop = bench.loop()
    loop.parts.recorder.losses(1, [0.5])
    bench.learner.steps = 1
    loop.parts.saver.save(state_at(1), [])
    loop.parts.saver.drain()
    assert '"values":[0.5]' in (tmp_path / "journal" / "0001.jsonl").read_text()
    ended(loop)


class InStore:
    """The lease of a run in a store, or of one that is not; notes in which thread it is renewed."""

    def __init__(self, *, is_in_store: bool) -> None:
        self.is_in_store = is_in_store
        self.renewed: list[str] = []

    def renew(self) -> None:
        threading.Event().wait(0.05)  # long enough that a caller who does not wait for it is seen
        self.renewed.append(threading.current_thread().name)


@pytest.mark.parametrize("is_in_store", [True, False])
def test_the_journal_is_stored_after_the_saves_that_wait(is_in_store: bool, tmp_path: Path) -> None:
    bench, lease = Bench(tmp_path), InStore(is_in_store=is_in_store)
    loop, release = bench.loop(), threading.Event()
    saver = loop.parts.saver
    object.__setattr__(saver._checkpoints, "lease", lease)
    saver._publish = lambda commit: {commit.name}  # type: ignore[method-assign]
    saver._writer.submit(PendingWrite(0, lambda: (release.wait(30), None)[1], replaceable=False))
    bench.learner.steps = 5
    saver.save(state_at(5), [])
    threading.Timer(0.05, release.set).start()
    saver.store_journal(6)
    assert lease.renewed == (["trainwright-writer"] if is_in_store else [])
    ended(loop)
    assert list(steps_in(tmp_path / "checkpoints")) == [5]


def test_a_checkpoint_that_the_log_does_not_get_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not exist for a resume, so it does not count, and takes the place of no other."""
    publish, named, there = RunCheckpoints.publish, list[list[int]](), list[list[int]]()

    def failing(checkpoints: RunCheckpoints, kept: Collection[str]) -> None:
        named.append(sorted(map(step_of, kept)))
        there.append(sorted(steps_in(tmp_path / "checkpoints")))
        if len(named) == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        publish(checkpoints, kept)

    monkeypatch.setattr(RunCheckpoints, "publish", failing)
    bench = Bench(tmp_path)
    loop, failures = bench.loop(), list[tuple[int, str]]()
    for step in (5, 10, 15):
        bench.learner.steps = step
        loop.parts.saver.save(state_at(step), [])
        loop.parts.saver.drain()
        failures += loop.parts.saver.failures()
    ended(loop)
    assert named == [[5], [5, 10], [5, 15]]
    assert there == [[5], [5, 10], [5, 15]]
    assert [step for step, _ in failures] == [10]


# -- what was restored


def test_a_restored_state_with_another_digest_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    run = preempted(tmp_path)
    restore = TorchLearner.restore

    def slightly_wrong(learner: Any, folder: Path, **how: Any) -> None:
        restore(learner, folder, **how)
        with torch.no_grad():
            next(learner.model().native.parameters()).view(-1)[0].add_(1e-3)

    monkeypatch.setattr(TorchLearner, "restore", slightly_wrong)
    with pytest.raises(CheckpointError, match=r"step-000000013-a0001.* digest"):
        resume(run)
    monkeypatch.undo()
    assert resume(run).result["steps"] == SMALL["training"]["max_steps"]
