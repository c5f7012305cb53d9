"""`data`."""

import json
from pathlib import Path

import pytest
from commandline import Command


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [f"{i},{'yes' if i % 3 else 'no'}" for i in range(60)]
    Path("t.csv").write_text("\n".join(["age,churn", *rows]) + "\n")
    data = {"path": "t.csv", "target": "churn", "expect": {"rows": ">= 60", "age": {"between": [0, 50]}}}
    path = tmp_path / "c.yaml"
    path.write_text(json.dumps({"data": data, "model": "ridge_classifier"}))
    return path


def test_check_tells_what_is_not_met(command: Command, config: Path) -> None:
    done = command("data", "check", config)
    assert done.code == 3
    assert done.out.splitlines() == [
        "ok  rows: there are 60 rows",
        "NOT age.between: 9 of 60 cells are not from 0 to 50 (51, 52, 53, ...): rows 52, 53, 54 and 6 more "
        "(lines 53, 54, 55 of the file) of t.csv",
        f"{config}: 1 of 2 expectations not met",
    ]
    document = command("data", "check", config, "--json").json
    assert not document["met"]
    assert document["expectations"][1]["rows"] == 9
    assert document["expectations"][1]["examples"][0] == {
        "source": "t.csv",
        "row": 52,
        "line": 53,
        "value": 51,
    }


def test_check_of_rows_that_are_as_expected(command: Command, config: Path) -> None:
    done = command("data", "check", config, "data.expect.age.between=[0, 59]")
    assert (done.code, done.out.splitlines()[-1]) == (0, f"{config}: ok")


def test_a_training_on_other_rows_does_not_begin(command: Command, config: Path) -> None:
    done = command("train", config, "--runs-dir", "runs")
    assert done.code == 3
    assert "data.expect: 1 of 2 expectations is not met" in done.err
    assert command("runs", "list", "--runs-dir", "runs", "--json").json == []


def test_a_config_that_expects_nothing(command: Command, config: Path) -> None:
    assert command("data", "check", config, "data.expect=null").code == 2


def test_versions_of_another_folder_of_runs(command: Command, config: Path) -> None:
    assert command("data", "add", "t.csv", "--runs-dir", "elsewhere").code == 0
    for verb in (("data", "check"), ("config", "check"), ("config", "show")):
        given = (*verb, config, "data.path=t@v1", "data.expect.age.between=[0, 59]")
        assert command(*given).code == 2
        assert command(*given, "--runs-dir", "elsewhere").code == 0, verb


def test_gc_takes_force_with_keep_only(command: Command, config: Path) -> None:
    assert command("data", "add", "t.csv").code == 0
    done = command("data", "gc", "--force")
    assert (done.code, "give both, or neither" in done.err) == (2, True)
    assert command("data", "gc", "--force", "--keep", "1").code == 0
