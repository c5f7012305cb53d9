"""The data of files and runs are compared by rows; by records where the rows of a run are gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import trainwright
from trainwright.cli.main import main
from trainwright.errors import InputError
from trainwright.runs.data import differences
from trainwright.runs.run import Run

CONFIG: dict[str, Any] = {
    "data": {"path": "jan.csv", "target": "churn"},
    "model": {"type": "logistic_regression"},
    "experiment": {"name": "churn"},
}
SENTENCE = "42 rows changed in column charge (key customer_id)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data of two months, of which the second one has 42 other charges."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    rows = pd.DataFrame(
        {
            "customer_id": draw.permutation(300) + 100,
            "charge": np.round(draw.gamma(2, 30, 300), 2),
            "plan": draw.choice(["a", "b"], 300),
        }
    )
    rows["churn"] = (rows["charge"] > 50).astype(int)
    rows.to_csv("jan.csv", index=False)
    rows.loc[:41, "charge"] += 0.25
    rows.to_csv("feb.csv", index=False)
    return tmp_path


def trained(**changes: Any) -> Run:
    return trainwright.train(CONFIG, changes)


def test_runs_are_compared_by_the_rows_of_their_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = trained(), trained(**{"data.path": "feb.csv"})
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    found = trainwright.data_diff(one, two)
    assert (found.compared, found.sentences()) == ("rows", [SENTENCE])
    assert trainwright.data_diff(folder / "jan.csv", two).sentences() == [SENTENCE]
    assert trainwright.data_diff(one, folder / "jan.csv").equal
    assert (
        trainwright.data_diff(str(one.path), two.path, limit=3).tables[0].cells == found.tables[0].cells[:3]
    )


def test_compare_and_why_name_what_differs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = trained(), trained(**{"data.path": "feb.csv"})
    assert main(["runs", "compare", one.id, two.id]) == 0
    assert f"\ndata:\n  {SENTENCE}\n" in capsys.readouterr().out
    document = trainwright.compare(one, two).to_json()
    assert document["data"] == [SENTENCE] or document["data"] == (SENTENCE,)
    study = trainwright.why(one, two, max_runs=2, quiet=True)
    assert study.result["data"] == [SENTENCE]
    assert SENTENCE in (study.path / "report.html").read_text(encoding="utf-8")
    assert trainwright.compare(one, one).data == ()


def test_equal_rows_that_are_prepared_differently(folder: Path) -> None:
    one, two = trained(), trained(**{"data.exclude": ["plan"]})
    assert trainwright.compare(one, two).data == (differences._SAME,)
    assert trainwright.data_diff(one, two).equal


def test_large_files_are_not_read_beside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = trained(), trained(**{"data.path": "feb.csv"})
    size = (folder / "jan.csv").stat().st_size + (folder / "feb.csv").stat().st_size
    monkeypatch.setattr(differences, "_READ_BESIDE", size)
    assert trainwright.compare(one, two).data == (SENTENCE,)
    monkeypatch.setattr(differences, "_READ_BESIDE", size - 1)
    assert trainwright.compare(one, two).data == (
        f"see what differs with `trainwright data diff {one.id} {two.id}`",
    )


def test_a_run_whose_file_was_edited_is_compared_by_what_it_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = trained()
    rows = pd.read_csv("jan.csv")
    rows.loc[rows["charge"].idxmax(), "charge"] = 5000.0
    rows[:-30].rename(columns={"plan": "tariff"}).to_csv("jan.csv", index=False)
    two = trained()
    found = trainwright.data_diff(one, two)
    assert found.compared == "records"
    assert found.notes == (f"the data of run {one.id} have changed since",)
    recorded = {change.what: (change.before, change.after) for change in found.recorded}
    assert "plan" in str(recorded["features"][0])
    assert "tariff" in str(recorded["features"][1])
    assert recorded["train split, rows"] == (240, 216)
    assert recorded["train split, sha256"][0] == one.manifest["data"]["splits"]["train"]["sha256"]
    assert trainwright.compare(one, two).data == (f"rows are not compared: {found.notes[0]}",)
    beside = trainwright.data_diff(one, "jan.csv")
    assert (beside.compared, beside.notes) == ("columns", found.notes)
    assert beside.sentences() == ["column plan was used, is missing", "rows was 300, is 270"]
    assert trainwright.data_diff("jan.csv", one).sentences() == [
        "column plan was missing, is used",
        "rows was 270, is 300",
    ]
    assert trainwright.data_diff(one, "feb.csv").sentences() == []
    assert not trainwright.data_diff(one, "feb.csv").equal  # it is not known
    assert main(["data", "diff", one.id, "feb.csv", "--exit-code"]) == 3
    assert "columns and the number of rows are those of the run; more cannot" in capsys.readouterr().out


def test_a_run_whose_file_is_gone_is_compared_by_what_it_recorded(folder: Path) -> None:
    one, two = trained(), trained(**{"data.path": "feb.csv"})
    (folder / "jan.csv").unlink()
    found = trainwright.data_diff(one, two)
    assert found.compared == "records"
    assert "jan.csv" in found.notes[0]
    assert not found.equal
    assert trainwright.data_diff(one, one).equal


def test_data_that_are_no_table_are_compared_by_what_runs_recorded(folder: Path) -> None:
    iris: dict[str, Any] = {**CONFIG, "data": {"type": "iris"}}
    one, two = (trainwright.train(iris, {"data.split.test": share}) for share in (0.1, 0.2))
    found = trainwright.data_diff(one, two)
    assert found.compared == "records"
    assert "no tables in files (data.type: iris)" in found.notes[0]
    assert {change.what for change in found.recorded} >= {"train split, sha256"}


def test_each_split_with_a_file_of_its_own_is_compared(folder: Path) -> None:
    pd.read_csv("jan.csv").assign(charge=lambda rows: rows["charge"] + 7).to_csv("test.csv", index=False)
    pd.read_csv("feb.csv").assign(charge=lambda rows: rows["charge"] + 7).to_csv("test2.csv", index=False)
    paths = {"data.path": None, "data.train_path": "jan.csv", "data.test_path": "test.csv"}
    one, two = trained(**paths), trained(**{**paths, "data.test_path": "test2.csv"})
    found = trainwright.data_diff(one, two)
    assert [(table.split, table.equal) for table in found.tables] == [("train", True), ("test", False)]
    assert found.sentences() == [f"test: {SENTENCE}"]


def test_the_command_prints_cells_and_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "diff", "jan.csv", "feb.csv", "--limit", "2"]) == 0
    shown = capsys.readouterr().out
    before, after = (pd.read_csv(name) for name in ("jan.csv", "feb.csv"))
    key, old, new = before["customer_id"][0], before["charge"][0], after["charge"][0]
    assert f"  {key}          charge  1    {old:<8}{new}" in shown
    assert shown.count(" charge  ") == 3
    assert SENTENCE in shown
    texts = []
    for _ in range(2):
        assert main(["data", "diff", "jan.csv", "feb.csv", "--json", "--key", "customer_id"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    document = json.loads(texts[0])
    (table,) = document["tables"]
    assert list(document) == ["equal", "first", "second", "compared", "tables", "recorded", "notes"]
    assert list(table) == ["split", "schema", "rows", "changed", "cells", "shift", "equal"]
    assert table["changed"] == {"charge": 42}
    assert table["cells"][0] == {
        "column": "charge",
        "before_row": 1,
        "after_row": 1,
        "key": {"customer_id": key},
        "before": old,
        "after": new,
    }
    assert table["rows"]["key_found"] is False


def test_the_exit_code_says_that_something_differs_where_it_is_asked_for(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "diff", "jan.csv", "feb.csv", "--exit-code"]) == 3
    assert main(["data", "diff", "jan.csv", "jan.csv", "--exit-code"]) == 0
    assert capsys.readouterr().out.endswith("no differences\n")
    assert main(["data", "diff", "jan.csv", "march.csv"]) == 2
    assert "march.csv is no file or folder of tables, and" in capsys.readouterr().err


def test_versions_and_runs_that_are_pinned_to_them_are_compared(folder: Path) -> None:
    trainwright.data_add("jan.csv", "churn")
    (folder / "jan.csv").unlink()
    one = trained(**{"data.path": "churn@latest"})
    trainwright.data_add("feb.csv", "churn")
    (folder / "feb.csv").unlink()
    two = trained(**{"data.path": "churn@latest"})
    for names in (("churn@v1", "churn@v2"), (one, two), (one, "churn@latest")):
        found = trainwright.data_diff(*names)
        assert (found.compared, found.sentences()) == ("rows", [SENTENCE])
    assert trainwright.data_diff(one, "churn@v1").equal
    assert trainwright.compare(one, two).data == (SENTENCE,)
    with pytest.raises(InputError, match="no version 'v9'"):
        trainwright.data_diff("churn@v1", "churn@v9")


def test_the_size_of_versions_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainwright.data_add("jan.csv", "churn")
    trainwright.data_add("feb.csv", "churn")
    one, two = (trained(**{"data.path": f"churn@v{i}"}) for i in (1, 2))
    size = (folder / "jan.csv").stat().st_size + (folder / "feb.csv").stat().st_size
    monkeypatch.setattr(differences, "_READ_BESIDE", size - 1)
    assert "trainwright data diff" in trainwright.compare(one, two).data[0]


def test_the_command_counts_rows_whose_key_does_not_identify_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("a.csv").write_text("id,x\n1,1\n1,2\n2,3\n,4\n", encoding="utf-8")
    Path("b.csv").write_text("id,x\n1,1\n1,5\n3,3\n", encoding="utf-8")
    assert main(["data", "diff", "a.csv", "b.csv", "--key", "id"]) == 0
    shown = capsys.readouterr().out
    assert "keys of several rows: 1 and 1; these rows are compared by content" in shown
    assert "rows without a key: 1 and 0; they are compared by content" in shown
    assert "2 rows added (key id)\n3 rows removed (key id)" in shown
