"""Reuse: the completed run of the same inputs is returned, and no other."""

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file, save_file

import trainwright
from small_runs import SMALL, checkpoints, flip, preempted
from trainwright.cli.main import main
from trainwright.config import load
from trainwright.records.listing import all_runs
from trainwright.records.manifest import DeterminismRecord, ForeignTrainer, Manifest, Parent
from trainwright.records.result import AttemptRecord, Result
from trainwright.records.run_dir import RunDir
from trainwright.runs import reuse
from trainwright.runs.catalog import Catalog
from trainwright.runs.objects import Objects
from trainwright.runs.reuse import CompletedRuns
from trainwright.runs.run import Run
from trainwright.storage.index import summaries

TESTS = str(Path(__file__).parents[1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one completed run."""
    runs_dir = tmp_path_factory.mktemp("trained")
    trainwright.train(SMALL, runs_dir=runs_dir)
    return runs_dir


@pytest.fixture
def runs_dir(trained: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "runs"))


def reused(runs_dir: Path, overrides: Any = (), **objects: Any) -> RunDir | None:
    """Return the run that would be reused, without training one if there is none."""
    resolved = load(SMALL, overrides, Catalog())
    return CompletedRuns(runs_dir, resolved.config.experiment.name).find(resolved, Objects(**objects))


def the_run(runs_dir: Path) -> RunDir:
    (run,) = all_runs(runs_dir)
    return run


def test_a_completed_run_is_returned_and_no_model_is_built(
    runs_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def build(*_: Any) -> None:
        raise AssertionError("the model was built")

    monkeypatch.setattr(reuse, "build", build)
    monkeypatch.setattr("trainwright.runs.startup.build", build)
    before = the_run(runs_dir)
    with caplog.at_level(logging.INFO, "trainwright"):
        run = trainwright.train(SMALL, {"logging.every_n_steps": 5}, runs_dir=runs_dir, reuse=True)
    assert run.path == before.path
    assert len(list(all_runs(runs_dir))) == 1
    (line,) = [record.message for record in caplog.records if "is reused" in record.message]
    assert run.id in line
    assert str(before.require_manifest().created) in line
    assert "logging.every_n_steps: 5 is not used" in caplog.text


def test_without_reuse_it_trains_again(runs_dir: Path) -> None:
    trainwright.train(SMALL, runs_dir=runs_dir)
    assert len(list(all_runs(runs_dir))) == 2


@pytest.mark.parametrize(
    "override",
    [
        "experiment.seed=4",
        "training.max_steps=31",
        "training.threads=2",
        "data=wine",
        "experiment.name=other",
    ],
)
def test_another_computation_environment_or_experiment_is_not_it(override: str, runs_dir: Path) -> None:
    assert reused(runs_dir, [override]) is None
    assert reused(runs_dir) is not None


def test_another_flag_is_another_environment(runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_DYNAMIC", "TRUE")
    assert reused(runs_dir) is None


def edit_manifest(run: RunDir, **values: Any) -> None:
    run.write(Manifest.FILE, run.require_manifest().model_copy(update=values))


def lose_the_last_checkpoint(run: RunDir) -> None:
    shutil.rmtree(checkpoints(Run(run.path))[-1])


def edit_text(path: Path) -> None:
    path.write_text(path.read_text().replace("1", "2", 1))


def garble_the_middle(path: Path) -> None:
    content = path.read_bytes()
    half = len(content) // 2
    path.write_bytes(content[:half] + b"\xff" * 9 + content[half + 9 :])


def add_line(path: Path) -> None:
    record = {"kind": "decision", "time": time.time(), "step": 20, "name": "stop", "detail": {}}
    with path.open("a", encoding="utf-8") as journal:
        journal.write(json.dumps(record) + "\n")


SPOILED: dict[str, Callable[[RunDir], Any]] = {
    "weights": lambda run: flip(next((run.path / "best").glob("*/weights.safetensors"))),
    "checkpoint": lambda run: flip(checkpoints(Run(run.path))[-1] / "optimizer.safetensors"),
    "no checkpoint": lose_the_last_checkpoint,
    "config": lambda run: edit_text(run.config_file),
    "data description": lambda run: edit_text(run.path / "data.json"),
    "manifest": lambda run: edit_text(run.path / "manifest.json"),
    "no manifest": lambda run: (run.path / "manifest.json").unlink(),
    "result": lambda run: edit_text(run.path / "result.json"),
    "evaluation": lambda run: edit_text(run.path / "evaluation" / "val.json"),
    "journal": lambda run: garble_the_middle(run.path / "journal" / "0001.jsonl"),
    "a decision": lambda run: add_line(run.path / "journal" / "0001.jsonl"),
    "an inherited decision": lambda run: edit_manifest(
        run,
        parent=Parent.model_validate(
            {"run_id": "r", "relation": "reproduce", "decisions": [[9, "stop", {}]]}
        ),
    ),
    "accepted changes": lambda run: edit_manifest(run, determinism=DeterminismRecord(reason="data changed")),
    "another trainer": lambda run: edit_manifest(run, trainer=ForeignTrainer(name="transformers")),
    "other semantics": lambda run: edit_manifest(run, semantics={"rules": 7}),
    "objects": lambda run: edit_manifest(run, objects=["data"]),
}


@pytest.mark.parametrize("what", SPOILED)
def test_what_is_damaged_or_not_what_its_inputs_give_is_never_reused(what: str, runs_dir: Path) -> None:
    SPOILED[what](the_run(runs_dir))
    assert reused(runs_dir) is None


def test_a_damaged_run_does_not_hide_another(runs_dir: Path) -> None:
    first = the_run(runs_dir)
    second = trainwright.train(SMALL, runs_dir=runs_dir)
    assert reused(runs_dir).id == second.id  # type: ignore[union-attr]
    flip(checkpoints(second)[-1] / "weights.safetensors")
    assert reused(runs_dir).id == first.id  # type: ignore[union-attr]


def test_an_unfinished_run_is_not_reused(tmp_path: Path) -> None:
    preempted(tmp_path)
    assert reused(tmp_path) is None


def test_rows_in_another_unit_are_other_inputs(tmp_path: Path) -> None:
    """Their features are the same once they are standardized, but the model would take them for others."""
    run, again = (
        trainwright.train(
            {**SMALL, "data": {"type": "csv", "path": str(path)}}, runs_dir=tmp_path / "runs", reuse=True
        )
        for path in (written(tmp_path, 1), written(tmp_path, 2))
    )
    assert again.digest == run.digest
    assert again.path != run.path
    (difference,) = (one for one in trainwright.compare(run, again).inputs or () if one.input == "data")
    assert difference.what == "preparation"


def written(folder: Path, unit: int) -> Path:
    path = folder / f"data-{unit}.csv"
    path.write_text(
        "\n".join(["a,b,target", *[f"{unit * (i % 13)},{unit * (i % 7)},{i % 3}" for i in range(160)]])
    )
    return path


def test_changed_data_are_other_inputs(tmp_path: Path) -> None:
    rows = [f"{i % 13},{i % 7 / 2},{i % 3}" for i in range(160)]
    path = tmp_path / "data.csv"
    path.write_text("\n".join(["a,b,target", *rows]) + "\n")
    data = {"data.type": "csv", "data.path": str(path)}
    run = trainwright.train(SMALL, data, runs_dir=tmp_path / "runs")
    moved = path.rename(tmp_path / "moved.csv")
    again = trainwright.train(
        SMALL, {**data, "data.path": str(moved)}, runs_dir=tmp_path / "runs", reuse=True
    )
    assert again.path == run.path, "the path is no input, the rows are"
    moved.write_text(moved.read_text().replace("\n0,0.0,0\n", "\n0,0.25,0\n", 1))
    again = trainwright.train(
        SMALL, {**data, "data.path": str(moved)}, runs_dir=tmp_path / "runs", reuse=True
    )
    assert again.path != run.path


def test_changed_initial_weights_are_other_inputs(trained: Path, tmp_path: Path) -> None:
    weights = tmp_path / "start.safetensors"
    trainwright.export(the_run(trained).path, weights)
    start = {"model.init_from": str(weights)}
    run = trainwright.train(SMALL, start, runs_dir=tmp_path / "runs")
    again = trainwright.train(SMALL, start, runs_dir=tmp_path / "runs", reuse=True)
    assert again.path == run.path
    save_file({name: array + 1 for name, array in load_file(weights).items()}, weights)
    again = trainwright.train(SMALL, start, runs_dir=tmp_path / "runs", reuse=True)
    assert again.path != run.path


def test_the_last_run_is_another_one_by_now(runs_dir: Path) -> None:
    first, start = the_run(runs_dir), {"model.init_from": "last"}
    run = trainwright.train(SMALL, start, runs_dir=runs_dir)
    assert run.manifest["init_from"] == str(first.path)
    again = trainwright.train(SMALL, start, runs_dir=runs_dir, reuse=True)
    assert again.manifest["init_from"] == str(run.path)
    named = {"model.init_from": first.id}
    other = trainwright.train(SMALL, named, runs_dir=runs_dir, reuse=True)
    assert other.path not in (run.path, again.path), "another config"
    assert trainwright.train(SMALL, named, runs_dir=runs_dir, reuse=True).path == other.path


def test_model_and_data_that_are_given_as_objects(tmp_path: Path) -> None:
    import numpy as np
    import torch

    def inputs(width: int = 8, shift: float = 0.0) -> dict[str, Any]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))
        x = np.arange(480, dtype=np.float32).reshape(120, 4) % 17
        x[:60] += shift  # of all rows it would be undone by the standardization
        return {"model": model, "data": (x, np.arange(120) % 2)}

    config = {key: value for key, value in SMALL.items() if key not in ("model", "data")}
    run = trainwright.train(config, runs_dir=tmp_path, **inputs())
    assert trainwright.train(config, runs_dir=tmp_path, reuse=True, **inputs()).path == run.path
    assert trainwright.train(config, runs_dir=tmp_path, reuse=True, **inputs(shift=1.0)).path != run.path
    assert trainwright.train(config, runs_dir=tmp_path, reuse=True, **inputs(width=9)).path != run.path


@pytest.mark.slow
def test_another_process_needs_no_framework(runs_dir: Path) -> None:
    """Its library is not even imported if the device is the CPU."""
    code = (
        "import sys, trainwright; from small_runs import SMALL\n"
        f"run = trainwright.train(SMALL, ['training.device=cpu'], runs_dir={str(runs_dir)!r}, reuse=True)\n"
        "print(run.id, 'torch' in sys.modules)"
    )
    path = os.pathsep.join([TESTS, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    assert done.stdout.split() == [the_run(runs_dir).id, "False"], done.stderr


def test_among_many_runs_only_those_of_the_computation_are_opened(
    runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = the_run(runs_dir)
    for number in range(50):
        run = RunDir.create(runs_dir, "small", "{}\n")
        run.write_attempt(AttemptRecord(attempt=1, status="completed"))
        run.write(Result.FILE, Result(status="completed", run_id=run.id, computation_hash=f"{number:064d}"))
    for path in runs_dir.rglob("*"):
        os.utime(path, (0, 0))
    summaries(runs_dir)  # the index reads a manifest once, when a run has ended some time ago
    opened: set[Path] = set()
    manifest = RunDir.manifest

    def watched(run: RunDir) -> Manifest | None:
        opened.add(run.path)
        return manifest(run)

    monkeypatch.setattr(RunDir, "manifest", watched)
    assert reused(runs_dir) is not None
    assert opened == {wanted.path}


def test_the_command_returns_the_run_that_is_there(
    runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "small.yaml"
    config.write_text(load(SMALL, adapters=Catalog()).dump(), encoding="utf-8")
    assert main(["train", str(config), "--reuse", "--json", "--quiet", "--runs-dir", str(runs_dir)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["run_id"] == the_run(runs_dir).id
    assert "is reused" in printed.err
