"""Calls of `train` from Python: without a config, and beside a run that is running."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainwright
from trainwright.callbacks.base import Callback
from trainwright.errors import DataError, InputError, RunLockedError

X = np.random.default_rng(0).normal(size=(90, 3))
DATA = (X, (X[:, 0] > 0).astype(int))
SHORT: dict[str, Any] = {"model": "mlp", "training": {"max_steps": 4, "threads": 1}}


def test_a_config_may_be_left_out_where_model_and_data_are_given(tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 2))
    short = {"training.max_steps": 3}
    run = trainwright.train(overrides=short, model=net, data=DATA, runs_dir=tmp_path)
    assert (run.status, run.run_id) == ("completed", run.id)
    named = trainwright.train(overrides=short, model="mlp", data=DATA, runs_dir=tmp_path)
    assert named.status == "completed"
    for given in ({}, {"model": net}, {"data": DATA}):
        with pytest.raises(InputError, match="no config: give a YAML file, or a mapping such as"):
            trainwright.train(**given, runs_dir=tmp_path)


def test_the_name_of_scikit_learn_for_the_area_of_several_classes(tmp_path: Path) -> None:
    settings = SHORT | {"evaluation": {"metrics": ["roc_auc_ovr"]}}
    targets = np.arange(90) % 3
    assert "val_roc_auc" in trainwright.train(settings, data=(X, targets), runs_dir=tmp_path).metrics


class Held(Callback):
    """Hold a run at its first evaluation."""

    def __init__(self) -> None:
        self.running, self.may_end = threading.Event(), threading.Event()

    def on_evaluation(self, *_: Any) -> None:
        self.running.set()
        self.may_end.wait(120)


def test_a_resume_beside_a_running_run_begins_no_other(tmp_path: Path) -> None:
    held = Held()
    trained: list[Any] = []
    thread = threading.Thread(
        target=lambda: trained.append(
            trainwright.train(SHORT, data=DATA, runs_dir=tmp_path, callbacks=[held], quiet=True)
        )
    )
    thread.start()
    try:
        assert held.running.wait(120)
        with pytest.raises(RunLockedError, match=r"of this computation is running: wait for it, or stop it"):
            trainwright.train(SHORT, data=DATA, runs_dir=tmp_path, resume=True)
    finally:
        held.may_end.set()
        thread.join(120)
    assert trained[0].status == "completed"
    assert len(trainwright.list_runs(tmp_path)) == 1
    assert trainwright.train(SHORT, data=DATA, runs_dir=tmp_path, resume=True).status == "completed"


def test_rows_in_memory_are_for_a_loaded_model(tmp_path: Path) -> None:
    trainwright.train(SHORT, data=DATA, runs_dir=tmp_path)
    with pytest.raises(
        InputError, match=r"reads a file, not a list; for rows in memory: trainwright\.load\(run\)"
    ):
        trainwright.predict("last", [[1.0, 2.0]], runs_dir=tmp_path)  # type: ignore[arg-type]


def test_a_batch_that_is_larger_than_the_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"training\.batch_size is 500, but there are only \d+ training rows"):
        trainwright.train(SHORT, {"training.batch_size": 500}, data=DATA, runs_dir=tmp_path)


def test_a_checked_config_is_shown_in_one_line() -> None:
    """As the last line of a cell of a notebook."""
    shown = repr(trainwright.check({"data": {"type": "iris"}, "model": {"type": "mlp"}}))
    assert shown == "<Resolved run: mlp on iris>"


def test_create_refuses_credentials_in_a_url_before_it_writes(tmp_path: Path) -> None:
    data = {"path": "s3://key:secret@bucket/d.csv", "target": "y"}
    with pytest.raises(DataError, match="must not contain credentials"):
        trainwright.create({"data": data, "model": {"type": "mlp"}}, runs_dir=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_paths_have_no_dots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    config = {"data": {"type": "iris"}, "model": {"type": "mlp"}}
    run = trainwright.create(config, runs_dir="../runs_own")
    assert run.path.parent.parent == tmp_path / "runs_own"
    (tmp_path / "link").symlink_to(tmp_path / "other")
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "down").symlink_to(tmp_path / "deep" / "er")
    through = trainwright.create(config, runs_dir=tmp_path / "down" / ".." / "runs_deep")
    assert (tmp_path / "deep" / "runs_deep" / "run" / through.id / "config.yaml").is_file()
    assert (through.path / "config.yaml").is_file()
