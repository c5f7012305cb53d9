"""Lightning's own Trainer, with a tiny network.

`main` is the training of a user, killed after a step.
"""

import json
import logging
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.errors import RunLockedError
from trainwright.integrations.attempt import TrainerAttempt
from trainwright.integrations.fingerprints import weights_digest
from trainwright.records.journal import read
from trainwright.records.run_dir import RunDir

pytestmark = pytest.mark.slow  # the library takes seconds to import


def network(width: int = 8) -> Any:
    """A module with dropout, that calls its metrics as people do."""
    import torch
    from lightning.pytorch import LightningModule, seed_everything

    class Net(LightningModule):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(width, 2)
            )

        def loss(self, batch: Any) -> Any:
            return torch.nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

        def training_step(self, batch: Any, index: int) -> Any:
            loss = self.loss(batch)
            self.log("train_loss", loss, on_step=True, on_epoch=True)
            return loss

        def validation_step(self, batch: Any, index: int) -> None:
            self.log("valid/loss", self.loss(batch))
            self.log("accuracy", (self.layers(batch[0]).argmax(-1) == batch[1]).float().mean())

        def test_step(self, batch: Any, index: int) -> None:
            self.log("test_loss", self.loss(batch))

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 1e-2)

    torch.set_num_threads(1)
    seed_everything(3, verbose=False)
    return Net(width)


def rows(count: int, seed: int, *, shuffle: bool = False) -> Any:
    import torch

    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] > 0).long())
    return torch.utils.data.DataLoader(data, 8, shuffle=shuffle)


def at(step: int, action: Callable[[Any], None]) -> Any:
    """A callback that does something when a step is made."""
    from lightning.pytorch import Callback

    class At(Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            if trainer.global_step == step:
                action(trainer)

    return At()


def trainer(folder: Path, *callbacks: Any, **arguments: Any) -> Any:
    """A Trainer for 30 steps, 10 in an epoch; it saves at 8, 16 and 24."""
    from lightning.pytorch import Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    saves = ModelCheckpoint(folder / "saved", filename="{step}", every_n_train_steps=8, save_top_k=-1)
    quiet = {
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "log_every_n_steps": 5,
        "accelerator": "cpu",
    }
    given: dict[str, Any] = {
        "max_epochs": 3,
        "default_root_dir": folder,
        "logger": False,
        **quiet,
        **arguments,
    }
    return Trainer(callbacks=[saves, *callbacks], **given)


def callback(folder: Path, **options: Any) -> Any:
    from trainwright.integrations.lightning import TrainwrightCallback

    return TrainwrightCallback("net", folder / "runs", **options)


def trained(
    folder: Path, *callbacks: Any, options: Any = None, compare: bool = True, **arguments: Any
) -> Any:
    """Callback, Trainer and module of a training that came to its end."""
    recorder = callback(folder, **(options or {}))
    own, module = trainer(folder, recorder, *callbacks, **arguments), network()
    checkpoint = recorder.resume_from(own) if compare else recorder.resume_from()
    own.fit(module, rows(80, 1, shuffle=True), rows(40, 2), ckpt_path=checkpoint)
    return recorder, own, module


def raised(folder: Path, step: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The run of a training that ended by an error."""
    every_checkpoint_verified(monkeypatch)

    def fail(_: Any) -> None:
        raise error

    with pytest.raises((type(error), SystemExit)):
        trained(folder, at(step, fail))
    (run,) = trainwright.list_runs(folder / "runs")
    return run


def every_checkpoint_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the training wait until a checkpoint is verified: so short a one would be over before."""
    commit = TrainerAttempt.commit

    def commit_and_wait(attempt: TrainerAttempt, saved: Any) -> None:
        commit(attempt, saved)
        attempt._writer.drain()

    monkeypatch.setattr(TrainerAttempt, "commit", commit_and_wait)


def kinds(run: Any, kind: str) -> list[dict[str, Any]]:
    return [record for record in read(run.path / "journal") if record["kind"] == kind]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Callback, Trainer and module of a training that was never interrupted."""
    return trained(tmp_path_factory.mktemp("whole"))


def test_the_run_directory_is_one_of_ours(whole: Any) -> None:
    run = whole[0].run
    assert run.status == "completed"
    assert {"steps": 30, "epochs": 3.0, "evaluated": "final", "attempts": 1}.items() <= run.result.items()
    assert run.digest == weights_digest(whole[2])
    assert set(run.metrics) == {"val_loss", "val_accuracy"}
    assert [record["step"] for record in kinds(run, "evaluation")] == [10, 20, 30]
    losses = [record["step"] for record in kinds(run, "metrics") if "train_loss" in record["values"]]
    assert losses == [5, 10, 15, 20, 25, 30]
    assert (run.path / "report.html").stat().st_size > 10_000
    assert trainwright.get(run.path).digest == run.digest


def test_the_manifest_names_every_input(whole: Any) -> None:
    manifest = whole[0].run.manifest
    assert manifest["computation"]["arguments.max_epochs"] == 3
    assert manifest["computation"]["model.options.hparams.width"] == 8
    assert manifest["seed"] == 3
    assert {name: split["rows"] for name, split in manifest["data"]["splits"].items()} == {
        "train": 80,
        "val": 40,
    }
    assert manifest["determinism"]["tier"] == "statistical"
    assert len(manifest["weights"]["initial"]) == 64
    config = trainwright.check(whole[0].run.path / "config.yaml").config
    assert (config.model.type, config.experiment.seed) == (f"{__name__}:Net", 3)


def test_the_callback_changes_no_bit_and_leaves_nothing_behind(whole: Any, tmp_path: Path) -> None:
    own, module = trainer(tmp_path), network()
    own.fit(module, rows(80, 1, shuffle=True), rows(40, 2))
    assert weights_digest(module) == whole[0].run.digest
    assert whole[1].loggers == own.loggers == []
    assert whole[1].save_checkpoint.__func__ is own.save_checkpoint.__func__


def test_a_killed_training_goes_on(tmp_path: Path) -> None:
    from warm_commands import IMPORTS, warm  # not for `main`, whose process finds this folder only

    processes = warm("test_lightning", (*IMPORTS, "lightning.pytorch"), folder=Path(__file__).parent)

    def script(kill_at: int) -> subprocess.CompletedProcess[str]:
        return processes.run(str(tmp_path), str(kill_at), folder=tmp_path)

    assert script(21).returncode == -signal.SIGKILL
    (run,) = trainwright.list_runs(tmp_path / "runs")
    assert run.status == "crashed"
    done = script(0)
    assert done.returncode == 0, done.stderr
    assert [again.id for again in trainwright.list_runs(tmp_path / "runs")] == [run.id]
    assert (run.status, run.result["steps"], run.result["attempts"]) == ("completed", 30, 2)
    assert [record["from_step"] for record in kinds(run, "start")] == [0, 16]
    assert run.manifest["changes"] == []


def test_a_damaged_checkpoint_is_named_and_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raised(tmp_path, 21, ValueError("the user's own"), monkeypatch)
    newest = tmp_path / "saved/step=16.ckpt"
    newest.write_bytes(newest.read_bytes()[:-1])
    (tmp_path / "saved/step=20.ckpt").write_bytes(b"half")  # killed while it was written
    with caplog.at_level(logging.WARNING):
        recorder, _, _ = trained(tmp_path)
    assert "step=16.ckpt is damaged: step=16.ckpt:" in caplog.text
    assert "step=20.ckpt is skipped" in caplog.text
    assert [record["from_step"] for record in kinds(recorder.run, "start")] == [0, 8]


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("the user's own"), "failed"), (KeyboardInterrupt(), "interrupted")],
    ids=str,
)
def test_a_training_that_raises_says_how_it_ended(
    error: BaseException, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = raised(tmp_path, 12, error, monkeypatch)
    assert (run.status, run.result["status"], run.result["steps"]) == (status, status, 12)
    assert run.result.get("error") == ("ValueError: the user's own" if status == "failed" else None)
    assert kinds(run, "end")[-1]["status"] == status


def test_a_checkpoint_saved_because_of_an_error_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lightning.pytorch.callbacks import OnExceptionCheckpoint

    every_checkpoint_verified(monkeypatch)

    def fail(_: Any) -> None:
        raise ValueError("the user's own")

    with pytest.raises(ValueError, match="own"):
        trained(tmp_path, OnExceptionCheckpoint(tmp_path / "saved"), at(12, fail))
    recorder = callback(tmp_path)
    assert recorder.resume_from() == str(tmp_path / "saved/on_exception.ckpt")


def test_other_arguments_mean_another_run_where_they_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = raised(tmp_path, 12, ValueError("the user's own"), monkeypatch)
    recorder = callback(tmp_path)
    assert recorder.resume_from(trainer(tmp_path, recorder, max_epochs=2)) is None
    assert "arguments differ" in caplog.text
    goes_on, _, _ = trained(tmp_path, at(99, print), compare=False, max_epochs=2)
    assert goes_on.run.id == run.id
    (change,) = goes_on.run.manifest["changes"]
    assert "arguments.max_epochs" in [found["what"] for found in change["differences"]]


def test_another_process_at_the_same_training_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = raised(tmp_path, 12, ValueError("the user's own"), monkeypatch)
    owner = RunDir(run.path)
    owner.acquire()
    with pytest.raises(RunLockedError, match="owned by another process"):
        callback(tmp_path).resume_from()
    owner.release()
    assert callback(tmp_path).resume_from() == str(tmp_path / "saved/step=8.ckpt")


def test_a_test_after_the_training_counts(tmp_path: Path) -> None:
    recorder, own, module = trained(tmp_path)
    (found,) = own.test(module, rows(24, 5), verbose=False)
    assert recorder.run.metrics["test_loss"] == found["test_loss"]
    assert set(recorder.run.metrics) == {"val_loss", "val_accuracy", "test_loss"}
    assert recorder.run.status == "completed"


def test_weights_alone_are_nothing_to_resume_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.pytorch.callbacks import ModelCheckpoint

    every_checkpoint_verified(monkeypatch)

    def fail(_: Any) -> None:
        raise ValueError("the user's own")

    light = ModelCheckpoint(tmp_path / "light", every_n_train_steps=10, save_weights_only=True)
    with pytest.raises(ValueError, match="own"):
        trained(tmp_path, light, at(21, fail))
    (run,) = trainwright.list_runs(tmp_path / "runs")
    known = {found["step"]: found["resumable"] for found in manifests(run)}
    assert known == {8: True, 16: True, 20: False}
    assert callback(tmp_path).resume_from() == str(tmp_path / "saved/step=16.ckpt")


def test_checkpoints_written_behind_the_trainers_back_are_waited_for(tmp_path: Path) -> None:
    from lightning.pytorch.plugins.io import AsyncCheckpointIO

    recorder, _, _ = trained(tmp_path, plugins=[AsyncCheckpointIO()])
    assert sorted(found["step"] for found in manifests(recorder.run)) == [8, 16, 24]


def manifests(run: Any) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in run.path.glob("checkpoints/*/manifest.json")]


def test_an_early_stop_is_an_event(tmp_path: Path) -> None:
    recorder, _, _ = trained(tmp_path, at(12, lambda own: setattr(own, "should_stop", True)))
    assert [event["name"] for event in kinds(recorder.run, "event")] == ["early_stop"]
    assert recorder.run.status == "completed"


def main(folder: str, step: str) -> None:
    """The script of a user."""
    every_checkpoint_verified(pytest.MonkeyPatch())
    trained(Path(folder), at(int(step), lambda _: os.kill(os.getpid(), signal.SIGKILL)))
