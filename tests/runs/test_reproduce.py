"""`reproduce`: identical, or the first input, step and tensor that differ."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, Crash, CrashAt, SignalAt, checkpoints, crashed, flip, preempted
from trainwright.engine.signals import Stopped
from trainwright.errors import InputError, TrainingError
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
    assert again.manifest["parent"] == {"run_id": whole.id, "relation": "reproduce", "decisions": []}


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


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


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
    assert (found.verdict, found.tensor) == ("identical", None)
    assert found.uncompared == (
        f"the final checkpoint of run {runs[damaged].id} is damaged: tensors were not compared"
    )
    assert older.exists()


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
