"""The list of all runs: what it says is what is there, whatever its cache says."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from trainwright.records.result import AttemptRecord, Result
from trainwright.records.run_dir import RunDir
from trainwright.storage import index
from trainwright.storage.index import FILE, summaries


def make_run(runs_dir: Path, status: str | None, *, accuracy: float = 0.5, age: float = 3600.0) -> RunDir:
    """A run that ended `age` seconds ago."""
    run = RunDir.create(runs_dir, "e", "experiment: {name: e}\n")
    run.write_attempt(AttemptRecord(attempt=1, status=status))
    if status is not None:
        result = Result(
            status=status, run_id=run.id, experiment="e", metrics={"val_accuracy": accuracy}, attempts=1
        )
        run.write(Result.FILE, result)
    make_older(run, age)
    return run


def make_older(run: RunDir, age: float) -> None:
    then = time.time() - age
    for path in run.path.rglob("*"):
        os.utime(path, (then, then))


def indexed(runs_dir: Path) -> list[str]:
    return list(json.loads((runs_dir / FILE).read_text().partition("\n")[2])["runs"])


def statuses(runs_dir: Path) -> dict[str, str]:
    return {summary["run_id"]: summary["status"] for summary in summaries(runs_dir)}


def test_a_list_from_the_index_is_the_list_without_it(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, status) for status in ("completed", "failed", "preempted", None)]
    without = summaries(tmp_path)
    assert (tmp_path / FILE).exists()
    assert summaries(tmp_path) == without
    (tmp_path / FILE).unlink()
    assert summaries(tmp_path) == without
    expected = ["completed", "failed", "preempted", "crashed"]
    assert {summary["run_id"]: summary["status"] for summary in without} == {
        run.id: status for run, status in zip(runs, expected, strict=True)
    }


def test_runs_that_ended_are_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        make_run(tmp_path, "completed")
    before = summaries(tmp_path)
    monkeypatch.setattr(RunDir, "result", None)
    assert summaries(tmp_path) == before


def test_a_run_that_goes_on_is_seen(tmp_path: Path) -> None:
    run = make_run(tmp_path, "preempted", accuracy=0.5)
    assert statuses(tmp_path) == {run.id: "preempted"}
    run.acquire()
    run.write_attempt(AttemptRecord(attempt=2))
    assert statuses(tmp_path) == {run.id: "running"}
    run.write_attempt(AttemptRecord(attempt=2, status="completed"))
    run.write(Result.FILE, Result(status="completed", metrics={"val_accuracy": 0.9}, attempts=2))
    run.release()
    (summary,) = summaries(tmp_path)
    assert (summary["status"], summary["metrics"]) == ("completed", {"val_accuracy": 0.9})


def test_a_run_that_is_deleted_or_made_is_seen(tmp_path: Path) -> None:
    first = make_run(tmp_path, "completed")
    assert list(statuses(tmp_path)) == [first.id]
    second = make_run(tmp_path, "completed")
    shutil.rmtree(first.path)
    assert list(statuses(tmp_path)) == [second.id]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 1}', '{"format": 1, "runs_dir": "elsewhere", "runs": {}}', "null"]
)
def test_a_damaged_index_costs_nothing_but_time(content: str, tmp_path: Path) -> None:
    run = make_run(tmp_path, "completed")
    (tmp_path / FILE).write_text(content)
    assert statuses(tmp_path) == {run.id: "completed"}
    assert indexed(tmp_path) == [f"e/{run.id}"]


def test_a_wrong_digit_in_the_index_is_not_believed(tmp_path: Path) -> None:
    make_run(tmp_path, "completed", accuracy=0.5)
    before = summaries(tmp_path)
    text = (tmp_path / FILE).read_text()
    (tmp_path / FILE).write_text(text.replace('"val_accuracy":0.5', '"val_accuracy":0.9'))
    assert (tmp_path / FILE).read_text() != text
    assert summaries(tmp_path) == before


def test_a_folder_that_cannot_be_written_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "completed")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(index, "write_atomically", refuse)
    assert statuses(tmp_path) == {run.id: "completed"}


def test_one_experiment_does_not_push_the_others_out_of_the_index(tmp_path: Path) -> None:
    run = make_run(tmp_path, "completed")
    summaries(tmp_path)
    assert summaries(tmp_path, "other") == []
    assert indexed(tmp_path) == [f"e/{run.id}"]
