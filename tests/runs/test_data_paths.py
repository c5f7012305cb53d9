"""Paths of data that come from the environment: a run remembers the files that they were."""

import json
from pathlib import Path
from typing import Any

import pytest

import trainwright
from trainwright.config.env import is_public_path
from trainwright.errors import InputError
from trainwright.records.creation import Creation
from trainwright.storage.ownership import is_own

CONFIG: dict[str, Any] = {
    "data": {"path": "${env:ROWS}/rows.csv", "target": "y"},
    "model": "logistic_regression",
    "training": {"threads": 1},
}


def write(folder: Path, shift: int = 0) -> Path:
    folder.mkdir()
    lines = "".join(f"{i * (37 + shift) % 101},{i * i % 97},{int(i % 20 > 9)}\n" for i in range(100))
    (folder / "rows.csv").write_text(f"a,b,y\n{lines}", encoding="utf-8")
    return folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trainwright.Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ROWS", str(write(tmp_path / "one")))
    done = trainwright.train(CONFIG, runs_dir=tmp_path / "runs")
    monkeypatch.delenv("ROWS")
    return done


def test_later_commands_know_the_file_without_the_variable(run: trainwright.Run, tmp_path: Path) -> None:
    assert '"${env:ROWS}/rows.csv"' in (run.path / "config.yaml").read_text()
    created = json.loads((run.path / "created.json").read_text())
    assert created["data_paths"] == {"data.path": f"{tmp_path}/one/rows.csv"}
    assert trainwright.evaluate(run)["test_accuracy"] == run.metrics["test_accuracy"]
    assert len(trainwright.predict(run, tmp_path / "one" / "rows.csv")) == 100
    assert trainwright.reproduce(run).verdict == "identical"
    assert trainwright.compare(run, run).same_digest


def test_the_recorded_file_counts_if_the_variable_names_another(
    run: trainwright.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWS", str(write(tmp_path / "two", shift=5)))
    assert trainwright.evaluate(run)["test_accuracy"] == run.metrics["test_accuracy"]
    other = trainwright.train(CONFIG, runs_dir=tmp_path / "runs")
    (path,) = [one for one in trainwright.compare(run, other).config if one.what == "data.path"]
    assert (path.before, path.now) == (f"{tmp_path}/one/rows.csv", f"{tmp_path}/two/rows.csv")


def test_the_variable_counts_where_the_recorded_file_is_gone(
    run: trainwright.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").rename(tmp_path / "moved")
    monkeypatch.setenv("ROWS", str(tmp_path / "moved"))
    assert trainwright.evaluate(run)["test_accuracy"] == run.metrics["test_accuracy"]


def test_other_content_at_the_recorded_path_is_refused(run: trainwright.Run, tmp_path: Path) -> None:
    (tmp_path / "one" / "rows.csv").unlink()
    (tmp_path / "one").rmdir()
    write(tmp_path / "one", shift=3)
    with pytest.raises(InputError, match="changed"):
        trainwright.evaluate(run, split="test")


def test_a_changed_record_is_not_the_users_own(run: trainwright.Run) -> None:
    assert is_own(run.path)
    created = Creation.load(run.path / Creation.FILE)
    assert created is not None
    created.model_copy(update={"data_paths": {"data.path": "s3://other/x.csv"}}).save(
        run.path / Creation.FILE
    )
    assert not is_own(run.path)


@pytest.mark.parametrize(
    ("template", "text", "is_public"),
    [
        ("${env:DATA}/x.csv", "/d/x.csv", True),
        ("${env:BUCKET}/x.csv", "s3://b/x.csv", True),
        ("${env:MY_TOKEN}/x.csv", "/d/x.csv", False),
        ("s3://ada:${env:P}@b/x.csv", "s3://ada:pw@b/x.csv", False),
        ("https://h/x.csv?sig=${env:S}", "https://h/x.csv?sig=1", False),
    ],
)
def test_paths_that_may_hold_a_secret_are_not_kept(template: str, text: str, is_public: bool) -> None:
    assert is_public_path(template, text) is is_public
