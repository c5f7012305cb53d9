"""The part of a run that predictions need: what it holds, and what it leaves behind."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from trainwright.digest import array_buffer, damage, digest, tensor_records, write_tensors
from trainwright.errors import CheckpointError, InputError
from trainwright.records.checkpoint_names import step_of
from trainwright.records.commit import Commit
from trainwright.records.result import BestModel, Result
from trainwright.records.run_dir import RunDir
from trainwright.storage.lease import Lease
from trainwright.storage.log import Log
from trainwright.storage.portable import stored_weights, weights_digest, write_portable
from trainwright.stores.local import LocalStore
from written import write_record

CONFIG = """
data: {type: csv, path: "s3://me:hunter2hunter2@bucket/${env:FOLDER}/x.csv"}
model: {type: mlp}
tracking: [{type: mlflow, params: {uri: "${env:WHERE}"}}]
"""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    path = tmp_path / "exp" / "20260101-120000-abc123"
    for name in (
        "best/step-000000005-a0001",
        "best/step-000000009-a0002",
        "checkpoints/step-000000012-a0002",
    ):
        (path / name).mkdir(parents=True)
        step = step_of(Path(name).name)
        files = [
            write_tensors(path / name / f"{kind}.safetensors", [array_buffer("x", np.array([step, i]))])
            for i, kind in enumerate(["weights", "optimizer"])
        ]
        (path / name / "manifest.json").write_bytes(Commit(Path(name).name, step, 1, files).manifest())
    (path / "config.yaml").write_text(CONFIG)
    (path / "data.json").write_text("{}")
    manifest = {
        "run_id": path.name,
        "experiment": "exp",
        "working_directory": "/home/me",
        "command": ["secret"],
    }
    write_record(path / "manifest.json", manifest)
    Result(status="completed", best=BestModel(step=5)).save(path / "result.json")
    return RunDir(path)


def test_the_best_model_is_taken_else_the_newest(run: RunDir) -> None:
    assert stored_weights(run).name == "step-000000005-a0001"
    assert weights_digest(stored_weights(run)) == digest(
        tensor_records([array_buffer("weights.x", np.array([5, 0]))])
    )
    Result(status="completed").save(run.path / "result.json")
    assert stored_weights(run).name == "step-000000012-a0002"


def test_what_the_log_does_not_name_is_not_taken(run: RunDir) -> None:
    lost = run.path / "best" / "step-000000005-a0003"  # of an attempt that lost the run before its commit
    shutil.copytree(run.path / "best" / "step-000000005-a0001", lost)
    assert stored_weights(run).name == lost.name, "without a log, a manifest is enough"
    lease = Lease(Log(LocalStore(run.path)), 0, 2)
    lease.take(["step-000000012-a0002"], ["step-000000005-a0001"])
    assert stored_weights(run).name == "step-000000005-a0001"


def test_secrets_variables_trackers_and_other_files_stay_behind(run: RunDir, tmp_path: Path) -> None:
    made = write_portable(run, stored_weights(run), tmp_path / "made")
    config = (made / "config.yaml").read_text()
    assert "hunter2" not in config
    assert "${env" not in config
    assert "tracking: []" in config
    files = sorted(str(path.relative_to(made)) for path in made.rglob("*") if path.is_file())
    folder = "best/step-000000005-a0001"
    commit = Commit.read("step-000000005-a0001", (made / folder / "manifest.json").read_bytes())
    assert [file.name for file in commit.files] == ["weights.safetensors"]
    assert damage(made / folder / "weights.safetensors", commit.files[0]) is None
    own = ["config.yaml", "data.json", "manifest.json", "result.json"]
    assert files == [f"{folder}/manifest.json", f"{folder}/weights.safetensors", *own]
    copied = RunDir(made).require_manifest()
    assert (copied.command, copied.working_directory) == ([], ".")
    assert copied.config_sha256 == RunDir(made).config_sha256()


def test_a_model_object_is_refused(run: RunDir, tmp_path: Path) -> None:
    manifest = run.require_manifest().model_copy(update={"objects": ["model"]})
    manifest.save(run.path / "manifest.json")
    with pytest.raises(InputError, match="was trained with a model object passed from Python, which no file"):
        write_portable(run, stored_weights(run), tmp_path / "made")


def test_a_damaged_manifest_is_named(run: RunDir, tmp_path: Path) -> None:
    manifest = stored_weights(run) / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"attempt": 1', b'"attempt": 2'))
    with pytest.raises(
        CheckpointError, match="step-000000005-a0001 is damaged: its manifest is not what was written"
    ):
        write_portable(run, stored_weights(run), tmp_path / "made")


def test_a_link_is_not_followed(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    weights = stored_weights(run) / "weights.safetensors"
    weights.unlink()
    weights.symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic link"):
        write_portable(run, stored_weights(run), tmp_path / "made")
