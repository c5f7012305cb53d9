"""What is kept: the best models before the commits that know of them, and only what is whole counts."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from test_checkpoint import FakeSnapshot

import trainwright
from small_runs import SMALL, every_save_on_disk
from trainwright.callbacks.base import Callback
from trainwright.engine.checkpoint import Checkpoints
from trainwright.errors import CheckpointError
from trainwright.runs.run import Run
from trainwright.stores.local import LocalStore

CONFIG: dict[str, Any] = {**SMALL, "checkpoint": {"every_n_steps": 5, "keep_last": 2, "save_top_k": 2}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trainwright.train(CONFIG, runs_dir=tmp_path_factory.mktemp("whole"))


def outcome(run: Run) -> tuple[Any, ...]:
    return run.result["best"], run.metrics, run.digest


class FullDisk:
    """Fails the first commits of one kind, as a full disk does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: str, times: int) -> None:
        self.left = times
        commit = Checkpoints.commit

        def failing(checkpoints: Checkpoints, step: int, *rest: Any) -> Any:
            if checkpoints._kind == kind and self.left:
                self.left -= 1
                raise CheckpointError(f"step {step}: {os.strerror(errno.ENOSPC)}")
            return commit(checkpoints, step, *rest)

        monkeypatch.setattr(Checkpoints, "commit", failing)


@pytest.mark.parametrize("times", [1, 3])
def test_a_best_model_whose_save_failed_is_saved_later(
    times: int, whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(monkeypatch, "best", times)
    with every_save_on_disk():  # else the last save may be the third
        run = trainwright.train(CONFIG, runs_dir=tmp_path)
    assert disk.left == 0
    assert outcome(run) == outcome(whole)


def test_no_commit_knows_of_a_best_model_that_is_not_on_disk(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        FullDisk(patch, "best", 10**6)
        with pytest.raises(CheckpointError, match="No space left"):
            trainwright.train(CONFIG, runs_dir=tmp_path)
    (run,) = trainwright.list_runs(tmp_path)
    assert outcome(trainwright.resume(run)) == outcome(whole)


class Visitor(Callback):
    """Puts a folder of its own beside the checkpoints."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir

    def on_start(self, run: Any) -> None:
        for kind in ("checkpoints", "best"):
            folder = self._runs_dir / run.experiment / run.run_id / kind / "backup"
            folder.mkdir(parents=True)
            (folder / "notes.txt").write_text("mine")


def test_what_others_put_beside_the_checkpoints_is_left_alone(whole: Run, tmp_path: Path) -> None:
    run = trainwright.train(CONFIG, runs_dir=tmp_path, callbacks=[Visitor(tmp_path)])
    assert outcome(run) == outcome(whole)
    assert (run.path / "checkpoints" / "backup" / "notes.txt").read_text() == "mine"


def test_torn_checkpoints_do_not_count_as_whole(tmp_path: Path) -> None:
    kept = Checkpoints(LocalStore(tmp_path), "checkpoints", attempt=1)
    kept.commit(10, FakeSnapshot(10), {"step": 10})
    for name in ("step-000000010-a0002", "step-000000020-a0001"):
        torn = tmp_path / "checkpoints" / name
        torn.mkdir()
        (torn / "weights.safetensors").write_bytes(b"half")
    assert kept.names(published=True) == ["step-000000010-a0001"]
    assert kept.load_step(10).attempt == 1, "the torn one of a later attempt hides it"
    with pytest.raises(CheckpointError, match="never finished"):
        kept.load_step(20)
