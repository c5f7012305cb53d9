"""The numeric environment of an attempt: where it may change, what that costs, and where it is refused."""

import json
import logging
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL, Crash, CrashAt, SignalAt, crashed, preempted
from trainwright.config import load
from trainwright.errors import ChangedInputsError, InputError
from trainwright.records.listing import all_runs
from trainwright.records.manifest import Environment
from trainwright.records.run_dir import RunDir
from trainwright.runs import semantics
from trainwright.runs.catalog import Catalog
from trainwright.runs.environment import environment_inputs
from trainwright.runs.run import Run
from trainwright.runs.session import Session
from warm_commands import command

OURS = Path(trainwright.__file__).parent
NEUTRAL = {
    **SMALL,
    "model": {"type": "catboost", "max_depth": 3, "bootstrap_type": "Bernoulli", "subsample": 0.6},
    "training": {"max_steps": 30, "threads": 1, "determinism": "bitwise"},
}


def changes(run: Run) -> list[tuple[str, str, Any, Any]]:
    return [
        (one["input"], one["what"], one["before"], one["now"])
        for change in run.manifest["changes"]
        for one in change["differences"]
    ]


def threads_by_attempt(run: Run) -> list[int | None]:
    records = RunDir(run.path).attempts()
    return [record.environment.threads if record.environment else None for record in records]


def test_other_threads_are_recorded_and_lower_the_tier(tmp_path: Path) -> None:
    cut = preempted(tmp_path)
    again = trainwright.resume(cut, ["training.threads=2"])
    assert changes(again) == [("environment", "threads", 1, 2)]
    assert again.result["determinism"] == {
        "tier": "statistical",
        "reason": "the numeric environment changed before a resume: environment: threads was 1, is 2",
    }
    assert threads_by_attempt(again) == [1, 2]


def test_a_resume_stays_where_the_attempt_before_was(tmp_path: Path) -> None:
    cut = preempted(tmp_path, at=5)
    says = (
        r"training\.max_steps: a resumed run keeps its config; only where .*; finish this run .*, then resume"
    )
    with pytest.raises(InputError, match=says) as refused:
        trainwright.resume(cut, {"training.max_steps": 31})
    assert "data.workers" not in str(refused.value)
    trainwright.resume(cut, {"training.threads": 2}, callbacks=[SignalAt(15)])
    again = trainwright.resume(cut)
    assert threads_by_attempt(again) == [1, 2, 2]
    assert len(again.manifest["changes"]) == 1


def test_a_killed_attempt_keeps_its_environment_where_the_next_one_has_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of an attempt has it from the attempt's end on; here, there is no end."""
    with monkeypatch.context() as patch:
        patch.setattr(Session, "close", lambda *_: None)
        cut = crashed(tmp_path)
    assert threads_by_attempt(cut) == [None]
    with monkeypatch.context() as patch:
        patch.setattr(Session, "close", lambda *_: None)
        with pytest.raises(Crash):
            trainwright.resume(cut, {"training.threads": 2}, callbacks=[CrashAt(15)])
    assert threads_by_attempt(cut) == [1, 2]
    again = trainwright.resume(cut, {"training.threads": 1})
    assert threads_by_attempt(again) == [1, 2, 1]
    assert RunDir(again.path).attempts()[0].status is None


def test_an_edited_config_moves_the_run(tmp_path: Path) -> None:
    cut = preempted(tmp_path)
    path = cut.path / "config.yaml"
    path.write_text(path.read_text().replace("threads: 1", "threads: 2"))
    assert threads_by_attempt(trainwright.resume(cut)) == [1, 2]


def test_train_with_resume_takes_the_threads_that_are_set(tmp_path: Path) -> None:
    cut = preempted(tmp_path)
    again = trainwright.train(SMALL, {"training.threads": 2}, runs_dir=tmp_path, resume=True)
    assert again.path == cut.path
    assert threads_by_attempt(again) == [1, 2]
    other = preempted(tmp_path)
    kept = trainwright.train(SMALL, {"training.threads": None}, runs_dir=tmp_path, resume=True)
    assert kept.path == other.path
    assert threads_by_attempt(kept) == [1, 1]


def test_other_threads_are_refused_where_bits_were_demanded(tmp_path: Path) -> None:
    cut = preempted(tmp_path, {"training.determinism": "bitwise"})
    with pytest.raises(
        ChangedInputsError, match=r"threads was 1, is 2\ntraining\.determinism: bitwise allows no"
    ):
        trainwright.resume(cut, ["training.threads=2"])
    assert trainwright.resume(cut).result["determinism"]["tier"] == "bitwise"


def test_what_the_framework_declares_neutral_costs_nothing(tmp_path: Path) -> None:
    pytest.importorskip("catboost")
    whole = trainwright.train(NEUTRAL, runs_dir=tmp_path / "whole")
    cut = trainwright.train(NEUTRAL, runs_dir=tmp_path, callbacks=[SignalAt(13)])
    again = trainwright.resume(cut, ["training.threads=2"])
    assert changes(again) == [("environment", "threads", 1, 2)]
    assert again.result["determinism"]["tier"] == "bitwise"
    assert again.digest == whole.digest


def test_more_threads_than_processors_are_kept_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cut = preempted(tmp_path, {"training.threads": 2})
    monkeypatch.setattr("trainwright.runs.processes.placement.available_threads", lambda _: 1)
    with caplog.at_level(logging.INFO, "trainwright"):
        again = trainwright.resume(cut)
    assert "keeps the 2 threads that it began with" in caplog.text
    assert changes(again) == []


def test_an_instruction_set_that_lacks_something_is_another_environment() -> None:
    here = environment_inputs(1, {"torch": "2.13"})
    assert here.instructions is None or all(" " not in flag for flag in here.instructions)
    before = here.model_copy(update={"instructions": ["avx2", "avx512f"]})
    now = here.model_copy(update={"instructions": ["avx2"]})
    assert [str(one) for one in before.differences(now)] == [
        "environment: instructions was avx2 avx512f, is avx2"
    ]
    bare = Environment(flags=here.flags, imported=here.imported)
    assert bare.differences(here) == [], "nothing else was recorded"


def test_trainwright_itself_is_no_package_of_the_environment() -> None:
    assert "trainwright" not in environment_inputs(1, {}).imported


# -- our own code


def copy_of_ours(tmp_path: Path) -> Path:
    """Return a copy of the package in which a docstring is edited, and a folder is new."""
    copy = tmp_path / "copy" / "trainwright"
    shutil.copytree(OURS, copy)  # with what is compiled, which saves seconds
    for name in ("order.py", "frameworks/torch/step.py", "engine/loop.py"):
        text = (copy / name).read_text(encoding="utf-8")
        (copy / name).write_text(text.replace('"""', '"""Edited. ', 1), encoding="utf-8")
    (copy / "new_folder").mkdir()
    (copy / "new_folder" / "__init__.py").write_text("NEW = True\n", encoding="utf-8")
    return copy


@pytest.mark.slow
def test_an_edited_copy_of_our_package_resumes_unless_its_semantics_differ(tmp_path: Path) -> None:
    text = load(SMALL, adapters=Catalog()).dump()
    (tmp_path / "c.yaml").write_text(text, encoding="utf-8")
    assert command("train", "c.yaml", folder=tmp_path, killed=("SIGTERM", "step", 12)).returncode == 75
    (run,) = all_runs(tmp_path / "runs")
    before = run.require_manifest()
    copy = copy_of_ours(tmp_path)

    def spawn(*words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of the copy."""
        environment = os.environ | {"PYTHONPATH": str(copy.parent)}
        words = (sys.executable, "-m", "trainwright", *words)
        return subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False
        )

    table = copy / "runs/semantics.py"
    unchanged = table.read_text(encoding="utf-8")
    table.write_text(re.sub(r'("rules": Part\(\s*)1', r"\g<1>2", unchanged), encoding="utf-8")
    refused = spawn("resume", "last")
    assert refused.returncode == 2, refused.stderr
    assert semantics.PARTS["rules"].decides in refused.stderr
    assert f"use version {before.code.trainwright}" in refused.stderr

    table.write_text(unchanged, encoding="utf-8")
    resumed = spawn("resume", "last", "--json")
    assert resumed.returncode == 0, resumed.stderr
    after = run.require_manifest()
    assert after.changes == []
    assert json.loads(resumed.stdout)["determinism"]["tier"] == "bitwise"
