"""`create` and `work`: what a launcher sees of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from commandline import Command, write_run

import trainwright
from small_runs import SMALL
from trainwright import api
from trainwright.runs.run import Run

TINY = SMALL | {"training": SMALL["training"] | {"max_steps": 3}}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(TINY))
    return path


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make runs that have ended in some way; `work` finds each of them like that."""

    def work(name: str, **_: Any) -> Run:
        if name.startswith("broken"):
            raise RuntimeError("code of the user's")
        return trainwright.get(tmp_path / "runs" / "digits" / name)

    monkeypatch.setattr(api, "work", work)
    return lambda name, status: write_run(tmp_path / "runs", name, status=status)


def test_create_prints_what_work_takes_and_nothing_else(command: Command, tiny: Path, tmp_path: Path) -> None:
    done = command("create", tiny, "experiment.seed=9", "--runs-dir", tmp_path / "runs")
    (path,) = done.out.splitlines()
    assert (done.code, trainwright.get(path).status) == (0, "created")
    worked = command("work", path, "--json", "-q")
    (document,) = worked.json
    assert (worked.code, document["status"], document["steps"]) == (0, "completed", 3)
    assert trainwright.get(path).manifest["seed"] == 9


def test_create_in_a_store_prints_the_url(command: Command, tiny: Path, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    printed = command("create", tiny, "--runs-dir", url).out.strip()
    assert printed.startswith(f"{url}/small/")
    document = command("create", tiny, "--runs-dir", url, "--json").json
    assert document["url"] == f"{url}/small/{document['run_id']}"
    assert document["status"] == "created"


def test_create_reports_a_wrong_config(command: Command, tiny: Path) -> None:
    done = command("create", tiny, "training.epoch=3")
    assert (done.code, done.out) == (2, "")
    assert "training.epoch" in done.err


def test_a_run_that_fails_does_not_keep_the_next_from_being_trained(
    command: Command, tiny: Path, tmp_path: Path
) -> None:
    runs = [command("create", tiny, "--runs-dir", tmp_path / "runs").out.strip() for _ in range(2)]
    done = command("work", runs[0], "nowhere", runs[1], "-q", "--runs-dir", tmp_path / "runs")
    assert done.code == 2
    assert "trainwright: error: no run 'nowhere'" in done.err
    assert [trainwright.get(run).status for run in runs] == ["completed", "completed"]
    assert done.out.count("test_accuracy") == 2


def test_the_exit_code_is_that_of_the_first_run_that_was_not_done(command: Command, ended: Any) -> None:
    ended("one", "completed")
    ended("two", "failed")
    done = command("work", "one", "broken", "two", "nowhere", "one", "--json", "-q")
    assert done.code == 1
    first, broken, failed, missing, last = done.json
    assert first["status"] == last["status"] == "completed"
    assert broken["run"] == "broken"
    assert "RuntimeError: code of the user's" in broken["error"]["message"]
    assert failed["status"] == "failed"
    assert missing["error"]["exit_code"] == 2


@pytest.mark.parametrize(("status", "code"), [("preempted", 75), ("interrupted", 130)])
def test_after_a_signal_no_other_run_is_begun(status: str, code: int, command: Command, ended: Any) -> None:
    ended("one", status)
    ended("two", "completed")
    done = command("work", "one", "two", "--json", "-q")
    assert done.code == code
    assert [document["run_id"] for document in done.json] == ["one"]


def test_work_wants_a_run(command: Command) -> None:
    done = command("work")
    assert done.code == 2
    assert "Missing argument 'RUN...'" in done.err
