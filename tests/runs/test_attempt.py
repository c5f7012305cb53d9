"""A process life of a run: who may begin one, what it takes up, and what each kind of failure costs."""

import errno
import json
import logging
import os
import re
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, Crash, assert_same, checkpoints, crashed, every_save_on_disk, flip, preempted
from trainwright import plugins
from trainwright.callbacks.base import Callback
from trainwright.config import load
from trainwright.engine.journal import Journal
from trainwright.errors import (
    ChangedInputsError,
    CheckpointError,
    DataError,
    InputError,
    RunLockedError,
    TrainingError,
    TrainwrightError,
)
from trainwright.records.journal import losses, read
from trainwright.records.listing import all_runs
from trainwright.records.run_dir import RunDir
from trainwright.runs import attempt
from trainwright.runs.catalog import Catalog
from trainwright.runs.frameworks import framework_name
from trainwright.runs.processes import threads
from trainwright.runs.run import Run
from trainwright.runs.wiring import _remedies, run_checkpoints
from trainwright.stores.local import LocalStore
from warm_commands import command


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trainwright.train(SMALL, runs_dir=tmp_path_factory.mktemp("whole"))


def events(run: Run, name: str) -> list[dict[str, Any]]:
    return [
        record
        for record in read(run.path / "journal")
        if record["kind"] == "event" and record["name"] == name
    ]


def cli(*words: str) -> int:
    from trainwright.cli.main import main

    return main(list(words))


# -- taking up a checkpoint


def test_a_resume_goes_on_from_the_newest_commit(whole: Run, tmp_path: Path) -> None:
    run = crashed(tmp_path, at=13)
    assert run.status == "failed"
    resumed = trainwright.resume(run)
    assert_same(resumed, whole)
    starts = [record["from_step"] for record in read(run.path / "journal") if record["kind"] == "start"]
    assert starts == [0, 10]


DAMAGES: dict[str, Callable[[Path], None]] = {
    "a flipped bit": lambda folder: flip(folder / "weights.safetensors"),
    "a flipped bit in the optimizer": lambda folder: flip(folder / "optimizer.safetensors"),
    "a truncated file": lambda folder: os.truncate(folder / "weights.safetensors", 100),
    "a missing file": lambda folder: (folder / "state.json").unlink(),
    "a missing manifest": lambda folder: (folder / "manifest.json").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_an_older_one_taken(
    damage: str, whole: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = crashed(tmp_path)
    older, newest = checkpoints(run)
    DAMAGES[damage](newest)
    resumed = trainwright.resume(run)
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [warning for warning in warnings if newest.name in warning], warnings
    starts = [record["from_step"] for record in read(run.path / "journal") if record["kind"] == "start"]
    assert starts == [0, int(older.name.split("-")[1])]
    assert_same(resumed, whole)


def test_where_all_are_damaged_it_begins_again_and_says_so(
    whole: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = crashed(tmp_path)
    damaged = [folder.name for folder in checkpoints(run)]
    for folder in checkpoints(run):
        flip(folder / "weights.safetensors")
    resumed = trainwright.resume(run)
    assert "starts again at step 0" in caplog.text
    assert all(name in caplog.text for name in damaged)
    assert_same(resumed, whole)
    assert losses(read(run.path / "journal")).keys() == set(range(1, 31))


def test_a_checkpoint_whose_manifest_was_forged_is_never_loaded(whole: Run, tmp_path: Path) -> None:
    """Its step was edited; every file is whole."""
    run = crashed(tmp_path)
    newest = checkpoints(run)[-1]
    manifest = json.loads((newest / "manifest.json").read_text())
    manifest["step"] = 12
    (newest / "manifest.json").write_text(json.dumps(manifest))
    assert_same(trainwright.resume(run), whole)


def crash(*_: Any, **__: Any) -> None:
    raise Crash


@pytest.mark.parametrize("top", [2, 1])
def test_a_checkpoint_with_a_damaged_best_model_is_not_whole(
    top: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No other model stands in for a damaged best one: it is trained again, to the same bits."""
    overrides = {"checkpoint.save_top_k": top}
    whole = trainwright.train(SMALL, overrides, runs_dir=tmp_path / "whole")
    monkeypatch.setattr(attempt, "evaluate_outcome", crash)  # after the training, before its result
    with pytest.raises(Crash):
        trainwright.train(SMALL, overrides, runs_dir=tmp_path / "cut")
    monkeypatch.undo()
    run = trainwright.get("last", runs_dir=tmp_path / "cut")
    best = whole.result["best"]["step"]
    (damaged,) = (run.path / "best").glob(f"step-{best:09d}-*/weights.safetensors")
    content = damaged.read_bytes()
    damaged.unlink()  # it is one file with that of the checkpoint
    damaged.write_bytes(content)
    flip(damaged)
    again = trainwright.resume(run)
    assert f"cannot be used without the best model of step {best}" in caplog.text
    assert_same(again, whole)
    assert len({path.name.split("-")[1] for path in (run.path / "best").iterdir()}) == top


def test_a_failed_evaluation_at_the_end_leaves_the_digest_of_the_final_weights(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the model holds the weights of the best step."""
    real = attempt.evaluate_outcome

    def failing(*args: Any, **how: Any) -> Any:
        real(*args, **how)
        raise TrainingError("the metric cannot be computed")

    monkeypatch.setattr(attempt, "evaluate_outcome", failing)
    with pytest.raises(TrainingError, match="cannot be computed"):
        trainwright.train(SMALL, {"checkpoint.metric": "val_accuracy"}, runs_dir=tmp_path)
    failed = trainwright.get("last", runs_dir=tmp_path).result
    assert (failed["status"], failed["steps"]) == ("failed", whole.result["steps"])
    assert failed["digest"] == whole.digest


def test_an_error_that_leaves_the_model_unreadable_is_not_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(*_: Any, **__: Any) -> Any:
        raise RuntimeError("the device is gone, too")

    def failing(*_: Any) -> Any:
        monkeypatch.setattr("trainwright.frameworks.torch.learner.TorchLearner.state", unreadable)
        raise TrainingError("the device is gone")

    monkeypatch.setattr("trainwright.frameworks.torch.learner.TorchLearner.step", failing)
    with pytest.raises(TrainingError, match=r"the device is gone$"):
        trainwright.train(SMALL, runs_dir=tmp_path)
    failed = trainwright.get("last", runs_dir=tmp_path)
    assert (failed.status, failed.result["error"], failed.digest) == ("failed", "the device is gone", None)


def test_a_best_model_that_is_damaged_at_the_end_fails_the_run_until_a_resume(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = attempt.evaluate_outcome

    def damaging(run: RunDir, *rest: Any, **how: Any) -> Any:
        for folder in (run.path / "best").iterdir():
            flip(folder / "weights.safetensors")
        return real(run, *rest, **how)

    monkeypatch.setattr(attempt, "evaluate_outcome", damaging)
    with pytest.raises(CheckpointError, match=r"best model, of step \d+, cannot be used: .*resume the run"):
        trainwright.train(SMALL, runs_dir=tmp_path)
    monkeypatch.undo()
    run = trainwright.get("last", runs_dir=tmp_path)
    assert run.status == "failed"
    assert_same(trainwright.resume(run), whole)


def test_best_models_of_a_future_that_was_lost_are_made_again(whole: Run, tmp_path: Path) -> None:
    """Killed between a best model and the next commit.

    The best model's step lies ahead of where the run goes on.
    """
    run = crashed(tmp_path, at=16)  # evaluated at 14, saved at 15
    run = Run(run.path)
    for folder in checkpoints(run)[1:]:
        shutil.rmtree(folder)
    assert_same(trainwright.resume(run), whole)
    assert [path.name.split("-")[1] for path in (run.path / "best").iterdir()] == [
        f"{whole.result['best']['step']:09d}"
    ]


def test_a_completed_run_is_left_as_it_is(tmp_path: Path) -> None:
    run = trainwright.train(SMALL, runs_dir=tmp_path)
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.name != "lock"}
    assert trainwright.resume(run).status == "completed"
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*") if path.name != "lock"} == before


def test_threads_stay_those_of_the_first_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(threads, "available_threads", lambda _: 2)
    monkeypatch.setattr(threads, "SMALL_STEP", 0)
    first = trainwright.train(SMALL, {"training.threads": None}, runs_dir=tmp_path / "a")
    cut = preempted(tmp_path / "b", {"training.threads": None})
    monkeypatch.setattr(threads, "available_threads", lambda _: 1)
    resumed = trainwright.resume(cut)
    assert torch.get_num_threads() == 2
    assert resumed.manifest["environment"]["threads"] == 2
    assert resumed.manifest["changes"] == []
    assert resumed.digest == first.digest
    assert trainwright.reproduce(first).verdict == "identical"


@pytest.mark.parametrize("minutes", [0.0005, 0.001])
def test_saves_that_the_clock_asks_for_change_no_bit(minutes: float, whole: Run, tmp_path: Path) -> None:
    overrides = {"checkpoint.every_n_minutes": minutes, "checkpoint.every_n_steps": None}
    saved: list[int] = []
    never = threading.Event()

    class Slow(Callback):
        def on_checkpoint(self, step: int) -> None:
            saved.append(step)

        def on_log(self, step: int, metrics: Any) -> None:
            never.wait(0.01)  # what is tested is a clock: the run lasts for several of its rings

    run = trainwright.train(SMALL, overrides, runs_dir=tmp_path, callbacks=[Slow()])
    assert len(saved) > 2, "the clock did not ring"
    assert_same(run, whole)


def test_keep_last_and_save_top_k_hold_on_disk(tmp_path: Path) -> None:
    overrides = {"checkpoint.keep_last": 3, "checkpoint.save_top_k": 2, "checkpoint.every_n_steps": 4}
    seen: list[tuple[int, int]] = []

    class Look(Callback):
        def on_log(self, step: int, metrics: Any) -> None:
            (run,) = all_runs(tmp_path)
            whole = [len(list((run.path / kind).glob("*/manifest.json"))) for kind in ("checkpoints", "best")]
            seen.append((whole[0], whole[1]))

    with every_save_on_disk():
        run = trainwright.train(SMALL, overrides, runs_dir=tmp_path, callbacks=[Look()])
    assert max(count for count, _ in seen) == 3
    assert max(count for _, count in seen) <= 2 * (3 + 1), "best models of each commit, and of now"
    assert len(checkpoints(run)) == 3
    assert len(list((run.path / "best").iterdir())) == 2
    values = {
        record["step"]: record["values"]["val_loss"]
        for record in read(run.path / "journal")
        if record["kind"] == "evaluation" and "val_loss" in record["values"]
    }
    best = sorted(values, key=lambda step: values[step])[:2]
    assert sorted(int(path.name.split("-")[1]) for path in (run.path / "best").iterdir()) == sorted(best)
    assert run.result["best"]["step"] == best[0]


def test_no_more_best_models_than_asked_for_are_left_where_not_each_step_can_be_resumed(
    tmp_path: Path,
) -> None:
    pytest.importorskip("lightgbm")
    params = {"type": "lightgbm", "params": {"max_depth": 3, "subsample": 0.7, "subsample_freq": 1}}
    given = {"model": params, "data": "iris", "training": {"max_steps": 12, "threads": 1}}
    given |= {"evaluation": {"every_n_steps": 2}, "checkpoint": {"every_n_steps": 3, "save_top_k": 2}}
    with every_save_on_disk():
        run = trainwright.train(given, runs_dir=tmp_path)
    assert len(list((run.path / "best").iterdir())) == 2


def test_without_best_models_the_final_one_is_tested(whole: Run, tmp_path: Path) -> None:
    run = trainwright.train(SMALL, {"checkpoint.save_top_k": 0}, runs_dir=tmp_path)
    assert not (run.path / "best").exists()
    assert (run.result["evaluated"], run.result["best"]) == ("final", None)
    assert run.digest == whole.digest, "what is kept has changed what is computed"


@pytest.mark.parametrize(("evaluate", "save", "log"), [(4, 6, 9), (3, 7, 30), (30, 1, 4), (1, 30, 7)])
def test_cadences_that_do_not_divide_each_other(evaluate: int, save: int, log: int, tmp_path: Path) -> None:
    overrides = {
        "evaluation.every_n_steps": evaluate,
        "checkpoint.every_n_steps": save,
        "logging.every_n_steps": log,
    }
    expected = trainwright.train(SMALL, overrides, runs_dir=tmp_path / "whole")

    class CrashAtStep(Callback):
        def on_evaluation(self, step: int, metrics: Any) -> None:
            if step >= 12:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainwright.train(SMALL, overrides, runs_dir=tmp_path / "cut", callbacks=[CrashAtStep()])
    resumed = trainwright.resume("last", runs_dir=tmp_path / "cut")
    assert_same(resumed, expected)


# -- one owner


def test_a_run_has_one_owner(tmp_path: Path) -> None:
    refused: list[str] = []

    class Intruder(Callback):
        def on_log(self, step: int, metrics: Any) -> None:
            if step == 3:
                (run,) = all_runs(tmp_path)
                with pytest.raises(RunLockedError) as error:
                    trainwright.resume(run.path)
                refused.append(str(error.value))

    run = trainwright.train(SMALL, runs_dir=tmp_path, callbacks=[Intruder()])
    assert refused
    assert f"pid {os.getpid()} " in refused[0]
    assert (run.status, run.result["attempts"]) == ("completed", 1)


# -- disks that are full, or cannot be written


def full(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullFrom(Callback):
    """From a step on, the store finds no room; until another."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: int, last: int = 10**9) -> None:
        self._patch, self._first, self._last = monkeypatch, first, last

    def on_log(self, step: int, metrics: Any) -> None:
        if step == self._first:
            self._patch.setattr(LocalStore, "staging", full)
        if step == self._last:
            self._patch.undo()


def test_a_save_that_fails_costs_an_event_and_no_step(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with every_save_on_disk():
        run = trainwright.train(SMALL, runs_dir=tmp_path, callbacks=[FullFrom(monkeypatch, 8, 22)])
    assert_same(run, whole)  # the best model is of a later step
    failed = {
        record["detail"]["saved_step"]: record["detail"]["message"]
        for record in events(run, "checkpoint_failed")
    }
    assert failed.keys() >= {10, 15, 20}
    assert "the best model of step 14" in failed[15], "it is written with the checkpoint that names it"
    assert all(os.strerror(errno.ENOSPC) in message for message in failed.values())


def test_a_final_save_that_fails_is_an_error_and_the_last_commit_stays(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(CheckpointError, match=r"step 30 cannot be written: .*No space left.*resume"),
        every_save_on_disk(),
    ):
        trainwright.train(SMALL, runs_dir=tmp_path, callbacks=[FullFrom(monkeypatch, 22)])
    monkeypatch.undo()
    run = trainwright.get("last", runs_dir=tmp_path)
    assert run.status == run.result["status"] == "failed"
    assert run.result["metrics"] == {}
    commit, complaints = run_checkpoints(RunDir(run.path)).resume.newest()
    assert commit is not None
    assert (commit.step, complaints) == (20, [])
    saves = {record["detail"]["saved_step"] for record in events(run, "checkpoint_failed")}
    assert saves >= {25, 30}, "a save failed and nothing says so"
    assert_same(trainwright.resume(run), whole)


@pytest.mark.slow
def test_a_real_full_disk(tmp_path: Path) -> None:
    """A process that may write no file beyond a size.

    Its checkpoints do not fit, but whatever is small does.
    """
    config = tmp_path / "wide.yaml"
    config.write_text(load(SMALL, {"model.params.hidden": [700, 700]}, adapters=Catalog()).dump())
    done = command("train", config, "--runs-dir", "full", folder=tmp_path, killed=("FULL", "step", 12))
    assert done.returncode == 1, done.stderr
    # Those since step 14 are kept; which one the end finds missing first depends on the writer's thread.
    failed = re.search(
        "the best model of step (14|21|28) cannot be written.*earlier checkpoints", done.stderr
    )
    assert failed, "no commit of step 30 without it"
    assert "fix this, then resume the run" in done.stderr
    assert os.strerror(errno.EFBIG) in done.stderr
    assert "Traceback" not in done.stderr
    (run,) = all_runs(tmp_path / "full")
    commit, _ = run_checkpoints(run).resume.newest()
    assert commit is not None
    assert commit.step == 10
    assert not list(run.path.glob(".staging-*"))
    assert command("resume", run.path, folder=tmp_path).returncode == 0
    assert command("train", config, "--runs-dir", "whole", folder=tmp_path).returncode == 0
    assert Run(run).digest == trainwright.get("last", runs_dir=tmp_path / "whole").digest


def test_a_journal_that_cannot_be_written_fails_the_run_and_loses_no_commit(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal's own writes meet a device that is always full."""
    values = Journal.values

    def fill(journal: Journal, kind: str, step: int, found: Any) -> None:
        if step == 17:
            os.dup2(os.open("/dev/full", os.O_WRONLY), journal._file.fileno())
        values(journal, kind, step, found)

    monkeypatch.setattr(Journal, "values", fill)
    message = r"No space left on device: '.*journal/0001.jsonl'; what was committed is untouched: .*resume"
    with pytest.raises(TrainwrightError, match=message) as error, every_save_on_disk():
        trainwright.train(SMALL, runs_dir=tmp_path)
    monkeypatch.undo()
    assert error.value.exit_code == 1
    run = trainwright.get("last", runs_dir=tmp_path)
    assert run.status == "failed"
    commit, complaints = run_checkpoints(RunDir(run.path)).resume.newest()
    assert commit is not None
    assert (commit.step, complaints) == (15, [])
    assert_same(trainwright.resume(run), whole)


def test_a_file_where_the_runs_should_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(load(SMALL, adapters=Catalog()).dump())
    (tmp_path / "runs").write_text("a file")
    assert cli("train", str(config), "--runs-dir", str(tmp_path / "runs"), "-q") == 2
    message = capsys.readouterr().err
    assert "is a file; give the folder of the runs" in message


@pytest.mark.parametrize(
    ("refused", "status"), [("result.json", "failed"), ("attempts/0001.json", "crashed")]
)
def test_an_end_that_cannot_be_written_is_no_traceback(
    refused: str,
    status: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(load(SMALL, adapters=Catalog()).dump())
    write = RunDir.write

    def refuse(run: RunDir, name: str, data: Any) -> None:
        if name == refused and data.status is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(run.path / name))
        write(run, name, data)

    with monkeypatch.context() as patch:
        patch.setattr(RunDir, "write", refuse)
        assert cli("train", str(config), "--runs-dir", str(tmp_path / "runs"), "-q") == 1
    err = capsys.readouterr().err
    assert refused in err
    assert "No space left" in err
    assert "committed is untouched" in err
    assert "Traceback" not in err
    run = trainwright.get("last", runs_dir=tmp_path / "runs")
    assert run.status == status
    assert trainwright.resume(run).status == "completed"


# -- what fails


def test_a_wrong_input_leaves_no_run_behind(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"data.type": "csv", "data.path": "nowhere.csv"}, r"nowhere\.csv: there is no such file"),
        ({"training.batch_size": 10**6}, "training.batch_size is 1000000"),
    ]
    for overrides, message in wrong:
        with pytest.raises(InputError, match=message):
            trainwright.train(SMALL, overrides, runs_dir=tmp_path)
        assert list(all_runs(tmp_path)) == []
        assert not list((tmp_path / "small").glob("*"))


WITHOUT_DATA = {key: value for key, value in SMALL.items() if key != "data"}


class Rotten:
    """A dataset one of whose items cannot be read; it is met in the second epoch's worth of steps."""

    classes = (0, 1)
    fingerprint = "rotten"

    def __init__(self, broken: bool) -> None:
        self.broken = broken
        self.reads = 0

    def __len__(self) -> int:
        return 120

    def __getitem__(self, i: int) -> tuple[list[float], int]:
        self.reads += 1
        if self.broken and self.reads > 332:
            raise OSError(5, "Input/output error")
        return [float(i), float(i % 7)], i % 2


def test_data_that_fail_in_the_middle_do_not_cost_the_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        trainwright.train(WITHOUT_DATA, runs_dir=tmp_path, data=(Rotten(True), Rotten(False)))
    (run,) = all_runs(tmp_path)
    assert run.status() == "failed"
    assert run.require_result().steps > 5
    commit, _ = run_checkpoints(run).resume.newest()
    assert commit is not None
    resumed = trainwright.resume(run.path, data=(Rotten(False), Rotten(False)))
    expected = trainwright.train(WITHOUT_DATA, runs_dir=tmp_path, data=(Rotten(False), Rotten(False)))
    assert_same(resumed, expected)


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = {
        "training.learning_rate": 1e9,
        "training.optimizer": {"type": "sgd"},
        "data.type": "diabetes",
    }
    with pytest.raises(TrainingError, match=r"the loss of step (\d+) is not finite") as error:
        trainwright.train(
            {**SMALL, "model": {"type": "mlp"}},
            overrides | {"checkpoint.every_n_steps": 1},
            runs_dir=tmp_path,
        )
    assert error.value.exit_code == 1
    assert "lower training.learning_rate, or set training.max_grad_norm" in str(error.value)
    step = int(re.search(r"step (\d+)", str(error.value)).group(1))  # type: ignore[union-attr]
    run = trainwright.get("last", runs_dir=tmp_path)
    assert run.status == run.result["status"] == "failed"
    assert run.result["metrics"] == {}
    assert run.result["evaluated"] is None
    assert "not finite" in run.result["error"]
    commit, complaints = run_checkpoints(RunDir(run.path)).resume.newest()
    if step > 1:
        assert commit is not None
        assert commit.step < step
    assert complaints == []
    assert events(run, "failed")[0]["detail"]["message"] == str(error.value)


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        ("mlp", ["lower training.learning_rate", "set training.max_grad_norm"]),
        ("xgboost", ["lower model.params.learning_rate"]),
        ("random_forest", ["check the options of the model"]),
    ],
)
def test_advice_for_a_loss_that_is_not_finite_names_settings_that_the_model_has(
    model: str, advice: list[str]
) -> None:
    config = load({"data": "iris", "model": model}, adapters=Catalog()).config
    framework = plugins.adapter("framework", framework_name(config))
    assert _remedies(SimpleNamespace(config=config, framework=framework)) == advice  # type: ignore[arg-type]


def test_a_callback_that_fails_is_left_out_with_a_warning(
    whole: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Bad(Callback):
        calls = 0

        def on_log(self, step: int, metrics: Any) -> None:
            self.calls += 1
            raise ValueError("oops")

    bad = Bad()
    assert_same(trainwright.train(SMALL, runs_dir=tmp_path, callbacks=[bad]), whole)
    assert bad.calls == 1
    assert "callback Bad failed and is not called any more" in caplog.text


# -- inputs that changed


@pytest.fixture
def csv_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run on a CSV file, preempted."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 13},{i % 7 / 2},{i % 3}" for i in range(160)]
    Path("data.csv").write_text("\n".join(["a,b,target", *rows]) + "\n")
    return preempted(tmp_path / "runs", {"data.type": "csv", "data.path": "data.csv"})


def edit_config(run: Run) -> None:
    text = (run.path / "config.yaml").read_text()
    assert "learning_rate: 0.01" in text
    (run.path / "config.yaml").write_text(text.replace("learning_rate: 0.01", "learning_rate: 0.02"))


def edit_data(run: Run) -> None:
    text = Path("data.csv").read_text()
    Path("data.csv").write_text(text.replace("\n0,0.0,0\n", "\n0,0.25,0\n", 1))


def edit_environment(run: Run) -> None:
    os.environ["OMP_DYNAMIC"] = "TRUE"


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (edit_config, "config: training.learning_rate was 0.01, is 0.02"),
        (edit_data, "data: train split, sha256 was"),
    ],
)
def test_changed_inputs_are_refused_by_name_unless_allowed(
    edit: Callable[[Run], None], named: str, csv_run: Run
) -> None:
    edit(csv_run)
    before, status = csv_run.manifest, csv_run.status
    with pytest.raises(ChangedInputsError) as error:
        trainwright.resume(csv_run)
    assert named in str(error.value)
    assert "--allow-change" in str(error.value)
    assert error.value.exit_code == 2
    assert csv_run.manifest == before
    assert csv_run.status == status == "preempted"
    assert checkpoints(csv_run), "the refusal has cost the checkpoints"

    resumed = trainwright.resume(csv_run, allow_change=True)
    (change,) = resumed.manifest["changes"]
    assert {difference["input"] for difference in change["differences"]} == {named.split(":")[0]}
    assert resumed.status == "completed"
    assert resumed.result["determinism"]["tier"] == "statistical"
    assert named.split(" was")[0] in resumed.result["determinism"]["reason"]


def test_columns_that_have_changed_are_named(csv_run: Run) -> None:
    text = Path("data.csv").read_text()
    Path("data.csv").write_text(text.replace("a,b,target", "a,c,target"))
    lines = (
        r"changed\n  data: the features differ: 'c' is new; 'b' is missing\nput them back, start a new run"
    )
    with pytest.raises(ChangedInputsError, match=lines):
        trainwright.resume(csv_run)


def test_a_data_file_that_only_moved_is_no_change(csv_run: Run) -> None:
    Path("data.csv").rename("moved.csv")
    text = (csv_run.path / "config.yaml").read_text()
    (csv_run.path / "config.yaml").write_text(text.replace("data.csv", "moved.csv"))
    assert trainwright.resume(csv_run).manifest["changes"] == []


def test_a_changed_environment_is_recorded(
    csv_run: Run, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setenv("OMP_DYNAMIC", "TRUE")
    resumed = trainwright.resume(csv_run)
    (change,) = resumed.manifest["changes"]
    assert [(d["input"], d["what"], d["before"], d["now"]) for d in change["differences"]] == [
        ("environment", "flags OMP_DYNAMIC", None, "TRUE")
    ]
    assert "OMP_DYNAMIC" in caplog.text
    assert resumed.result["determinism"]["tier"] == "statistical"


def test_a_changed_environment_is_refused_where_bits_were_demanded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = preempted(tmp_path, {"training.determinism": "bitwise"})
    monkeypatch.setenv("OMP_DYNAMIC", "TRUE")
    with pytest.raises(ChangedInputsError, match="environment: flags OMP_DYNAMIC was absent, is TRUE"):
        trainwright.resume(run)
    monkeypatch.delenv("OMP_DYNAMIC")
    assert trainwright.resume(run).result["determinism"]["tier"] == "bitwise"


MODULE = """
import torch
from {helper} import WIDTH

class Net(torch.nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(in_features, WIDTH), torch.nn.Linear(WIDTH, out_features))

    def forward(self, features):
        return self.body(features)
"""


@pytest.mark.slow
def test_changed_code_is_refused_by_name(tmp_path: Path) -> None:
    """In processes of their own: a module is imported once in a process."""
    (tmp_path / "mynet.py").write_text(MODULE.format(helper="mysizes"))
    (tmp_path / "mysizes.py").write_text("WIDTH = 8\n")
    config = tmp_path / "c.yaml"
    config.write_text(load({**SMALL, "model": {"type": "mynet:Net"}}, adapters=Catalog()).dump())

    spawn = partial(command, folder=tmp_path)
    assert spawn("train", "c.yaml", killed=("SIGTERM", "step", 12)).returncode == 75
    (run,) = all_runs(tmp_path / "runs")
    assert sorted(run.require_manifest().code.modules) == ["mynet", "mysizes"]
    (tmp_path / "mysizes.py").write_text("WIDTH = 8  # still\n")
    refused = spawn("resume", "last")
    assert refused.returncode == 2
    assert "code: module mysizes was" in refused.stderr
    assert "mynet was" not in refused.stderr
    allowed = spawn("resume", "last", "--allow-change", "--json")
    assert allowed.returncode == 0, allowed.stderr
    assert run.require_manifest().changes[0].differences[0].what == "module mysizes"
    assert json.loads(allowed.stdout)["determinism"]["tier"] == "statistical"
    changed = spawn("reproduce", "last", "--json")
    assert changed.returncode == 0, "a comment changes no bit"
    assert json.loads(changed.stdout)["inputs"][0]["what"] == "module mysizes"
    (tmp_path / "mysizes.py").write_text("WIDTH = 9\n")
    different = spawn("reproduce", "last", "--json")
    assert different.returncode == 3
    verdict = json.loads(different.stdout)
    assert verdict["verdict"] == "different"
    assert "module mysizes" in [difference["what"] for difference in verdict["inputs"]]
    assert verdict["first_step"] == 1


def test_a_copy_under_another_name_is_resumed_and_described_where_it_is(tmp_path: Path) -> None:
    cut = preempted(tmp_path / "runs")
    copy = Path(shutil.copytree(cut.path, tmp_path / "copies" / "mine"))
    resumed = trainwright.resume(copy)
    assert (resumed.path, resumed.status, resumed.digest is None) == (copy, "completed", False)
    assert not (tmp_path / "copies" / cut.id).exists()
    assert cut.status == "preempted", "the run that it was copied from is left alone"
