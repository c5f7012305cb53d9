"""The user's code may fork: what a child does, and how it ends, is nothing to the run of its parent."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import trainwright
from small_runs import SMALL
from trainwright.callbacks.base import Callback
from trainwright.records.journal import read

ENDS = {"raises": 1, "exits": 3, "trains": 1}  # how a child may leave the user's code; its exit code


def leave(how: str) -> None:
    """Fork; the child leaves in this way, and the parent learns its exit code."""
    child = os.fork()
    if child == 0:
        if how == "raises":
            raise RuntimeError("the child's own error")
        if how == "exits":
            sys.exit(3)
        return
    Forking.codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


class Forking(torch.nn.Module):
    codes: list[int] = []  # noqa: RUF012

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)
        self.how = how
        self.owner = os.getpid()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how and self.training and not Forking.codes and os.getpid() == self.owner:
            leave(self.how)
        result: torch.Tensor = self.layer(x)
        return result


def trained(folder: Path, **objects: Any) -> trainwright.Run:
    return trainwright.train(
        {**SMALL, "data": "iris"}, {"training.max_steps": 12}, runs_dir=folder, **objects
    )


@pytest.mark.parametrize("how", ENDS)
def test_a_child_that_is_forked_in_a_step(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Forking, "codes", [])
    torch.manual_seed(0)
    quiet = Forking()
    expected = trained(tmp_path / "quiet", model=quiet)
    torch.manual_seed(0)
    run = trained(tmp_path / "forking", model=Forking(how))
    assert Forking.codes == [ENDS[how]]
    assert (run.status, run.digest) == ("completed", expected.digest)
    assert ("the child's own error" in capfd.readouterr().err) == (how == "raises")
    kinds = [line["kind"] for line in read(run.path / "journal")]
    assert kinds == [line["kind"] for line in read(expected.path / "journal")], "a child wrote, too"


class ForkAt(Callback):
    """Forks while a checkpoint is saved; the child trains."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_checkpoint(self, step: int) -> None:
        if step == self.step:
            leave("trains")


@pytest.mark.parametrize("every", [None, 5], ids=["written where it waits", "written in a thread"])
def test_a_child_that_is_forked_in_the_last_save(
    every: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Forking, "codes", [])
    expected = trained(tmp_path / "quiet")
    config = {**SMALL, "data": "iris", "checkpoint": {"every_n_steps": every, "every_n_minutes": None}}
    run = trainwright.train(
        config, {"training.max_steps": 12}, runs_dir=tmp_path / "forking", callbacks=[ForkAt(12)]
    )
    assert Forking.codes == [1], "it ended at once, and wrote nothing"
    assert (run.status, run.digest) == ("completed", expected.digest)


def test_a_child_that_is_forked_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Forking, "codes", [])

    def build(self: Any) -> None:
        torch.nn.Module.__init__(self)
        self.layer = torch.nn.Linear(4, 3)
        if not Forking.codes:
            leave("raises")

    module = type("Early", (torch.nn.Module,), {"__init__": build, "forward": lambda self, x: self.layer(x)})
    module.__module__ = "forking_models"
    monkeypatch.setitem(sys.modules, "forking_models", type(sys)("forking_models"))
    sys.modules["forking_models"].Early = module  # type: ignore[attr-defined]
    run = trainwright.train(
        {**SMALL, "data": "iris", "model": {"type": "forking_models:Early"}},
        {"training.max_steps": 3},
        runs_dir=tmp_path,
    )
    assert Forking.codes == [1]
    assert run.status == "completed"
    assert run.path.is_dir()
