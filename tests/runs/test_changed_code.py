"""Code of the user's that has changed since a run was trained: what uses the model says so."""

from __future__ import annotations

import importlib
import json
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import trainwright
from small_runs import SMALL
from trainwright.cli.main import main

HELPER = "def scaled(x):\n    return {factor} * x\n"
CODE = """
import torch
from changed_helper import scaled

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        return scaled(self.linear(x))
"""
METRIC = "def score(y_true, y_pred):\n    return {value}\n"


def forget() -> None:
    for name in [one for one in sys.modules if one.startswith("changed_")]:
        del sys.modules[name]
    importlib.invalidate_caches()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    Path("changed_helper.py").write_text(HELPER.format(factor=1))
    Path("changed_net.py").write_text(CODE)
    Path("changed_metric.py").write_text(METRIC.format(value=1.0))
    yield tmp_path
    forget()


@pytest.mark.slow
def test_changed_code_is_named_by_all_that_uses_the_model(
    project: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trainwright.train(
        SMALL,
        {
            "model": {"type": "changed_net:Net"},
            "training.max_steps": 4,
            "evaluation.metrics": ["accuracy", "changed_metric:score"],
        },
    )
    forget()
    trainwright.evaluate(run)
    assert not [line for line in caplog.messages if "changed since" in line]

    Path("changed_helper.py").write_text(HELPER.format(factor=10))
    Path("changed_metric.py").write_text(METRIC.format(value=2.0))
    for use in (trainwright.load, trainwright.evaluate):
        forget()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            use(run)
        (named, *others) = [line for line in caplog.messages if "has changed since run" in line]
        assert named.startswith(
            f"module changed_helper ({project / 'changed_helper.py'}) has changed since run"
        )
        assert [line.split()[1] for line in others] == ["changed_metric"] * (use is trainwright.evaluate)
    forget()
    capsys.readouterr()
    assert main(["evaluate", str(run.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changed_code"] == ["changed_helper", "changed_metric"]

    forget()
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        trainwright.fork(run, ["training.max_steps=6"], step=4)
    lines = [line for line in caplog.messages if line.startswith(f"changed since run {run.id}: ")]
    assert len(lines) == 2
    assert "changed_helper" in lines[0]
    assert "changed_metric" in lines[1]


STEP = """
import pandas as pd

def with_region(frame):
    known = pd.read_csv("lookup/regions.csv").set_index("code")["weight"]
    return frame.assign(weight=frame["code"].map(known))
"""


def test_a_changed_lookup_file_is_named_by_all_that_predicts(
    project: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("changed_step.py").write_text(STEP)
    Path("lookup").mkdir()
    Path("lookup/regions.csv").write_text("code,weight\n1,3.5\n2,1.5\n3,2.0\n")
    rows = [f"{i},{i % 3 + 1},{i % 5},{'yes' if i % 3 else 'no'}" for i in range(120)]
    Path("t.csv").write_text("\n".join(["id,code,other,y", *rows]) + "\n")
    data = {
        "path": "t.csv",
        "target": "y",
        "features_from": "changed_step:with_region",
        "split": {"by": "hash", "key": "id"},
    }
    config = {"data": data, "model": "logistic_regression", "training": {"threads": 1}}
    run = trainwright.train(config, quiet=True)
    assert "lookup/regions.csv" in run.manifest["observed"]["files"]
    uses = {
        "evaluate": lambda: trainwright.evaluate(run, data="t.csv"),
        "predict": lambda: trainwright.load(run).predict("t.csv"),
        "retrain": lambda: trainwright.retrain(run, data="t.csv", quiet=True),
    }

    def named(use: Callable[[], object]) -> list[str]:
        forget()
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            use()
        return [line.split(",")[0] for line in caplog.messages if f"run {run.id} has read, has" in line]

    for use in uses.values():
        assert named(use) == []
    Path("lookup/regions.csv").write_text("code,weight\n1,3.5\n2,9.5\n3,2.0\n")
    for use in uses.values():
        assert named(use) == ["file lookup/regions.csv"]
    capsys.readouterr()
    assert main(["predict", str(run.path), "t.csv", "-o", "out.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changed_files"] == ["lookup/regions.csv"]
    assert main(["evaluate", str(run.path), "t.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changed_files"] == ["lookup/regions.csv"]
