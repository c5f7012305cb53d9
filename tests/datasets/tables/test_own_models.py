"""The columns that reach a model of the user's own: those that were given, as they are."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import trainwright
from trainwright.config import load
from trainwright.datasets.tables.kinds import kept_columns
from trainwright.runs.catalog import Catalog

X, Y = load_digits(return_X_y=True)
X, Y = X[:300], Y[:300]
SHORT = {"training": {"max_steps": 3, "threads": 1}}


class Recorder(LogisticRegression):
    """An estimator that notes what it is fitted to."""

    seen: list[Any] = []  # noqa: RUF012 - of all objects

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        type(self).seen.append(np.array(X))
        return super().fit(X, y, sample_weight)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy, pd.DataFrame])
def test_arrays_tensors_and_frames_reach_a_module_unchanged(make: Any, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 10))
    run = trainwright.train(SHORT, model=model, data=(make(X), Y), runs_dir=tmp_path)
    assert len(run.manifest["data"]["features"]) == 64
    assert len(trainwright.load(run, model=model).predict(make(X)[:4])) == 4
    trainwright.evaluate(run, model=model, data=(make(X), Y))
    assert trainwright.reproduce(run, model=model, data=(make(X), Y)).verdict == "identical"


def test_an_estimator_is_fitted_to_the_very_values(tmp_path: Path) -> None:
    Recorder.seen.clear()
    trainwright.train(
        {**SHORT, "data": {"split": {"val": 0, "test": 0}}},
        model=Recorder(max_iter=10),
        data=(X, Y),
        runs_dir=tmp_path,
    )
    np.testing.assert_array_equal(Recorder.seen[-1], X)


def test_identifiers_of_frames_are_kept_and_what_the_user_excludes_is_not(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"id": np.arange(60), "one": 1.0, "size": np.sin(np.arange(60)), "y": np.arange(60) % 2}
    )
    model = torch.nn.Sequential(torch.nn.Linear(3, 2))
    run = trainwright.train({**SHORT, "data": {"target": "y"}}, model=model, data=frame, runs_dir=tmp_path)
    assert len(run.manifest["data"]["features"]) == 3
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    settings = {**SHORT, "data": {"target": "y", "exclude": ["id"]}}
    assert trainwright.train(settings, model=model, data=frame, runs_dir=tmp_path).status == "completed"


def test_values_far_from_standardized_are_warned_of_and_scaled_on_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 10))
    trainwright.train(SHORT, model=model, data=(X * 1000, Y), runs_dir=tmp_path)
    assert "values up to 16000: scale them, or set data.standardize: true" in caplog.text
    caplog.clear()
    settings = {**SHORT, "data": {"standardize": True}}
    trainwright.train(settings, model=model, data=(X * 1000, Y), runs_dir=tmp_path)
    assert "scale them" not in caplog.text


def test_a_named_model_gets_what_is_useful_and_standardized(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    run = trainwright.train({**SHORT, "model": "mlp"}, data=(X, Y), runs_dir=tmp_path)
    assert len(run.manifest["data"]["features"]) < 64
    assert "holds one value in all training rows, and is excluded (constant)" in caplog.text


MODULE = """
import torch

def net(width: int = 4) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(width, 2))

def rows():
    x = torch.arange(240.0).reshape(60, 4)
    x[:, 1] = 7
    return x, (torch.arange(60) % 2)
"""


def test_of_files_a_model_of_ones_own_gets_constants_but_no_identifiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_net.py").write_text(MODULE)
    wave = np.sin(np.arange(60))
    pd.DataFrame(
        {"id": np.arange(60), "one": 1, "size": wave, "age": wave**2, "kg": wave**3, "y": np.arange(60) % 2}
    ).to_csv("t.csv", index=False)
    data = {"path": "t.csv", "target": "y"}
    run = trainwright.train({**SHORT, "data": data, "model": "own_net:net"})
    assert len(run.manifest["data"]["features"]) == 4
    assert trainwright.reproduce(run).verdict == "identical"
    given = trainwright.train({**SHORT, "data": "own_net:rows", "model": "own_net:net"})
    assert len(given.manifest["data"]["features"]) == 4


def test_the_defaults_are_those_of_the_model_and_the_data() -> None:
    def standardizes(**config: Any) -> bool:
        resolved = load({"data": {"type": "my:rows"}, **config}, (), Catalog())
        assert resolved.config.data is not None
        return resolved.config.data.standardize

    assert not standardizes(model={"type": "my:Net", "framework": "torch"})
    assert standardizes(model="mlp")
    assert standardizes(model={"type": "my:Net", "framework": "torch"}, data={"path": "a.csv"})
    assert kept_columns(is_own=False, given=True) == "useful"
