"""What a run directory suffers: flipped digits, lost files, a directory that goes away."""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, assert_same, checkpoints, crashed, preempted
from trainwright.callbacks.base import Callback
from trainwright.digest import sha256_file
from trainwright.errors import ChangedInputsError, CheckpointError, TrainingError
from trainwright.frameworks.torch import TorchFramework
from trainwright.records.commit import Commit
from trainwright.records.document import dump
from trainwright.records.run_dir import RunDir
from trainwright.reports.rundir import read_run
from trainwright.runs.run import Run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trainwright.train(SMALL, runs_dir=tmp_path_factory.mktemp("whole"))


@pytest.fixture
def run(whole: Run, tmp_path: Path) -> Run:
    """A copy of the completed run that a test may damage."""
    return Run(Path(shutil.copytree(whole.path, tmp_path / "small" / whole.id)))


def change_a_digit(path: Path) -> None:
    """Change the last digit in a file to another one."""
    text = path.read_text(encoding="utf-8")
    digits = list(re.finditer(r"\d", text))
    at = digits[len(digits) // 2].start()
    path.write_text(text[:at] + ("7" if text[at] != "7" else "3") + text[at + 1 :], encoding="utf-8")


@pytest.mark.parametrize("name", ["data.json", "config.yaml", "manifest.json", "result.json"])
def test_no_prediction_comes_from_a_file_with_a_wrong_digit(name: str, run: Run) -> None:
    change_a_digit(run.path / name)
    with pytest.raises(CheckpointError, match=re.escape(name)):
        trainwright.evaluate(run)


@pytest.mark.parametrize("name", ["config.yaml", "evaluation/val.json"])
def test_a_report_shows_nothing_of_a_file_with_a_wrong_digit(name: str, run: Run) -> None:
    before = read_run(run.path)
    assert before.config
    assert "val" in before.evaluations
    change_a_digit(run.path / name)
    after = read_run(run.path)
    assert [line for line in after.problems if Path(name).name in line]
    assert not (after.config if name == "config.yaml" else after.evaluations.get("val"))


def test_a_comparison_refuses_a_config_with_a_wrong_digit(run: Run, whole: Run) -> None:
    change_a_digit(run.path / "config.yaml")
    with pytest.raises(CheckpointError, match=r"config\.yaml is damaged"):
        trainwright.compare(whole, run)


def test_a_completed_run_with_a_damaged_result_is_not_passed_off_as_done(run: Run) -> None:
    change_a_digit(run.path / "result.json")
    with pytest.raises(CheckpointError, match=r"result\.json is damaged"):
        trainwright.resume(run)
    (run.path / "result.json").unlink()
    with pytest.raises(CheckpointError, match=r"result\.json is missing"):
        trainwright.resume(run)


def test_a_config_that_was_edited_where_it_changes_no_bit_is_adopted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut = preempted(tmp_path)
    path = cut.path / "config.yaml"
    path.write_text(path.read_text().replace("keep_last: 2", "keep_last: 3"))
    trainwright.resume(cut)
    assert "config.yaml has changed since the run began" in caplog.text
    assert not read_run(cut.path).problems


def test_the_preparation_of_another_run_does_not_pass_for_ours(run: Run, tmp_path: Path) -> None:
    """It is whole, but the model was not trained with it."""
    other = trainwright.train(SMALL, {"data.standardize": False}, runs_dir=tmp_path / "other")
    shutil.copy(other.path / "data.json", run.path / "data.json")
    with pytest.raises(CheckpointError, match=r"data\.json is not what the model was trained with"):
        trainwright.load(run)


@pytest.mark.parametrize("part", ["info", "preparation"])
def test_a_description_that_makes_no_sense_is_an_error_of_ours(part: str, run: Run) -> None:
    """Its own hash is right, and so are those of the checkpoints, and no log is there: someone made all of them."""
    file = run.path / "data.json"
    described = json.loads(file.read_text(encoding="utf-8"))
    del described["sha256"]
    described[part] = {"inputs": 0.5, "version": 2}
    file.write_bytes(dump(described))
    for manifest in run.path.glob("*/step-*/manifest.json"):
        commit = Commit.read(manifest.parent.name, manifest.read_bytes())
        manifest.write_bytes(replace(commit, run_files={"data.json": sha256_file(file)}).manifest())
    shutil.rmtree(run.path / "log")  # which seals the manifests
    with pytest.raises(CheckpointError, match=r"data\.json does not describe data: "):
        trainwright.load(run)


def test_data_that_change_with_leave_are_described_anew(tmp_path: Path) -> None:
    """Best models of before the change keep the preparation that they were trained with."""
    rows = "rows.csv"
    cut = preempted(
        tmp_path, {"data": {"type": "csv", "path": write_rows(tmp_path / rows, 1), "target": "y"}}
    )
    write_rows(tmp_path / rows, 2)
    with pytest.raises(ChangedInputsError, match="data: "):
        trainwright.resume(cut)
    resumed = trainwright.resume(cut, allow_change=True)
    assert sorted(path.name for path in resumed.path.glob("data*.json")) == ["data-0003.json", "data.json"]
    assert trainwright.load(resumed).predict(read_rows(tmp_path / rows)) is not None


@pytest.mark.parametrize("content", ["", None])
def test_a_resume_describes_the_data_again_where_that_was_lost(
    content: str | None, whole: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The data are the same, so the description is, too; without it the run could not predict."""
    cut = crashed(tmp_path)
    described = cut.path / "data.json"
    before = described.read_bytes()
    described.unlink() if content is None else described.write_text(content)
    resumed = trainwright.resume(cut)
    assert re.search(r"data\.json is (damaged|missing).*; it is written again", caplog.text)
    assert described.read_bytes() == before
    assert_same(resumed, whole)
    assert trainwright.evaluate(resumed) == trainwright.evaluate(whole)


def test_a_checkpoint_that_the_log_names_and_nobody_has_is_named(
    whole: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut = crashed(tmp_path)
    lost = [path.name for path in checkpoints(cut)]
    shutil.rmtree(cut.path / "checkpoints")
    resumed = trainwright.resume(cut)
    assert [name for name in lost if f"checkpoints/{name}: missing" in caplog.text] == lost
    assert f"there is no checkpoint: run {cut.id} starts again at step 0" in caplog.text
    assert_same(resumed, whole)


def test_a_segment_of_the_journal_that_is_gone_is_named(
    whole: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cut = crashed(tmp_path)
    (cut.path / "journal" / "0001.jsonl").unlink()
    resumed = trainwright.resume(cut)
    assert "journal/0001.jsonl: missing, though it was written" in caplog.text
    assert resumed.digest == whole.digest


def write_rows(path: Path, seed: int) -> str:
    import numpy as np

    draw = np.random.default_rng(seed)
    lines = [f"{a},{b},{int(a > b)}" for a, b in draw.normal(size=(120, 2))]
    path.write_text("\n".join(["a,b,y", *lines]) + "\n", encoding="utf-8")
    return str(path)


def read_rows(path: Path) -> Any:
    import pandas as pd

    return pd.read_csv(path)[["a", "b"]]


def test_a_damaged_record_of_an_attempt_blocks_nothing(whole: Run, tmp_path: Path) -> None:
    cut = crashed(tmp_path, at=13)
    (cut.path / "attempts" / "0001.json").write_text("{", encoding="utf-8")
    assert cut.status == "crashed"
    assert_same(trainwright.resume(Run(cut.path)), whole)


def test_the_result_tells_how_an_attempt_ended_whose_record_is_damaged(run: Run) -> None:
    (run.path / "attempts" / "0001.json").write_text("{", encoding="utf-8")
    assert run.status == "completed"


def test_a_missing_manifest_is_said_at_a_resume(whole: Run, tmp_path: Path) -> None:
    cut = Run(crashed(tmp_path, at=13).path)
    (cut.path / "manifest.json").unlink()
    with pytest.raises(ChangedInputsError, match=r"no manifest\.json: its inputs cannot be compared"):
        trainwright.resume(cut)
    resumed = trainwright.resume(cut, allow_change=True)
    assert resumed.digest == whole.digest
    assert resumed.manifest["determinism"]["tier"] == "statistical"


class AtStep(Callback):
    """Does something after a step."""

    def __init__(self, step: int, action: Any) -> None:
        self._step, self._action = step, action

    def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self._step:
            self._action()


@pytest.mark.parametrize("how", ["renamed", "removed"])
def test_a_run_directory_that_goes_away_ends_the_training_with_a_clear_message(
    how: str, tmp_path: Path
) -> None:
    def go() -> None:
        (path,) = (tmp_path / "runs" / "small").iterdir()
        path.rename(tmp_path / "elsewhere")
        if how == "removed":
            shutil.rmtree(tmp_path / "elsewhere", ignore_errors=True)

    steps: list[int] = []

    class Count(Callback):
        def on_log(self, step: int, metrics: Mapping[str, float]) -> None:
            steps.append(step)

    config = {"training.max_steps": 4000}
    with pytest.raises(TrainingError, match="is gone: it was renamed or removed while the run trained"):
        trainwright.train(SMALL, config, runs_dir=tmp_path / "runs", callbacks=[AtStep(8, go), Count()])
    assert steps[-1] < 3900, "the training went on for nothing"
    assert not any((tmp_path / "runs" / "small").iterdir()), "nothing is made in its place"


def test_what_a_full_disk_left_behind_is_swept_at_the_next_start(whole: Run, tmp_path: Path) -> None:
    cut = Run(crashed(tmp_path, at=13).path)
    left = [cut.path / ".manifest.json.999.tmp", cut.path / "attempts" / ".0001.json.999.tmp"]
    for path in left:
        path.write_text("half", encoding="utf-8")
    assert_same(trainwright.resume(cut), whole)
    assert not any(path.exists() for path in left)


def test_a_file_that_cannot_be_replaced_leaves_no_temporary_one(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    (tmp_path / "table.json").mkdir()
    with pytest.raises(OSError, match=re.escape("table.json")):
        run.write_json("table.json", {"a": 1})
    assert os.listdir(tmp_path) == ["table.json"]  # noqa: PTH208


def test_a_checkpoint_names_the_best_models_that_it_needs(whole: Run) -> None:
    newest = checkpoints(whole)[-1]
    manifest = json.loads((newest / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["best"] == [whole.result["best"]["step"]]
    assert sorted(manifest["run_files"]) == ["config.yaml", "data.json"]


class Replaced:
    """Wraps `TorchFramework.load`: at the first calls, the training has just deleted the files to read."""

    def __init__(self, times: int) -> None:
        self._load, self._times, self.calls = TorchFramework.load, times, 0

    def __call__(self, inputs: Any, folder: Path) -> Any:
        self.calls += 1
        if self.calls > self._times:
            return self._load(inputs, folder)
        aside = folder.rename(folder.with_name("aside"))
        try:
            return self._load(inputs, folder)
        finally:
            aside.rename(folder)


def test_a_run_in_training_is_read_again_if_its_best_model_was_replaced(
    run: Run, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = trainwright.evaluate(whole)
    load = Replaced(times=2)
    monkeypatch.setattr(TorchFramework, "load", load)
    owner = RunDir(run.path)
    owner.acquire()
    try:
        assert trainwright.evaluate(run) == expected
    finally:
        owner.release()
    assert load.calls == 3


def test_a_run_that_has_ended_is_read_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    load = Replaced(times=9)
    monkeypatch.setattr(TorchFramework, "load", load)
    with pytest.raises(OSError, match="No such file"):
        trainwright.load(run)
    assert load.calls == 1
