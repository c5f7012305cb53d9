"""Two attempts of one run: one of them writes, the other finds out, ends, and has harmed nothing."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import trainwright
from s3_server import S3Server
from small_runs import SMALL, assert_same, crashed
from takeovers import check_race, race, two_processes
from trainwright.config import load
from trainwright.records.listing import all_runs, runs_folder
from trainwright.runs.catalog import Catalog
from trainwright.runs.run import Run
from trainwright.storage import heartbeats
from trainwright.storage.copies import download_all
from trainwright.storage.urls import open_store
from trainwright.testing.warm import WarmProcess, WarmProcesses

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trainwright.train(SMALL, runs_dir=tmp_path_factory.mktemp("whole"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(load(SMALL, adapters=Catalog()).dump())
    return path


@pytest.fixture(scope="module")
def both(s3: S3Server) -> list[WarmProcesses]:
    return two_processes(s3.environment())


def content(folder: Path) -> dict[str, bytes]:
    """What a folder holds, without what is the zombie's own: its segment of the journal, and its lock."""
    names = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith("journal/0001.")}


@contextmanager
def stopped(processes: WarmProcesses, config: Path, runs_dir: str, cache: Path) -> Iterator[WarmProcess]:
    """A process that trains and has stopped itself after step 13."""
    words = ["SIGSTOP", "13", str(config), runs_dir, str(cache)]
    with processes.started(*words, folder=config.parent) as process:
        process.until_stopped()
        yield process


def continued(zombie: WarmProcess) -> None:
    """Let it go on; it must find out that it has lost the run, and say so."""
    zombie.send_signal(signal.SIGCONT)
    ended = zombie.end()
    assert ended.returncode == 2, ended.stderr
    assert "attempt 2 has taken the run over" in ended.stderr
    assert "attempt 1 has lost it and writes nothing more" in ended.stderr


def test_a_zombie_on_the_local_disk_commits_nothing(
    config: Path, whole: Run, both: list[WarmProcesses], tmp_path: Path
) -> None:
    """Where `flock` does not reach, as on some network file systems, the log decides."""
    runs = tmp_path / "runs"
    with stopped(both[1], config, str(runs), tmp_path / "cache") as zombie:
        (run,) = all_runs(runs)
        (run.path / "lock").unlink()
        resumed = trainwright.resume(run.path)
        assert_same(resumed, whole)
        before = content(run.path)
        continued(zombie)
    after = content(run.path)
    assert {name: after.get(name) for name in before} == before
    new = after.keys() - before.keys()
    assert [name for name in new if not (name.startswith("best/step-") and "-a0001/" in name)] == []
    assert_same(trainwright.get("last", runs_dir=runs), whole)


@pytest.mark.parametrize("kind", ["file", "s3"])
def test_a_zombie_in_a_store_commits_nothing(
    kind: str, config: Path, whole: Run, both: list[WarmProcesses], tmp_path: Path,
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    url = request.getfixturevalue("bucket") if kind == "s3" else (tmp_path / "store").as_uri()
    with stopped(both[1], config, url, tmp_path / "cache of the zombie") as zombie:
        monkeypatch.setattr(heartbeats, "SILENCE", 0.0)  # it has been silent for long
        resumed = trainwright.resume("last", runs_dir=url)
        assert_same(resumed, whole)
        store = open_store(url)
        before = {key: store.get(key) for key in store.list() if not key.startswith("alive/")}
        continued(zombie)
    after = {key: store.get(key) for key in store.list() if not key.startswith("alive/")}
    assert {key: after.get(key) for key in before} == before
    new = after.keys() - before.keys()
    assert [key for key in new if "/0001-" not in key] == [], "beside what it stored before it found out"
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / "third cache"))
    again = trainwright.get("last", runs_dir=url)
    assert_same(again, whole)


@pytest.mark.parametrize("number", range(67))
@pytest.mark.parametrize("kind", ["local", "file", "s3"])
def test_of_two_that_resume_one_wins(
    kind: str, number: int, whole: Run, both: list[WarmProcesses], tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    url = {
        "local": lambda: str(tmp_path / "runs"),
        "file": (tmp_path / "store").as_uri,
        "s3": lambda: request.getfixturevalue("bucket"),
    }[kind]()
    run = crashed(url, at=13)
    name = str(run.path) if kind == "local" else f"{url}/{run.experiment}/{run.id}"
    done = race(both, name, tmp_path / "race", [tmp_path / "cache 0", tmp_path / "cache 1"])
    download_all(next(iter(all_runs(runs_folder(url)))))
    check_race(done, trainwright.get("last", runs_dir=url), whole)
