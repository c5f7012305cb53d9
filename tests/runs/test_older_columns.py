"""Runs that began when columns were what their file's types say: they resume, predict and repeat as they began."""

import random
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, crashed
from trainwright.semantics import PARTS, computing_by

pytestmark = pytest.mark.slow


@pytest.fixture
def overrides(tmp_path: Path) -> dict[str, Any]:
    """Settings for a file with row numbers, answers in words, and amounts: version 2 reads all three otherwise."""
    draw = random.Random(0)
    rows = [
        f"{i},{'yn'[i % 2]},${draw.randrange(5)},{draw.gauss(0, 1)},{draw.choice(['up', 'down'])}"
        for i in range(160)
    ]
    (tmp_path / "a.csv").write_text("\n".join(["number,answer,price,x,y", *rows]) + "\n")
    return {"data.type": "csv", "data.path": str(tmp_path / "a.csv"), "data.target": "y"}


def features(run: Any) -> set[str]:
    return set(trainwright.load(run).info.feature_names)


def test_a_run_of_version_1_resumes_predicts_and_repeats(overrides: dict[str, Any], tmp_path: Path) -> None:
    with computing_by({"preparation": 1}):
        begun = crashed(tmp_path / "runs", overrides, at=13)
    run = trainwright.resume(begun)
    assert (run.manifest["semantics"]["preparation"], run.manifest["changes"]) == (1, [])
    assert {"number", "answer=n", "price=$3"} <= features(run)
    test = trainwright.evaluate(run)
    assert test == {name: value for name, value in run.metrics.items() if name in test}
    assert len(trainwright.predict(run, tmp_path / "a.csv")) == 160
    assert trainwright.reproduce(run).verdict == "identical"


def test_a_new_run_reads_them_by_their_kind(overrides: dict[str, Any], tmp_path: Path) -> None:
    run = trainwright.train(SMALL, overrides, runs_dir=tmp_path / "runs")
    assert run.manifest["semantics"]["preparation"] == PARTS["preparation"].version
    assert features(run) == {"answer", "price", "x"}
    assert len(trainwright.predict(run, tmp_path / "a.csv")) == 160
    assert trainwright.reproduce(run).verdict == "identical"
