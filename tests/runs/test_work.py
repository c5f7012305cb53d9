"""Runs that are created here and trained there: the attempt of a worker is that of `train`."""

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import trainwright
from s3_server import S3Server
from small_runs import SMALL, assert_same, preempted
from takeovers import check_race, race, two_processes
from trainwright.errors import ConfigError, DataError, InputError, RunLockedError
from trainwright.records.listing import all_runs
from trainwright.records.run_dir import RunDir
from trainwright.runs.reproduce import compare_bits
from trainwright.runs.run import Run
from trainwright.storage.copies import download_all
from trainwright.storage.lease import Lease
from trainwright.storage.remote import RemoteRun
from trainwright.storage.urls import open_store
from trainwright.testing.warm import WarmProcesses
from warm_commands import command

CSV = "a,b,target\n" + "".join(f"{i},{i % 3},{i % 2}\n" for i in range(40))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trainwright.train(SMALL, runs_dir=tmp_path_factory.mktemp("whole"))


def by_worker(config: Any, runs: Path | str) -> Run:
    return trainwright.work(trainwright.create(config, runs_dir=runs))


# -- the attempt


def test_create_and_work_are_train(whole: Run, tmp_path: Path) -> None:
    run = by_worker(SMALL, tmp_path)
    assert_same(run, whole)
    now, then = run.manifest, whole.manifest
    assert {key for key in now if now[key] != then[key]} <= {"run_id", "created"}
    assert (run.path / "config.yaml").read_bytes() == (whole.path / "config.yaml").read_bytes()
    assert sorted(path.name for path in run.path.iterdir()) == sorted(p.name for p in whole.path.iterdir())
    assert compare_bits(RunDir(whole.path), RunDir(run.path)).verdict == "identical"


def test_work_resumes_an_attempt_that_was_interrupted(whole: Run, tmp_path: Path) -> None:
    run = preempted(tmp_path)
    assert_same(trainwright.work(run), whole)
    assert [attempt.attempt for attempt in RunDir(run.path).attempts()] == [1, 2]


def test_what_has_ended_is_left_as_it_is(
    whole: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "trainwright")
    before = (whole.path / "result.json").read_bytes()
    assert trainwright.work(whole).status == "completed"
    assert "there is nothing left to do" in caplog.text
    assert f"trainwright resume {whole.id} training.epochs=..." in caplog.text
    assert (whole.path / "result.json").read_bytes() == before
    pruned = trainwright.train(SMALL, runs_dir=tmp_path, verdict=lambda *_: "prune")
    assert trainwright.work(pruned).status == "pruned", "only `resume` goes on against a decision"
    assert "is pruned: `trainwright resume` goes on with it" in caplog.text
    assert len(RunDir(pruned.path).attempts()) == 1


def test_train_resume_takes_a_run_that_waits(tmp_path: Path, whole: Run) -> None:
    waiting = trainwright.create(SMALL, runs_dir=tmp_path)
    run = trainwright.train(SMALL, runs_dir=tmp_path, resume=True)
    assert run.id == waiting.id
    assert_same(run, whole)


# -- a run that waits


@pytest.fixture
def waiting(tmp_path: Path) -> Run:
    return trainwright.create(SMALL, runs_dir=tmp_path)


def test_a_run_that_waits_is_listed_shown_and_reported(waiting: Run, tmp_path: Path) -> None:
    assert (waiting.status, waiting.result, waiting.manifest) == ("created", {}, {})
    assert [run["status"] for run in trainwright.api.summaries(tmp_path)] == ["created"]
    page = trainwright.report(waiting).read_text()
    assert "created" in page
    assert "is missing" not in page, "nothing is missing: it waits for its first attempt"
    assert f"trainwright work {waiting.id}" in page


def test_a_run_that_waits_has_nothing_to_stop_or_repeat(waiting: Run) -> None:
    with pytest.raises(InputError, match="is created, not running: there is nothing to stop"):
        trainwright.stop(waiting)
    with pytest.raises(InputError, match="is created; only a completed"):
        trainwright.reproduce(waiting)
    assert waiting.status == "created"


def test_only_who_asks_for_it_deletes_a_run_that_waits(waiting: Run, tmp_path: Path) -> None:
    assert trainwright.clean(tmp_path, dry_run=False) == []
    assert [run.id for run in trainwright.clean(tmp_path, statuses=["created"], dry_run=False)] == [
        waiting.id
    ]
    assert not waiting.path.exists()


def test_a_wrong_config_makes_no_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no data section"):
        trainwright.create({"model": "mlp"}, runs_dir=tmp_path)
    with pytest.raises(ConfigError, match="hidden"):
        trainwright.create(SMALL, {"model.params.hiden": 3}, runs_dir=tmp_path)
    assert list(all_runs(tmp_path)) == []


def test_create_takes_no_objects(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="model"):
        trainwright.create(SMALL, runs_dir=tmp_path, model=object())  # type: ignore[call-arg]


@pytest.mark.slow
def test_create_imports_no_framework_and_no_code_of_the_users(tmp_path: Path) -> None:
    """Who submits a run needs neither; nor the data."""
    (tmp_path / "config.json").write_text(
        json.dumps(SMALL | {"model": "mine:Net", "data": {"type": "csv", "path": "no.csv", "target": "y"}})
    )
    (tmp_path / "mine.py").write_text("raise SystemExit('imported')")
    script = (
        "import sys, trainwright; print(trainwright.create('config.json').status);"
        "print(*({'torch', 'keras', 'sklearn', 'pandas', 'xgboost', 'mine'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, check=False, capture_output=True, text=True
    )
    assert done.stdout.split() == ["created"], done.stderr


# -- a first attempt that fails


def test_a_created_run_whose_first_attempt_fails_stays_with_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = SMALL | {"data": {"type": "csv", "path": "rows.csv", "target": "target"}}
    run = trainwright.create(config)
    with pytest.raises(DataError, match=r"rows\.csv"):
        trainwright.work(run)
    assert run.status == "failed"
    (attempt,) = RunDir(run.path).attempts()
    assert "rows.csv" in str(attempt.error)
    Path("rows.csv").write_text(CSV)
    assert trainwright.work(run).status == "completed"
    assert len(RunDir(run.path).attempts()) == 2


def test_a_run_of_train_whose_first_attempt_fails_is_still_removed(tmp_path: Path) -> None:
    config = SMALL | {"data": {"type": "csv", "path": "rows.csv", "target": "target"}}
    with pytest.raises(DataError, match=r"rows\.csv: there is no such file"):
        trainwright.train(config, runs_dir=tmp_path / "runs")
    assert list(all_runs(tmp_path / "runs")) == []


# -- elsewhere


def test_paths_start_where_the_run_was_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    Path("rows.csv").write_text(CSV)
    run = trainwright.create(SMALL | {"data": {"type": "csv", "path": "rows.csv", "target": "target"}})
    monkeypatch.chdir(tmp_path)
    assert trainwright.work(run.path).status == "completed"
    assert RunDir(run.path).attempts()[0].working_directory == str(tmp_path / "project")
    assert Path.cwd() == tmp_path


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_a_run_in_a_store_is_trained_elsewhere_with_nothing_but_its_url(
    kind: str, whole: Run, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue("bucket") if kind == "s3" else (tmp_path / "store").as_uri()
    created = trainwright.create(SMALL, runs_dir=url)
    named = f"{url}/{created.experiment}/{created.id}"
    assert created.url == named
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(socket, "gethostname", lambda: "another-machine")
    assert [run.status for run in trainwright.list_runs(url)] == ["created"]
    run = trainwright.work(named)
    assert run.path != created.path
    assert_same(run, whole)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "third"))
    assert_same(trainwright.get("last", runs_dir=url), whole)
    assert [one.id for one in trainwright.clean(url, statuses=["completed"], dry_run=False)] == [run.id]


def test_a_store_that_cannot_be_used_gets_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainwright.stores.local import LocalStore

    monkeypatch.setattr(LocalStore, "put_if_absent", lambda *_: True)
    url = (tmp_path / "store").as_uri()
    with pytest.raises(InputError, match="lets a second conditional put win"):
        trainwright.create(SMALL, runs_dir=url)
    assert trainwright.list_runs(url) == []
    assert [key for key in open_store(url).list() if "small" in key] == []


# -- two workers


def test_a_run_that_another_process_trains_is_refused(waiting: Run) -> None:
    other = RunDir(waiting.path)
    other.acquire()
    with pytest.raises(RunLockedError, match="owned by another process"):
        trainwright.work(waiting)
    other.release()
    assert waiting.status == "created"


def test_of_two_workers_elsewhere_one_gets_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have read that it waits; the log decides."""
    url = (tmp_path / "store").as_uri()
    path = trainwright.create(SMALL, runs_dir=url).path
    remotes = [RemoteRun(path, open_store(url)) for _ in range(2)]
    first, second = (Lease(remote.log, 1, 1, remote) for remote in remotes)
    first.take((), ())
    with pytest.raises(RunLockedError, match="another process has just taken the run"):
        second.take((), ())
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "cache"))
    assert [one.status for one in trainwright.list_runs(url)] == ["running"]
    first.release()


# -- killed, and in a race


@pytest.mark.slow
def test_after_a_kill_in_work_another_work_goes_on(whole: Run, tmp_path: Path) -> None:
    run = trainwright.create(SMALL, runs_dir=tmp_path / "runs")
    killed = command("work", run.path, folder=tmp_path, killed=("SIGKILL", "step", 13))
    assert (killed.returncode, run.status) == (-signal.SIGKILL, "crashed")
    stopped = command("work", run.path, "-q", folder=tmp_path, killed=("SIGTERM", "step", 9))
    assert (stopped.returncode, run.status) == (75, "preempted")
    assert command("work", run.path, "-q", folder=tmp_path).returncode == 0
    assert_same(run, whole)
    assert len(RunDir(run.path).attempts()) == 3


@pytest.fixture(scope="module")
def both(s3: S3Server) -> list[WarmProcesses]:
    return two_processes(s3.environment())


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("kind", ["local", "s3"])
def test_of_two_workers_one_makes_the_first_attempt(
    kind: str,
    number: int,
    whole: Run,
    both: list[WarmProcesses],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    url = request.getfixturevalue("bucket") if kind == "s3" else str(tmp_path / "runs")
    run = trainwright.create(SMALL, runs_dir=url)
    caches = [tmp_path / "cache 0", tmp_path / "cache 1"]
    done = race(both, run.url or str(run.path), tmp_path / "race", caches, "--work")
    download_all(RunDir(run.path))
    check_race(done, trainwright.get("last", runs_dir=url), whole)
    assert_same(trainwright.get("last", runs_dir=url), whole)
