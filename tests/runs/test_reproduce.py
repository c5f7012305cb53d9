"""`reproduce`: identical, or the first input, step and tensor that differ."""

import dataclasses
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, Crash, CrashAt, SignalAt, checkpoints, crashed, flip, preempted, reseal
from trainwright.digest import array_buffer, write_tensors
from trainwright.engine.signals import Stopped
from trainwright.errors import InputError, TrainingError
from trainwright.records.commit import Commit
from trainwright.records.journal import losses, read
from trainwright.records.manifest import Difference
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.runs.reproduce import Reproduction, compare_bits
from trainwright.runs.run import Run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trainwright.train(SMALL, runs_dir=tmp_path_factory.mktemp("whole"))


def test_a_run_is_identical_to_its_repetition(whole: Run) -> None:
    found = trainwright.reproduce(whole)
    assert found.verdict == "identical"
    assert (found.step, found.tensor, list(found.inputs)) == (None, None, [])
    assert found.digests == (whole.digest, whole.digest)
    assert found.original == whole.id != found.repetition
    again = trainwright.get(found.repetition, runs_dir=whole.path.parent.parent)
    assert again.manifest["parent"] == {
        "run_id": whole.id,
        "relation": "reproduce",
        "decisions": [],
        "untested": False,
    }


def test_a_run_that_was_interrupted_thrice_is_reproduced_in_one_piece(tmp_path: Path) -> None:
    run = crashed(tmp_path, at=8)
    run = trainwright.resume(run, callbacks=[SignalAt(15)])
    with pytest.raises(Crash):
        trainwright.resume(run, callbacks=[CrashAt(22)])
    run = trainwright.resume(run)
    assert run.result["attempts"] == 4
    assert trainwright.reproduce(run).verdict == "identical"


@pytest.fixture
def csv_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    rows = [f"{i % 13},{i % 7 / 2},{i % 3}" for i in range(160)]
    Path("data.csv").write_text("\n".join(["a,b,target", *rows]) + "\n")
    return trainwright.train(SMALL, {"data.type": "csv", "data.path": "data.csv"}, runs_dir="runs")


def edit_data() -> None:
    """Changes rows of each split."""
    text = Path("data.csv").read_text()
    Path("data.csv").write_text(text.replace(",2.5,", ",2.75,"))


def test_changed_data_are_named_with_the_first_step_and_tensor(csv_run: Run) -> None:
    edit_data()
    found = trainwright.reproduce(csv_run)
    assert found.verdict == "different"
    assert {difference.input for difference in found.inputs} == {"data"}
    assert "train split, sha256" in [difference.what for difference in found.inputs]
    assert found.step == 1, "standardization spreads the change over all rows"
    assert found.step_losses is not None
    assert found.step_losses[0] != found.step_losses[1]
    assert found.tensor is not None
    assert found.tensor.name.startswith("weights.layers")
    assert found.digests[0] != found.digests[1]


def test_the_verdict_on_the_command_line(csv_run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    from trainwright.cli.main import main

    assert main(["reproduce", csv_run.id, "--json", "-q"]) == 0
    same = json.loads(capsys.readouterr().out)
    assert same["verdict"] == "identical"
    assert same["digest"]["original"] == same["digest"]["repetition"] == csv_run.digest
    assert same["inputs"] == []
    edit_data()
    assert main(["reproduce", csv_run.id, "--json", "-q"]) == 3
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "different"
    assert found["first_step"] == 1
    assert [float(value) for value in found["first_step_losses"]] != [0, 0]
    assert found["first_tensor"]["name"].startswith("weights.")
    assert found["inputs"][0]["input"] == "data"
    assert found["original"] == csv_run.id
    assert main(["reproduce", csv_run.id, "-q"]) == 3
    out = capsys.readouterr().out
    assert f"does not repeat {csv_run.id}" in out
    assert "first step that differs: 1 " in out
    assert "input differs: data: train split, sha256" in out


def test_data_that_only_validate_change_the_metrics_alone(csv_run: Run) -> None:
    import pandas as pd

    frame = pd.read_csv("data.csv")
    Path("train.csv").write_text(frame[:120].to_csv(index=False))
    Path("val.csv").write_text(frame[120:].to_csv(index=False))
    data = {"type": "csv", "train_path": "train.csv", "val_path": "val.csv"}
    run = trainwright.train({**SMALL, "data": data}, runs_dir="runs")
    Path("val.csv").write_text(frame[119:].to_csv(index=False))
    found = trainwright.reproduce(run)
    assert (found.verdict, {difference.what.split(",")[0] for difference in found.inputs}) == (
        "different",
        {"val split"},
    )
    assert (found.step, found.tensor) == (None, None)
    assert "val_loss" in found.metrics


def test_a_changed_config_and_environment_are_named(csv_run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (csv_run.path / "config.yaml").read_text()
    (csv_run.path / "config.yaml").write_text(text.replace("learning_rate: 0.01", "learning_rate: 0.02"))
    monkeypatch.setenv("OMP_DYNAMIC", "TRUE")
    found = trainwright.reproduce(csv_run)
    assert found.verdict == "different"
    assert [(d.input, d.what, d.before, d.now) for d in found.inputs] == [
        ("config", "training.learning_rate", 0.01, 0.02),
        ("environment", "flags OMP_DYNAMIC", None, "TRUE"),
    ]
    assert found.step == 2, "the first step's loss is that of the initial weights"


def test_only_a_completed_run_can_be_reproduced(tmp_path: Path) -> None:
    for run in (preempted(tmp_path), crashed(tmp_path)):
        with pytest.raises(InputError, match=f"run {run.id} is (preempted|failed); only a completed, "):
            trainwright.reproduce(run)
        with pytest.raises(InputError, match="resume it first"):
            compare_bits(RunDir(run.path), RunDir(run.path))
    assert len(trainwright.list_runs(tmp_path)) == 2, "a repetition was begun"


def test_reproduce_says_how_a_run_failed(tmp_path: Path) -> None:
    diverging = {"learning_rate": 1e9, "optimizer": "sgd", "epochs": 3}
    with pytest.raises(TrainingError) as failure:
        trainwright.train({"data": "diabetes", "model": "mlp", "training": diverging}, runs_dir=tmp_path)
    says = rf"is failed \({re.escape(str(failure.value))}\); only .*: resume it, or start a new run, first"
    with pytest.raises(InputError, match=says):
        trainwright.reproduce("last", runs_dir=tmp_path)


def test_a_signal_ends_the_repetition_and_the_original_stays(whole: Run) -> None:
    with pytest.raises((InputError, Stopped), match="preempted"):
        trainwright.reproduce(whole, callbacks=[SignalAt(5)])
    assert whole.status == "completed"


# -- what is compared


@pytest.fixture
def pair(whole: Run, tmp_path: Path) -> tuple[RunDir, RunDir]:
    """A run and a copy of it."""
    shutil.copytree(whole.path, tmp_path / "small" / "copy")
    return RunDir(whole.path), RunDir(tmp_path / "small" / "copy")


def edit_loss(run: RunDir, step: int, value: Any) -> None:
    segment = run.journal / "0001.jsonl"
    lines = [json.loads(line) for line in segment.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "losses" and line["first"] <= step < line["first"] + len(line["values"]):
            line["values"][step - line["first"]] = value
    segment.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_copies_are_identical(pair: tuple[RunDir, RunDir]) -> None:
    assert compare_bits(*pair).verdict == "identical"


def test_one_bit_of_one_loss_is_found(pair: tuple[RunDir, RunDir]) -> None:
    before = losses(read(pair[0].journal))[17]
    edit_loss(pair[1], 17, math.nextafter(before, 2))
    found = compare_bits(*pair)
    assert (found.verdict, found.step) == ("different", 17)
    assert found.step_losses == (before, math.nextafter(before, 2))
    assert found.tensor is None


@pytest.mark.parametrize(
    ("first", "second", "step"), [("NaN", "NaN", None), (0.0, -0.0, 9), ("NaN", "Infinity", 9)]
)
def test_losses_are_compared_by_their_bits(
    first: Any, second: Any, step: int | None, pair: tuple[RunDir, RunDir], tmp_path: Path
) -> None:
    one = RunDir(tmp_path / "small" / "one")
    shutil.copytree(pair[1].path, one.path)
    edit_loss(one, 9, first)
    edit_loss(pair[1], 9, second)
    assert compare_bits(one, pair[1]).step == step


def test_other_steps_or_another_digest_are_different(pair: tuple[RunDir, RunDir]) -> None:
    for change in ({"steps": 29}, {"digest": "0" * 64}):
        pair[1].write(Result.FILE, pair[1].require_result().with_values(**change))
        assert compare_bits(*pair).verdict == "different"


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_damaged_final_checkpoint_does_not_stop_the_comparison(
    damaged: int, pair: tuple[RunDir, RunDir], tmp_path: Path
) -> None:
    """An older checkpoint does not stand in for it: its tensors are those of another step."""
    runs = [pair[1], RunDir(tmp_path / "small" / "other")]
    shutil.copytree(pair[0].path, runs[1].path)
    older, newest = checkpoints(Run(runs[damaged]))
    flip(newest / "weights.safetensors")
    found = compare_bits(*runs)
    assert (found.verdict, found.complete, found.tensor) == ("incomplete", False, None)
    (reason,) = found.uncompared
    assert reason.startswith(f"optimizer and other state not compared: run {runs[damaged].id}: the final ")
    assert "weights.safetensors: bytes" in reason
    assert older.exists()


def test_a_damaged_or_other_best_model_is_no_proof(pair: tuple[RunDir, RunDir]) -> None:
    (best,) = (pair[1].path / "best").glob("step-*")
    flip(best / "weights.safetensors")
    found = compare_bits(*pair)
    assert found.verdict == "incomplete"
    assert found.uncompared[0].startswith(f"the best model not compared: run {pair[1].id}: the best model ")
    flip(best / "weights.safetensors")
    rewrite_tensor(best, "weights.safetensors")
    assert compare_bits(*pair).verdict == "different"
    shutil.rmtree(best)
    assert compare_bits(*pair).verdict == "incomplete"


def rewrite_tensor(checkpoint: Path, file: str) -> None:
    """Change a tensor of a checkpoint, as if it had been trained so: its manifest fits."""
    import numpy as np
    from safetensors.numpy import load_file

    tensors = load_file(checkpoint / file)
    name = next(name for name, value in tensors.items() if value.dtype == np.float32)
    tensors[name] = np.nextafter(tensors[name], np.float32(9))
    (checkpoint / file).unlink()
    record = write_tensors(checkpoint / file, [array_buffer(key, value) for key, value in tensors.items()])
    commit = Commit.read(checkpoint.name, (checkpoint / "manifest.json").read_bytes())
    files = [record if one.name == file else one for one in commit.files]
    (checkpoint / "manifest.json").write_bytes(dataclasses.replace(commit, files=files).manifest())
    reseal(checkpoint.parent.parent)


def test_another_state_of_the_optimizer_is_different(pair: tuple[RunDir, RunDir]) -> None:
    rewrite_tensor(checkpoints(Run(pair[1]))[-1], "optimizer.safetensors")
    found = compare_bits(*pair)
    assert found.verdict == "different"
    assert found.digests[0] == found.digests[1]
    assert found.tensor is not None
    assert found.tensor.name.startswith("optimizer.")


def edit_lines(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))


def of_kind(lines: list[bytes], kind: str) -> int:
    return next(i for i, line in enumerate(lines) if f'"kind":"{kind}"'.encode() in line)


def without(kind: str) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [line for i, line in enumerate(lines) if i != of_kind(lines, kind)]


def doubled(kind: str) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [*lines[: of_kind(lines, kind) + 1], *lines[of_kind(lines, kind) :]]


def changed(lines: list[bytes]) -> list[bytes]:
    at = of_kind(lines, "evaluation")
    record = json.loads(lines[at])
    record["values"]["val_loss"] = math.nextafter(record["values"]["val_loss"], 9)
    return [*lines[:at], json.dumps(record).encode() + b"\n", *lines[at + 1 :]]


@pytest.mark.parametrize("edited", [0, 1])
@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (without("losses"), "incomplete"),
        (without("evaluation"), "incomplete"),
        (doubled("evaluation"), "incomplete"),
        (doubled("losses"), "incomplete"),
        (lambda lines: lines[:-3], "incomplete"),
        (changed, "different"),
    ],
)
def test_a_changed_journal_is_never_identical(
    change: Callable[[list[bytes]], list[bytes]],
    verdict: str,
    edited: int,
    pair: tuple[RunDir, RunDir],
    tmp_path: Path,
) -> None:
    runs = [RunDir(tmp_path / "small" / f"copy{i}") for i in range(2)]
    for run in runs:
        shutil.copytree(pair[0].path, run.path)
    edit_lines(runs[edited].journal / "0001.jsonl", change)
    found = compare_bits(*runs)
    assert (found.verdict, found.complete) == (verdict, False)
    assert any(f"run {runs[edited].id}: journal/0001.jsonl: " in reason for reason in found.uncompared)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("journal/0001.jsonl", "losses and evaluations not compared"),
        ("evaluation/test.json", "evaluation/test.json not compared"),
        ("attempts/0001.json", "attempts/0001.json not compared"),
        ("checkpoints/step-000000030-a0001/manifest.json", "optimizer and other state not compared"),
        ("checkpoints/step-000000030-a0001/optimizer.safetensors", "optimizer and other state not compared"),
    ],
)
def test_what_is_gone_is_named(name: str, what: str, pair: tuple[RunDir, RunDir], tmp_path: Path) -> None:
    copy = RunDir(tmp_path / "small" / "copy")
    (copy.path / name).unlink()
    if name.startswith("attempts"):  # the run's status depends on it
        with pytest.raises(InputError, match="is created: only"):
            compare_bits(pair[0], copy)
        return
    found = compare_bits(pair[0], copy)
    assert (found.verdict, found.complete) == ("incomplete", False)
    assert any(reason.startswith(what) for reason in found.uncompared), found.uncompared


def test_other_values_of_an_evaluation_are_different(whole: Run, tmp_path: Path) -> None:
    """Here the journals are what the runs wrote, so that nothing but the values can say so."""
    other = trainwright.train(SMALL, {"evaluation.every_n_steps": 10}, runs_dir=tmp_path)
    found = compare_bits(RunDir(whole.path), RunDir(other.path))
    assert (found.verdict, found.complete, found.step) == ("different", True, None)
    assert found.evaluation is not None
    assert (found.evaluation.step, found.evaluation.now) == (7, None)


@pytest.mark.parametrize("kind", ["buffer", "extra"])
def test_state_that_is_no_weight_is_compared(kind: str, tmp_path: Path) -> None:
    """A buffer that no `state_dict` has, and extra state: they are in each checkpoint, and in no digest."""
    import torch

    class Net(torch.nn.Linear):
        def __init__(self, number: float) -> None:
            super().__init__(4, 3)
            self.number = number
            self.register_buffer("seen", torch.zeros(2), persistent=False)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            if kind == "buffer" and self.training:
                self.seen.add_(self.number)
            return super().forward(features)

        def get_extra_state(self) -> dict[str, float]:
            return {"number": self.number if kind == "extra" else 0.0}

        def set_extra_state(self, state: dict[str, float]) -> None:
            pass

    torch.manual_seed(1)
    one, other = Net(1.0), Net(2.0)
    other.load_state_dict(one.state_dict())
    start = {name: value.clone() for name, value in one.state_dict().items() if name != "_extra_state"}
    config = {**SMALL, "training": {**SMALL["training"], "max_steps": 8}}
    run = trainwright.train(
        {key: config[key] for key in config if key != "model"}, runs_dir=tmp_path, model=one
    )
    other.load_state_dict(start | {"_extra_state": {}})
    found = trainwright.reproduce(run, model=other)
    assert found.digests[0] == found.digests[1]
    assert found.verdict == "different"
    assert found.tensor is not None
    assert found.tensor.name.startswith(f"module.{'buffers/seen' if kind == 'buffer' else 'extra/'}")


def test_the_document_holds_what_json_can(whole: Run) -> None:
    found = Reproduction(
        "different",
        "a",
        "b",
        ("x", "y"),
        (3, 4),
        [Difference("data", "train split, rows", 3, 4)],
        2,
        (float("nan"), 1.0),
        None,
    )
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document["first_step_losses"] == ["nan", "1.0"]
    assert document["inputs"] == [{"input": "data", "what": "train split, rows", "before": 3, "now": 4}]
    assert document["first_tensor"] is None


def test_weights_of_a_run_that_is_gone_are_said_to_be_gone(tmp_path: Path) -> None:
    first = trainwright.train(SMALL, runs_dir=tmp_path)
    second = trainwright.train(SMALL, {"model.init_from": first.id}, runs_dir=tmp_path)
    trainwright.delete(first)
    with pytest.raises(InputError, match=f"{first.id} does not exist any more"):
        trainwright.reproduce(second, runs_dir=tmp_path, quiet=True)
