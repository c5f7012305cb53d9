from pathlib import Path

import pytest
from commandline import Command


def test_check(command: Command, config: Path) -> None:
    done = command("config", "check", config, "training.epochs=3")
    assert (done.code, done.out) == (0, f"{config}: ok\n")
    found = command("config", "check", config, "--json").json
    assert (found["ok"], found["notes"], len(found["computation_hash"])) == (True, [], 64)


def test_check_names_every_problem(command: Command, config: Path) -> None:
    done = command("config", "check", config, "training.epochs=-3", "model.type=mpl")
    assert done.code == 2
    assert done.out == ""
    assert "2 problems" in done.err
    assert "mlp" in done.err


def test_check_of_no_file(command: Command, tmp_path: Path) -> None:
    done = command("config", "check", tmp_path / "none.yaml")
    assert done.code == 2
    assert "none.yaml" in done.err


def test_show_says_where_each_value_came_from(command: Command, config: Path) -> None:
    found = command("config", "show", config, "training.batch_size=16", "--json").json
    assert found["training.batch_size"] == {"value": 16, "source": "command line"}
    assert found["training.epochs"]["value"] == 1
    assert found["training.epochs"]["source"].startswith(f"{config}:3:")
    assert found["training.weight_decay"] == {"value": 0.0, "source": "default"}
    lines = command("config", "show", config).out.splitlines()
    assert len(lines) == len(found)
    assert any(line.split() == ["training.batch_size", "32", "#", "default"] for line in lines)


def test_show_says_what_the_columns_hold(command: Command, config: Path, tmp_path: Path) -> None:
    rows = [f"{i},{'ab'[i % 2]},${i % 7}.50,{i % 28 + 1}/02/2024,{i % 2}" for i in range(60)]
    (tmp_path / "a.csv").write_text("\n".join(["id,kind,price,day,y", *rows]) + "\n")
    settings = ("data.type=csv", f"data.path={tmp_path}/a.csv", "data.target=y")
    words = ("config", "show", config, *settings)
    lines = [line.split() for line in command(*words).out.splitlines()]
    assert ["#", "id", "identifier", "numbers", "the", "rows"] in lines
    assert ["#", "price", "number", "numbers", "in", "text", "($)"] in lines
    assert command(*words, "--json").json["columns"]["day"] == {"kind": "time", "reason": "dates in text"}
    (tmp_path / "a.csv").unlink()
    done = command(*words)
    assert done.code == 0
    assert "a.csv: there is no such file" in done.out


def test_show_hides_secrets(command: Command, config: Path) -> None:
    words = ("config", "show", config, "tracking=[{type: mlflow, uri: 'http://me:word@host'}]")
    for done in (command(*words), command(*words, "--json")):
        assert done.code == 0, done.err
        assert "***@host" in done.out
        assert "me:word" not in done.out


def test_schema(command: Command) -> None:
    found = command("config", "schema").json
    assert found["$schema"].endswith("2020-12/schema")
    assert {"experiment", "data", "model", "training"} <= set(found["properties"])


def test_columns_of_the_split_and_of_expectations_are_looked_for(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(
        "data:\n  path: t.csv\n  target: y\n  type: csv\n  split: {by: hash, key: costumer}\n"
        "  expect: {aeg: {}, columns: {required: [customer]}}\nmodel: random_forest\n"
    )
    assert command("config", "check", "c.yaml").code == 0  # the file is elsewhere
    Path("t.csv").write_text("customer,age,y\n1,2,0\n2,3,1\n")
    done = command("config", "check", "c.yaml")
    assert done.code == 2
    assert "c.yaml:5" in done.err
    assert "data.split.key: t.csv has no column 'costumer'; did you mean 'customer'?" in done.err
    assert "data.expect.column.aeg: t.csv has no column 'aeg'; did you mean 'age'?" in done.err
    assert "required" not in done.err
    named = ("data.split.key=customer", "data.expect=null")
    assert command("config", "check", "c.yaml", *named).code == 0
