"""Run directories: one owner, found by path, id, prefix or `last`."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trainwright.errors import InputError, RunLockedError, RunNotFoundError
from trainwright.records.listing import find_run, has_model
from trainwright.records.manifest import Manifest, Parent
from trainwright.records.run_dir import RunDir, make_id


@pytest.fixture
def runs(tmp_path: Path) -> list[RunDir]:
    found = []
    for name in ("20260101-000000-aaaaaa", "20260102-000000-bbbbbb", "20260102-000000-bbcccc"):
        run = RunDir(tmp_path / "exp" / name)
        run.path.mkdir(parents=True)
        run.config_file.write_text("")
        found.append(run)
    return found


def test_found_by_path_id_prefix_and_last(runs: list[RunDir], tmp_path: Path) -> None:
    assert find_run(str(runs[0].path), tmp_path).id == runs[0].id
    assert find_run(runs[1].id, tmp_path).id == runs[1].id
    assert find_run("20260101", tmp_path).id == runs[0].id
    os.utime(runs[2].config_file, (0, 0))  # a working copy has the times of its downloads
    assert find_run("last", tmp_path).id == runs[2].id


def test_not_found_says_what_there_is(runs: list[RunDir], tmp_path: Path) -> None:
    with pytest.raises(RunNotFoundError, match=f"of 2 run ids: {runs[2].id}, {runs[1].id}; give"):
        find_run("20260102", tmp_path)
    with pytest.raises(RunNotFoundError, match=f"the newest is {runs[2].id}"):
        find_run("nothing", tmp_path)
    experiment = runs[2].path.parent.name
    with pytest.raises(RunNotFoundError, match=f"'{experiment}' is an experiment, .* run is {runs[2].id}$"):
        find_run(experiment, tmp_path)
    with pytest.raises(RunNotFoundError, match="holds no runs"):
        find_run("last", tmp_path / "empty")


def test_runs_of_one_second_are_in_the_order_of_their_time() -> None:
    ids = [make_id()[:19] for _ in range(3000)]
    assert ids == sorted(ids)
    assert len(set(ids)) > 1


def test_two_runs_never_share_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = iter(["20260101-000000-00000000", "20260101-000000-00000000", "20260101-000000-00100000"])
    monkeypatch.setattr("trainwright.records.run_dir.make_id", lambda: next(ids))
    first = RunDir.create(tmp_path, "e", "model: mlp\n")
    (first.path / "result.json").write_text("kept")
    second = RunDir.create(tmp_path, "e", "model: mlp\n")
    assert second.id == "20260101-000000-00100000"
    assert (first.path / "result.json").read_text() == "kept"


def test_ids_are_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    before = make_id()
    monkeypatch.setenv("TZ", "America/Los_Angeles")
    time.tzset()
    try:
        assert before[:15] <= make_id()[:15]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_another_process_is_refused_and_told_who_owns_the_run(runs: list[RunDir]) -> None:
    runs[0].acquire()
    code = (
        "import sys; from pathlib import Path; from trainwright.records.run_dir import RunDir; "
        "RunDir(Path(sys.argv[1])).acquire()"
    )
    other = subprocess.run(
        [sys.executable, "-c", code, str(runs[0].path)], capture_output=True, text=True, check=False
    )
    assert other.returncode == 1
    assert "is owned by another process (pid " in other.stderr
    assert runs[0].status() == "running"
    runs[0].release()
    assert subprocess.run([sys.executable, "-c", code, str(runs[0].path)], check=False).returncode == 0


def test_in_one_process_too(runs: list[RunDir]) -> None:
    runs[0].acquire()
    with pytest.raises(RunLockedError):
        RunDir(runs[0].path).acquire()
    runs[0].release()


def test_a_place_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--runs-dir"):
        RunDir.create(tmp_path / "file", "exp", "")


def test_last_is_the_newest_run_that_has_what_is_asked_for(runs: list[RunDir], tmp_path: Path) -> None:
    assert find_run("last", tmp_path, fits=has_model).id == runs[2].id  # none has: the error names the newest
    checkpoint = runs[1].path / "checkpoints" / "step-000000001-a0001"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    assert find_run("last", tmp_path, fits=has_model).id == runs[1].id
    assert find_run("last", tmp_path).id == runs[2].id
    assert find_run(runs[2].id, tmp_path, fits=has_model).id == runs[2].id
    assert find_run("last", tmp_path, before=runs[1], fits=has_model).id == runs[0].id


def test_last_passes_over_what_a_study_made(runs: list[RunDir], tmp_path: Path) -> None:
    def belong(run: RunDir, relation: str) -> None:
        parent = Parent(run_id="20260101-000000-aaaa", relation=relation)
        run.write(Manifest.FILE, Manifest(run_id=run.id, experiment="exp", parent=parent))

    belong(runs[2], "tune")
    assert find_run("last", tmp_path).id == runs[1].id
    belong(runs[1], "cross_validation")
    assert find_run("last", tmp_path).id == runs[0].id
    for relation in ("fork", "continue", "reproduce"):
        belong(runs[1], relation)
        assert find_run("last", tmp_path).id == runs[1].id
    for run in runs:
        belong(run, "benchmark")
    assert find_run("last", tmp_path).id == runs[2].id  # nothing else is there
