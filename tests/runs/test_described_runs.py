"""What a run writes for its report: rows by their position and identifier in the user's own file."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import trainwright
from small_runs import SMALL


@pytest.mark.slow
def test_the_greatest_errors_are_named_as_in_the_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2)).round(3)
    kind = np.where(x[:, 0] + 0.5 * rng.normal(size=300) > 0, "yes", "no")
    rows = [(f"C{7919 * i % 1009:04d}", *x[i], kind[i]) for i in range(300)]
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("customer_id", "a", "b", "kind"), *rows])
    data = {"type": "csv", "path": str(path), "target": "kind"}
    run = trainwright.train(SMALL | {"data": data}, runs_dir=tmp_path / "runs")

    tables = json.loads((run.path / "evaluation" / "test.json").read_text())
    assert tables["origin"] == {"file": str(path), "id": "customer_id"}
    assert tables["worst"]
    for row in tables["worst"]:
        own = rows[row["number"] - 1]
        assert (row["id"], row["true"]) == (own[0], own[-1])
    assert [one["name"] for one in tables["compared"]["baselines"]] == ["constant", "linear"]

    sample = json.loads((run.path / "evaluation" / "train.json").read_text())
    assert (sample["sample"], sample["worst"]) == (True, [])
    assert not any(name.startswith("train_") for name in run.metrics)
    described = json.loads((run.path / "evaluation" / "data.json").read_text())
    assert described["rows"] == {"train": 240, "val": 30, "test": 30}
    page = (run.path / "report.html").read_text(encoding="utf-8")
    assert f"Rows count from 1 in {path}" in page
    assert tables["worst"][0]["id"] in page
