"""A framework that goes on exactly only from its own boundaries, and one whose state holds its earlier models."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from test_saver import FullDisk
from trainwright_toy import ToyFramework, ToyLearner

import trainwright
from small_runs import SMALL, SignalAt, assert_same, checkpoints
from trainwright.errors import CheckpointError
from trainwright.frameworks.base import WEIGHTS_FILE, LearnerInputs, Plan, Snapshot
from trainwright.frameworks.support.stored import StoredSnapshot, buffers
from trainwright.records.checkpoint_names import step_of
from trainwright.records.journal import SegmentReader, segments
from trainwright.types import NamedBuffer, StepResult

TOY: dict[str, Any] = {**SMALL, "model": {"type": "toy", "params": {"noise": 0.1}}}
BOUNDARY = 8


@pytest.fixture(params=[5, 40], ids=["saves often", "saves never"])
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {**TOY, "checkpoint": {"every_n_steps": request.param, "every_n_minutes": None, "keep_last": 9}}


class Hidden:
    """A step depends on how often the object has stepped since the last boundary, which no snapshot tells."""

    def __init__(self) -> None:
        self.since = 0


@pytest.fixture
def bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, made, step = ToyFramework.plan, ToyLearner.__init__, ToyLearner.step

    def with_boundary(*args: Any) -> Plan:
        return plan(*args)._replace(boundary=BOUNDARY)

    def with_hidden(self: Any, inputs: LearnerInputs) -> None:
        made(self, inputs)
        self.hidden = Hidden()

    def depending(self: Any, at: int, lr: float) -> StepResult:
        self.hidden.since = 0 if at % BOUNDARY == 0 else self.hidden.since + 1
        return step(self, at, lr * (1 + self.hidden.since))

    monkeypatch.setattr(ToyFramework, "plan", staticmethod(with_boundary))
    monkeypatch.setattr(ToyLearner, "__init__", with_hidden)
    monkeypatch.setattr(ToyLearner, "step", depending)


@pytest.mark.usefixtures("bounded")
@pytest.mark.parametrize("at", [3, 8, 13, 21, 29])
def test_a_forced_save_falls_back_to_the_last_boundary(
    at: int, config: dict[str, Any], tmp_path: Path
) -> None:
    whole = trainwright.train(config, runs_dir=tmp_path / "whole")
    run = trainwright.train(config, runs_dir=tmp_path / "cut", callbacks=[SignalAt(at)])
    assert run.status == "preempted"
    boundary = at - at % BOUNDARY
    saved = [step_of(folder.name) for folder in (run.path / "checkpoints").glob("step-*")]
    assert all(step % BOUNDARY == 0 for step in saved)
    assert max(saved, default=0) == boundary
    resumed = trainwright.resume(run)
    assert next(iter(SegmentReader(segments(run.path / "journal")[-1])))["from_step"] == boundary
    assert_same(resumed, whole)


@pytest.mark.usefixtures("bounded")
def test_a_save_that_fails_at_the_end_is_an_error(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trainwright.train(config, runs_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
        FullDisk(patch, "checkpoints", 10**6)
        with pytest.raises(CheckpointError, match="No space left"):
            trainwright.train(config, runs_dir=tmp_path / "cut", callbacks=[SignalAt(13)])
    (run,) = trainwright.list_runs(tmp_path / "cut")
    assert_same(trainwright.resume(run), whole)


@pytest.mark.usefixtures("bounded")
def test_a_finished_run_is_kept_at_its_last_step(config: dict[str, Any], tmp_path: Path) -> None:
    run = trainwright.train(config, runs_dir=tmp_path)
    assert step_of(checkpoints(run)[-1].name) == run.result["steps"] == 30


class Sums(ToyLearner):
    """Keeps the weights of every step, so that those of an earlier one can be had later."""

    taken: ClassVar[list[int]] = []

    def __init__(self, inputs: LearnerInputs) -> None:
        super().__init__(inputs)
        self._history = np.zeros((64, *self._tensors[WEIGHTS_FILE]["w"].shape))

    def step(self, step: int, lr: float) -> StepResult:
        result = super().step(step, lr)
        self._history[step + 1] = self._tensors[WEIGHTS_FILE]["w"]
        return result

    def _arrays(self, weights_only: bool) -> Mapping[str, Mapping[str, Any]]:
        return (
            self._files(weights_only)
            if weights_only
            else {**self._files(False), "history.safetensors": {"h": self._history}}
        )

    def snapshot(self, *, weights_only: bool = False, step: int | None = None) -> Snapshot:
        if step is not None:
            self.taken.append(step)
            return StoredSnapshot({WEIGHTS_FILE: {"w": self._history[step].copy()}})
        files = self._arrays(weights_only)
        return StoredSnapshot(
            {file: {name: array.copy() for name, array in named.items()} for file, named in files.items()}
        )

    def restore(self, folder: Path, *, weights_only: bool = False) -> None:
        from safetensors.numpy import load_file

        super().restore(folder, weights_only=weights_only)
        if not weights_only:
            self._history = load_file(folder / "history.safetensors")["h"]

    def state(self, *, weights_only: bool = False) -> Iterator[NamedBuffer]:
        return buffers(self._arrays(weights_only))


@pytest.fixture
def cumulative(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = ToyFramework.plan
    monkeypatch.setattr(
        ToyFramework, "plan", staticmethod(lambda *args: plan(*args)._replace(cumulative=True))
    )
    monkeypatch.setattr(ToyFramework, "learner", staticmethod(Sums))
    monkeypatch.setattr(Sums, "taken", [])


def test_best_models_are_taken_out_of_later_ones(
    config: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plain = trainwright.train(config, runs_dir=tmp_path / "plain")
    request.getfixturevalue("cumulative")
    run = trainwright.train(config, runs_dir=tmp_path / "cumulative")
    assert run.result["best"] == plain.result["best"]
    assert run.metrics == plain.metrics
    if config["checkpoint"]["every_n_steps"] > 30:
        assert Sums.taken == [run.result["best"]["step"]], "one model was needed, and one was taken"


@pytest.mark.usefixtures("cumulative")
@pytest.mark.parametrize("at", [9, 17])
def test_a_resumed_run_has_the_best_models_of_before(at: int, config: dict[str, Any], tmp_path: Path) -> None:
    whole = trainwright.train(config, runs_dir=tmp_path / "whole")
    run = trainwright.train(config, runs_dir=tmp_path / "cut", callbacks=[SignalAt(at)])
    best = {step_of(folder.name) for folder in (run.path / "best").iterdir()}
    assert best, "a commit without the best model that it knows of"
    assert_same(trainwright.resume(run), whole)
