"""What verbs show while they train, from Python, and how Ctrl-C ends them."""

from __future__ import annotations

import io
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright
from trainwright.callbacks.base import Callback
from trainwright.callbacks.progress import PlainProgress, Progress, progress

X = np.random.default_rng(0).normal(size=(80, 3))
DATA = (X, (X[:, 0] > 0).astype(int))
SHORT: dict[str, Any] = {"model": "mlp", "training": {"epochs": 4, "batch_size": 16, "threads": 1}}
QUICK: dict[str, Any] = {"model": "logistic_regression"}


class CtrlC(Callback):
    """Press Ctrl-C at the first step that is logged, or at the first one of the n-th run."""

    def __init__(self, run: int = 1) -> None:
        self.left = run

    def on_start(self, run: Any) -> None:
        self.left -= 1

    def on_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.left == 0:
            self.left = -1
            os.kill(os.getpid(), signal.SIGINT)


def named_of_ipykernel() -> io.StringIO:
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    assert isinstance(stream, io.StringIO)
    return stream


def test_train_shows_lines_unless_it_is_quiet(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trainwright.train(SHORT, data=DATA, runs_dir=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"trainwright event=start step=0/16 run={run.id}")
    assert lines[-1].startswith("trainwright event=end step=16/16 status=completed")
    trainwright.train(SHORT, data=DATA, runs_dir=tmp_path, quiet=True)
    assert capsys.readouterr().out == ""


def test_a_progress_of_the_users_is_the_only_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    trainwright.train(SHORT, data=DATA, runs_dir=tmp_path, callbacks=[PlainProgress(stream)])
    assert "event=start" in stream.getvalue()
    assert capsys.readouterr().out == ""


def test_the_other_verbs_show_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = trainwright.train(SHORT, data=DATA, runs_dir=tmp_path, quiet=True)
    trainwright.resume(run, {"training.epochs": 5}, data=DATA)
    assert "event=end" in capsys.readouterr().out
    trainwright.fork(run, {"training.epochs": 6}, data=DATA, quiet=True)
    assert capsys.readouterr().out == ""
    trainwright.reproduce(run, data=DATA)
    assert "event=end" in capsys.readouterr().out


def test_studies_show_a_line_for_each_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainwright.cross_validate(QUICK, data=DATA, folds=2, runs_dir=tmp_path)
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()] == [
        ["trainwright", "event=run", "fold=0"],
        ["trainwright", "event=run", "fold=1"],
    ]
    trainwright.benchmark(QUICK, data=DATA, models=["logistic_regression"], runs_dir=tmp_path)
    assert capsys.readouterr().out.count("event=run") == 1
    trainwright.cross_validate(QUICK, data=DATA, folds=2, runs_dir=tmp_path, reuse=False, quiet=True)
    seen: list[Mapping[str, Any]] = []
    trainwright.cross_validate(QUICK, data=DATA, folds=2, runs_dir=tmp_path, watch=seen.append)
    assert len(seen) == 2
    assert capsys.readouterr().out == ""


def test_in_a_notebook_it_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = named_of_ipykernel()
    monkeypatch.setattr(sys, "stdout", stream)
    run = trainwright.train(SHORT, {"training.epochs": 60}, data=DATA, runs_dir=tmp_path)
    first, bar, rest = stream.getvalue().split("\n")
    assert first == f"run: run {run.id}"
    assert rest == ""
    drawn = bar.split("\r")
    assert len(drawn) < 60
    assert drawn[-1].startswith("█" * 30 + "  240/240  loss ")
    assert "val_loss" in drawn[-1]


@pytest.mark.parametrize("is_closed", [False, True])
def test_progress_travels_whatever_its_stream_is(is_closed: bool) -> None:
    for make in (io.StringIO, named_of_ipykernel):
        stream = make()
        shown = PlainProgress(stream)
        if is_closed:
            stream.close()
        assert isinstance(pickle.loads(pickle.dumps(shown)), Progress)
        assert isinstance(progress(stream), Progress)
    for standard in (sys.stdout, sys.stderr):
        assert pickle.loads(pickle.dumps(PlainProgress(standard)))._shown_on is standard


def test_without_a_standard_output_nothing_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert trainwright.train(SHORT, data=DATA, runs_dir=tmp_path).status == "completed"
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    assert trainwright.train(SHORT, data=DATA, runs_dir=tmp_path).status == "completed"


def test_ctrl_c_ends_a_loop_over_seeds_after_the_commit(tmp_path: Path) -> None:
    begun = []

    def loop() -> None:
        for seed in range(3):
            begun.append(seed)
            callbacks = [CtrlC()] if seed == 1 else ()
            trainwright.train(
                SHORT, {"experiment.seed": seed}, data=DATA, runs_dir=tmp_path, callbacks=callbacks
            )

    with pytest.raises(KeyboardInterrupt, match=r"has saved its state: trainwright\.resume\(") as raised:
        loop()
    assert begun == [0, 1]
    assert isinstance(raised.value, trainwright.Interrupted)
    run = raised.value.run
    assert run.status == "interrupted"
    with pytest.raises(trainwright.Interrupted):
        trainwright.resume(run, data=DATA, callbacks=[CtrlC()])
    assert trainwright.resume(run, data=DATA).status == "completed"


def test_ctrl_c_in_a_function_that_trains_ends_its_study(tmp_path: Path) -> None:
    pressed = CtrlC(2)

    def objective(trial: Any) -> float:
        seed = trial.suggest_int("seed", 0, 9)
        run = trainwright.train(
            SHORT, {"experiment.seed": seed}, data=DATA, runs_dir=tmp_path, callbacks=[pressed], quiet=True
        )
        return float(run.metrics["val_loss"])

    with pytest.raises(trainwright.Interrupted) as raised:
        trainwright.tune(objective, trials=3, runs_dir=tmp_path)
    assert raised.value.run.status == "interrupted"
    study = trainwright.tune(objective, trials=3, runs_dir=tmp_path, resume=True)
    assert (study.id, study.status) == (raised.value.run.id, "completed")


def test_ctrl_c_ends_a_study(tmp_path: Path) -> None:
    with pytest.raises(trainwright.Interrupted, match="resume=True") as raised:
        trainwright.cross_validate(SHORT, data=DATA, folds=3, runs_dir=tmp_path, callbacks=[CtrlC(2)])
    assert raised.value.run.status == "interrupted"
    study = trainwright.cross_validate(SHORT, data=DATA, folds=3, runs_dir=tmp_path, resume=True)
    assert (study.id, study.status) == (raised.value.run.id, "completed")
    space = {"training.learning_rate": {"low": 1e-3, "high": 1e-2}}
    with pytest.raises(trainwright.Interrupted) as raised:
        trainwright.tune(SHORT, space=space, trials=3, data=DATA, runs_dir=tmp_path, callbacks=[CtrlC(2)])
    assert raised.value.run.status == "interrupted"


_SLOW = """
import os, sys, time
import torch

def make() -> torch.nn.Module:
    if not os.path.exists("fast"):
        print("building", flush=True)
        time.sleep(60)
    return torch.nn.Linear(1, 2)
"""
_SCRIPT = """
import pathlib
import trainwright

def interrupted(verb, *args, **kwargs):
    try:
        verb(*args, quiet=True, **kwargs)
    except trainwright.Interrupted as error:
        assert isinstance(error, KeyboardInterrupt)
        print(verb.__name__, error.run.status if error.run else None, flush=True)
        return error.run

config = {"data": {"path": "d.csv", "target": "y"}, "model": {"type": "slow:make"}, "training": {"max_steps": 1}}
run = interrupted(trainwright.train, config)
pathlib.Path("fast").touch()
run = trainwright.resume(run, quiet=True)
print(run.status, flush=True)
pathlib.Path("fast").unlink()
interrupted(trainwright.reproduce, run)
interrupted(trainwright.tune, config, space={"training.learning_rate": [0.1, 0.2]}, trials=2)
"""


def test_ctrl_c_before_the_first_step_is_an_interrupt_too(tmp_path: Path) -> None:
    """A real SIGINT while the model is built; each verb raises `Interrupted`, with the run if there is one."""
    (tmp_path / "slow.py").write_text(_SLOW)
    (tmp_path / "script.py").write_text(_SCRIPT)
    rows = [f"{at},{at % 3},{at % 2}" for at in range(40)]
    (tmp_path / "d.csv").write_text("\n".join(["a,b,y", *rows, ""]))
    process = subprocess.Popen(
        [sys.executable, "script.py"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if line == "building\n":
            process.send_signal(signal.SIGINT)
        else:
            lines.append(line.strip())
    assert process.wait() == 0, process.stderr.read() if process.stderr else ""
    assert lines == ["train interrupted", "completed", "reproduce interrupted", "tune interrupted"]
