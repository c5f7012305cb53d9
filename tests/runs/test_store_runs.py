"""Runs in a store: created, resumed and read by URL alone, while the store fails, is slow or unreachable."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trainwright
from s3_server import S3Server
from small_runs import SMALL, Crash, assert_same, crashed, every_save_on_disk, preempted
from trainwright import plugins
from trainwright.callbacks.base import Callback
from trainwright.cli.main import main
from trainwright.engine.loop import Loop
from trainwright.errors import (
    CheckpointError,
    DataError,
    InputError,
    RunLockedError,
    RunLostError,
    TrainingError,
)
from trainwright.records.decision import Decision
from trainwright.records.journal import read
from trainwright.records.listing import runs_folder
from trainwright.records.run_dir import RunDir
from trainwright.runs.processes import stopping
from trainwright.runs.run import Run
from trainwright.runs.session import Session
from trainwright.runs.wiring import run_checkpoints
from trainwright.storage import heartbeats
from trainwright.storage.log import Entry, Log, StoredFile
from trainwright.storage.remote import RemoteRun
from trainwright.storage.urls import open_store, url_of, working_folder
from trainwright.stores.local import LocalStore
from trainwright.testing.faults import WRITES, Faults, FaultyStore, fail, pause
from troubled_server import Trouble
from warm_commands import warm


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trainwright.train(SMALL, runs_dir=tmp_path_factory.mktemp("whole"))


@pytest.fixture
def folder_url(tmp_path: Path) -> str:
    return (tmp_path / "store" / "runs").as_uri()


@pytest.fixture(params=["file", "s3"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "s3":
        return f"{request.getfixturevalue('bucket')}/our/runs"
    return str(request.getfixturevalue("folder_url"))


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Go to another machine: another cache and working directory, and processes there are not ours."""

    def go(name: str = "elsewhere") -> None:
        monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path / name / "cache"))
        (tmp_path / name / "work").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / name / "work")

    return go


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the stores of `file://` URLs meet faults."""
    monkeypatch.setattr(plugins, "_replaced", {})

    def wrap(*faults: Faults) -> None:
        def make(root: Path | str) -> Any:
            store = LocalStore(root)
            return FaultyStore(store, *faults) if isinstance(root, str) else store

        plugins.replace_adapter("store", "file", make)

    return wrap


def run_url(url: str, run: Run) -> str:
    return f"{url}/{run.experiment}/{run.id}"


def objects(url: str) -> dict[str, bytes]:
    store = open_store(url)
    return {key: store.get(key) for key in store.list()}


# -- the same run, elsewhere


def test_a_run_resumes_elsewhere_with_nothing_but_the_url(url: str, whole: Run, elsewhere: Any) -> None:
    run = preempted(url)  # type: ignore[arg-type]
    elsewhere()
    resumed = trainwright.resume(run_url(url, run))
    assert resumed.path != run.path
    assert_same(resumed, whole)
    assert [attempt.attempt for attempt in RunDir(resumed.path).attempts()] == [1, 2]
    elsewhere("third")
    assert_same(trainwright.get("last", runs_dir=url), whole)


def test_after_a_crash_it_goes_on_from_the_newest_commit_of_the_store(
    folder_url: str, whole: Run, elsewhere: Any
) -> None:
    run = crashed(folder_url, at=13)  # type: ignore[arg-type]
    elsewhere()
    again = trainwright.get(run.id, runs_dir=folder_url)
    assert again.status in ("crashed", "failed")
    steps = [record["first"] for record in read(again.path / "journal") if record["kind"] == "losses"]
    assert 10 in steps, "the journal up to the commit of step 10 is in the store"
    resumed = trainwright.resume(run.id, runs_dir=folder_url)
    assert steps_resumed_from(resumed) == [0, 10]
    assert_same(resumed, whole)


def test_the_verbs_take_a_url(
    bucket: str, whole: Run, elsewhere: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainwright.cli.main import main

    def command(*words: str) -> Any:
        assert main([*words, "--runs-dir", bucket, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    config, rows = tmp_path / "small.json", tmp_path / "rows.csv"
    config.write_text(json.dumps(SMALL))
    run = command("train", str(config), "--quiet")
    assert run["digest"] == whole.digest
    elsewhere()
    assert [one["run_id"] for one in command("runs", "list")] == [run["run_id"]]
    assert command("runs", "list")[0]["metrics"] == whole.metrics
    shown = command("runs", "show", "last")
    assert (shown["digest"], shown["manifest"]["seed"]) == (whole.digest, 3)
    assert command("evaluate", "last")["metrics"]["test_accuracy"] == whole.metrics["test_accuracy"]
    from sklearn.datasets import load_iris

    load_iris(as_frame=True).data.head(3).to_csv(rows, index=False)
    capsys.readouterr()
    assert main(["predict", "last", str(rows), "--runs-dir", bucket]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert command("reproduce", run["run_id"], "--quiet")["verdict"] == "identical"
    assert len(command("runs", "list")) == 2
    predictor = trainwright.load(run["run_id"], runs_dir=bucket)
    data = np.array([[5.1, 3.5, 1.4, 0.2]])
    assert list(predictor.predict(data)) == list(trainwright.load(whole).predict(data))


def test_trainwright_runs_may_be_a_url(folder_url: str, monkeypatch: pytest.MonkeyPatch, whole: Run) -> None:
    monkeypatch.setenv("TRAINWRIGHT_RUNS", folder_url)
    run = preempted(None)  # type: ignore[arg-type]
    resumed = trainwright.train(SMALL, resume=True)
    assert resumed.id == run.id
    assert_same(resumed, whole)


def test_no_secret_of_the_store_is_in_a_record(bucket: str, s3: S3Server) -> None:
    run = trainwright.train(SMALL, {"training.max_steps": 8}, runs_dir=bucket)
    stored = b"".join(objects(bucket).values())
    local = b"".join(path.read_bytes() for path in run.path.rglob("*") if path.is_file())
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert s3.environment()[name].encode() not in stored + local


# -- troubles of the store


class When(Callback):
    """Calls something after a step."""

    def __init__(self, step: int, act: Any) -> None:
        self._step, self._act = step, act

    def on_log(self, step: int, metrics: Any) -> None:
        if step == self._step:
            self._act()


class Away:
    """A store that is away from one step to another."""

    def __init__(self) -> None:
        self.is_away = False

    def __call__(self) -> None:
        if self.is_away:
            fail()

    def between(self, first: int, last: int) -> list[Callback]:
        return [
            When(first, lambda: setattr(self, "is_away", True)),
            When(last, lambda: setattr(self, "is_away", False)),
        ]


def test_a_store_that_is_away_costs_events_and_no_step(
    folder_url: str, whole: Run, faulty: Any, elsewhere: Any
) -> None:
    away = Away()
    faulty(Faults(away))
    with every_save_on_disk():
        run = trainwright.train(SMALL, runs_dir=folder_url, callbacks=away.between(8, 17))
    assert_same(run, whole)
    records = list(read(run.path / "journal"))
    failed = {
        r["detail"]["saved_step"]
        for r in records
        if r["kind"] == "event" and r["name"] == "checkpoint_failed"
    }
    assert failed == {10, 15}
    elsewhere()
    assert_same(trainwright.get("last", runs_dir=folder_url), whole)


def test_a_store_that_is_away_at_the_end_is_an_error_and_a_resume_completes(
    folder_url: str, whole: Run, faulty: Any, elsewhere: Any
) -> None:
    away = Away()
    faulty(Faults(away))
    with (
        every_save_on_disk(),
        pytest.raises(
            CheckpointError, match=r"(?s)the store is away.*earlier checkpoints are untouched.*resume"
        ),
    ):
        trainwright.train(SMALL, runs_dir=folder_url, callbacks=away.between(22, 99))
    away.is_away = False
    elsewhere()
    run = trainwright.get("last", runs_dir=folder_url)
    assert run.status != "completed"
    remote_run = RemoteRun.of(run.path)
    assert remote_run is not None
    assert_same(trainwright.resume(run), whole)


def test_an_end_that_cannot_be_stored_is_an_error_and_a_resume_completes(
    folder_url: str, whole: Run, faulty: Any, elsewhere: Any
) -> None:
    """The last commit is in the store, the result is not."""
    faulty(Faults(fail, range(9, 99), operations=["put_if_absent"], keys="log/"))
    with every_save_on_disk(), pytest.raises(TrainingError, match=r"the store is away.*then resume run"):
        trainwright.train(SMALL, runs_dir=folder_url)
    faulty()
    elsewhere()
    run = trainwright.get("last", runs_dir=folder_url)
    assert (run.status, run.result) == ("crashed", {})
    assert_same(trainwright.resume(run), whole)


@pytest.mark.parametrize("when", ["before", "after"])
def test_each_request_may_fail_once(
    when: Any, folder_url: str, whole: Run, faulty: Any, elsewhere: Any
) -> None:
    """Before or after it takes effect: the run comes to its bits, and the store holds it."""
    failing = Faults(fail, range(6, 400, 3), operations=WRITES, when=when)
    faulty(failing)
    try:
        run = trainwright.train(SMALL, runs_dir=folder_url)
    except (CheckpointError, TrainingError):  # the last one failed
        run = trainwright.get("last", runs_dir=folder_url)
    faulty()
    elsewhere()
    again = trainwright.get("last", runs_dir=folder_url)
    if again.status != "completed":
        again = trainwright.resume(again)
    assert again.id == run.id
    assert_same(again, whole)


def test_a_slow_store_does_not_slow_the_steps(folder_url: str, whole: Run, faulty: Any) -> None:
    faulty(Faults(pause(0.2), operations=["put"]))
    run = trainwright.train(SMALL, {"checkpoint.save_top_k": 0}, runs_dir=folder_url)
    assert run.digest == whole.digest
    assert run.result["train_seconds"] < 5 * 0.2, "steps waited for the store"


def test_the_service_may_fail_and_be_slow(bucket: str, s3: S3Server, whole: Run, elsewhere: Any) -> None:
    troubles = [
        Trouble("500", range(4, 99, 5)),
        Trouble("lost", range(6, 99, 7)),
        Trouble("slow", range(2, 99, 9)),
    ]
    with s3.troubled(*troubles, Trouble("500", range(3, 99, 4), "GET"), Trouble("500", [1, 3], "POST")):
        trainwright.train(SMALL, runs_dir=bucket)
    elsewhere()
    assert_same(trainwright.get("last", runs_dir=bucket), whole)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def steps_resumed_from(run: Run) -> list[int]:
    segments = sorted((run.path / "journal").glob("*.jsonl"))
    return [json.loads(path.open().readline())["from_step"] for path in segments]


@pytest.mark.parametrize(
    ("damage", "step"),
    [
        (("checkpoints/step-*10-*/weights.safetensors", flip), 5),
        (("checkpoints/step-*10-*/weights.safetensors", Path.unlink), 5),
        (("best/step-*7-*/weights.safetensors", flip), 5),
        (("checkpoints/step-*5-*/weights.safetensors", flip), 10),
    ],
)
def test_a_checkpoint_that_is_damaged_in_the_store_is_named_and_the_one_before_is_resumed(
    damage: Any, step: int, folder_url: str, whole: Run, elsewhere: Any, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    run = crashed(folder_url, at=13)  # type: ignore[arg-type]
    pattern, harm = damage
    (path,) = (tmp_path / "store").glob(f"runs/files/small/{run.id}/*/{pattern}")
    harm(path)
    elsewhere()
    resumed = trainwright.resume("last", runs_dir=folder_url)
    assert_same(resumed, whole)
    assert steps_resumed_from(resumed) == [0, step]
    assert (f"{path.parent.name}/weights.safetensors" in caplog.text) == (step == 5)


@pytest.mark.parametrize(
    ("pattern", "step"), [("checkpoints/*10-*/manifest.json", 5), ("checkpoints/*/*", 0)]
)
def test_a_lost_manifest_is_named_and_the_newest_whole_checkpoint_is_resumed(
    pattern: str, step: int, folder_url: str, whole: Run, elsewhere: Any, tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    run = crashed(folder_url, at=13)  # type: ignore[arg-type]
    for path in (tmp_path / "store").glob(f"runs/files/small/{run.id}/*/{pattern}"):
        path.unlink()
    elsewhere()
    resumed = trainwright.resume("last", runs_dir=folder_url)
    assert_same(resumed, whole)
    assert steps_resumed_from(resumed) == [0, step]
    assert "checkpoint step-000000010-a0001 is missing, though the run's log names it" in caplog.text
    assert (f"there is no checkpoint: run {run.id} starts again at step 0" in caplog.text) == (step == 0)


@pytest.mark.parametrize(
    "harm", [lambda store, key: store.delete(key), lambda store, key: store.put(key, Path(__file__))]
)
def test_a_segment_of_the_journal_that_is_gone_is_named(
    harm: Any, url: str, whole: Run, elsewhere: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As on the local disk; it is no reason not to list, show and resume the run."""
    run = crashed(url, at=13)  # type: ignore[arg-type]
    store = open_store(url)
    parts = [key for key in store.list(f"files/small/{run.id}/") if key.endswith("journal/0001.jsonl")]
    for key in parts:
        harm(store, key)
    elsewhere()
    assert [one.id for one in trainwright.list_runs(url)] == [run.id]
    resumed = trainwright.resume(run.id, runs_dir=url)
    assert "journal/0001.jsonl: missing, though it was written" in caplog.text
    assert resumed.digest == whole.digest
    assert [entry["from_step"] for entry in read(resumed.path / "journal") if entry["kind"] == "start"] == [
        10
    ]


def test_a_store_that_cannot_be_read_is_no_damage(folder_url: str, faulty: Any, elsewhere: Any) -> None:
    """An older checkpoint would cost steps; the newest one is there."""
    run = crashed(folder_url, at=13)  # type: ignore[arg-type]
    faulty(Faults(fail, operations=["download"], keys="checkpoints/step-000000010-a0001/weights"))
    elsewhere()
    with pytest.raises(TrainingError, match=r"(?s)the store is away.*resume the run once it can be read"):
        trainwright.resume(run.id, runs_dir=folder_url)
    faulty()
    assert steps_resumed_from(trainwright.resume(run.id, runs_dir=folder_url)) == [0, 10]


def test_a_resume_downloads_one_checkpoint_and_keeps_the_others(
    folder_url: str, whole: Run, faulty: Any, elsewhere: Any
) -> None:
    run = crashed(folder_url, {"checkpoint.keep_last": 3}, at=23)  # type: ignore[arg-type]
    elsewhere()
    seen: list[str] = []

    class Seen(FaultyStore):
        def download(self, key: str, target: Path) -> None:
            seen.append(key)
            super().download(key, target)

    plugins.replace_adapter(
        "store", "file", lambda root: Seen(LocalStore(root)) if isinstance(root, str) else LocalStore(root)
    )
    kept: list[tuple[str, ...]] = []

    def look() -> None:
        head = Log(open_store(folder_url), f"log/small/{run.id}/").head()
        assert head is not None
        kept.append(head.checkpoints)
        assert {name.split("/")[1] for name in head.files if name.startswith("checkpoints/")} == set(kept[0])

    resumed = trainwright.resume(run.id, runs_dir=folder_url, callbacks=[When(22, look)])
    folders = {key.split("/")[-2] for key in seen if key.endswith("weights.safetensors")}
    best = sorted(folder for folder in folders if folder.startswith("step-"))
    assert [folder for folder in best if "20-" in folder] == ["step-000000020-a0001"]
    assert not [folder for folder in best if "10-" in folder or "15-" in folder], "they were downloaded"
    assert kept == [tuple(f"step-0000000{step}-a0001" for step in (10, 15, 20))]
    assert_same(resumed, whole)
    elsewhere("third")
    child = trainwright.fork(run_url(folder_url, run), {"training.learning_rate": 0.02}, step=25)
    assert child.status == "completed", "an earlier checkpoint comes from the store"


# -- an entry of the log that is damaged


def entries_of(folder_url: str, run: Run, tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "store" / "runs" / "log" / "small" / run.id).iterdir())


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("harm", [flip, lambda path: os.truncate(path, 700)])
def test_a_damaged_newest_entry_is_named_and_costs_at_most_what_it_says(
    harm: Any, is_here: bool, folder_url: str, whole: Run, elsewhere: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """Its copy replaces it where there is one; elsewhere, the entry before it, all of whose files are there."""
    with monkeypatch.context() as patch:
        patch.setattr(Session, "close", lambda *_: None)  # as if the process was killed
        run = crashed(folder_url, {"checkpoint.keep_last": 1}, at=13)  # type: ignore[arg-type]
    _, newest = entries_of(folder_url, run, tmp_path)
    harm(newest)
    before = objects(folder_url)
    monkeypatch.setattr(heartbeats, "SILENCE", 0.0)  # who wrote it is unknown
    if not is_here:
        elsewhere()
    assert [one.id for one in trainwright.list_runs(folder_url)] == [run.id]
    assert objects(folder_url) == before
    resumed = trainwright.resume(run.id, runs_dir=folder_url)
    assert f"run {run.id}: entry {int(newest.name)} of the run's log is damaged" in caplog.text
    assert_same(resumed, whole)
    assert steps_resumed_from(resumed)[-1] == (10 if is_here else 5)
    after = objects(folder_url)
    assert {key for key in before if key in after and after[key] != before[key]} == set()


def test_a_damaged_entry_without_one_before_it_says_what_to_do(
    folder_url: str, elsewhere: Any, tmp_path: Path
) -> None:
    run = crashed(folder_url, at=13)  # type: ignore[arg-type]
    for path in entries_of(folder_url, run, tmp_path):
        flip(path)
    before = objects(folder_url)
    elsewhere()
    with pytest.raises(
        CheckpointError,
        match=rf"entry (\d+) of the run's log is damaged: .*, and there is no valid entry before it; "
        rf"put the object {folder_url}/log/small/{run.id}/0+\1 back from a backup",
    ):
        trainwright.resume(run_url(folder_url, run))
    assert objects(folder_url) == before


@pytest.mark.parametrize("kind", ["commit", "lease"])
def test_the_owner_of_a_damaged_entry_may_live(
    kind: str, folder_url: str, elsewhere: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is either the attempt of the entry before, or the one that has just taken the run."""
    run = crashed(folder_url, at=13)  # type: ignore[arg-type]
    flip(entries_of(folder_url, run, tmp_path)[1])
    elsewhere()
    remote_run = RemoteRun(tmp_path / "copies" / "small" / run.id, open_store(folder_url))
    remote_run.path.mkdir(parents=True)
    attempt = 1 if kind == "commit" else 2
    monkeypatch.setattr(heartbeats, "_POLL_SECONDS", 0.01)
    beats = threading.Timer(0.05, lambda: remote_run.heartbeats.beat(attempt))
    beats.start()
    with pytest.raises(RunLockedError, match="its entry is damaged"):
        remote_run.free_head()
    beats.join()


# -- what is in the store, and for how long


def test_the_store_holds_what_the_newest_entry_names_and_little_else(folder_url: str) -> None:
    run = trainwright.train(SMALL, {"checkpoint.keep_last": 2}, runs_dir=folder_url)
    keys = list(open_store(folder_url).list())
    remote_run = RemoteRun.of(run.path)
    assert remote_run is not None
    head = remote_run.log.head()
    assert head is not None
    assert (head.kind, head.status) == ("end", "completed")
    named = {f"files/small/{run.id}/{part}" for file in head.files.values() for part in file.parts}
    small = {key for key in keys if "/checkpoints/" not in key and "/best/" not in key}
    assert {key for key in keys if key.startswith("files/")} - small <= named
    before = remote_run.log.read(head.number - 1)
    spare = {f"files/small/{run.id}/{part}" for file in before.files.values() for part in file.parts}
    assert {key for key in small if key.startswith("files/")} | named <= named | spare
    assert len([key for key in keys if key.startswith("log/")]) == 2
    assert [key for key in keys if not key.startswith(("files/", "log/"))] == []
    commits = run_checkpoints(RunDir(run.path))
    assert set(head.checkpoints) == set(commits.resume.names())
    assert {name.split("/")[1] for name in head.files if name.startswith("best/")} == set(
        commits.best.names()
    )
    local = {path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file()} - {
        "lock"
    }
    assert {name for name in local if not name.startswith("log/")} == set(head.files)


def test_a_run_that_fails_at_its_start_leaves_nothing(folder_url: str) -> None:
    with pytest.raises(DataError, match=r"none\.csv: there is no such file"):
        trainwright.train(SMALL, {"data": {"type": "csv", "path": "none.csv"}}, runs_dir=folder_url)
    assert objects(folder_url) == {}
    assert trainwright.list_runs(folder_url) == []


def test_clean_deletes_a_run_from_the_store(folder_url: str, elsewhere: Any) -> None:
    run = preempted(folder_url)  # type: ignore[arg-type]
    here = run.path
    kept = trainwright.train(SMALL, runs_dir=folder_url)
    cache = os.environ["TRAINWRIGHT_CACHE"]
    elsewhere()
    assert [one.id for one in trainwright.clean(folder_url, statuses=["preempted"], dry_run=False)] == [
        run.id
    ]
    assert {key.split("/")[2] for key in objects(folder_url)} == {kept.id}
    os.environ["TRAINWRIGHT_CACHE"] = cache
    assert [one.id for one in trainwright.list_runs(folder_url)] == [kept.id]
    assert not here.exists(), "the working copy of a deleted run is left behind"


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_a_deletion_that_is_killed_goes_on_at_the_next_clean(
    after: int, folder_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log goes first, so that what is left is no run; `after` objects it is killed."""
    run = trainwright.train(SMALL, runs_dir=folder_url)
    delete, left = LocalStore.delete, [after]

    def delete_some(store: LocalStore, key: str) -> None:
        if not left[0]:
            raise Crash
        left[0] -= 1
        delete(store, key)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", delete_some)
        with pytest.raises(Crash):
            trainwright.delete(run, runs_dir=folder_url)
    listed = trainwright.list_runs(folder_url)
    assert [one.id for one in listed] == ([run.id] if after < 2 else [])
    trainwright.clean(folder_url, dry_run=False)
    assert objects(folder_url) == {}
    assert trainwright.list_runs(folder_url) == []


def test_a_run_that_was_taken_up_after_a_deletion_was_cut_off_stays(
    folder_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = preempted(folder_url)  # type: ignore[arg-type]

    def crash(*_: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", crash)
        with pytest.raises(Crash):
            trainwright.delete(run, runs_dir=folder_url)
    trainwright.resume(run, runs_dir=folder_url)
    trainwright.clean(folder_url, dry_run=False)
    assert [one.status for one in trainwright.list_runs(folder_url)] == ["completed"]


def test_clean_keeps_a_run_whose_checkpoints_are_in_the_store_alone(folder_url: str, elsewhere: Any) -> None:
    run = crashed(folder_url, at=13)  # type: ignore[arg-type]
    elsewhere()
    assert trainwright.clean(folder_url) == [], "a resume could go on from its checkpoints"
    assert not list(runs_folder(folder_url).glob("*/*/checkpoints")), "they were downloaded to find out"
    assert trainwright.resume(run.id, runs_dir=folder_url).status == "completed"


def test_a_run_that_was_deleted_meanwhile_is_not_stored_again(folder_url: str) -> None:
    """Its machine was silent for so long that another one took it for dead."""

    def delete() -> None:
        store = open_store(folder_url)
        for key in list(store.list()):
            store.delete(key)

    with every_save_on_disk(), pytest.raises(RunLostError, match="the run was deleted from its store"):
        trainwright.train(SMALL, runs_dir=folder_url, callbacks=[When(12, delete)])
    assert not objects(folder_url)


def test_a_list_of_runs_leaves_one_that_is_created_meanwhile(
    folder_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    created: list[Run] = []
    list_ = LocalStore.list

    def list_and_create(store: LocalStore, prefix: str = "") -> Any:
        yield from list(list_(store, prefix))
        if prefix == "log/" and not created:
            created.append(trainwright.create(SMALL, runs_dir=folder_url))

    monkeypatch.setattr(LocalStore, "list", list_and_create)
    trainwright.list_runs(folder_url)
    assert created[0].path.exists()


def test_a_run_of_a_list_has_its_history_elsewhere(folder_url: str, elsewhere: Any) -> None:
    run = preempted(folder_url)  # type: ignore[arg-type]
    before = run.history()
    elsewhere()
    (listed,) = trainwright.list_runs(folder_url)
    assert listed.history() == before


def test_a_run_is_reused_elsewhere(folder_url: str, elsewhere: Any) -> None:
    run = trainwright.train(SMALL, runs_dir=folder_url)
    elsewhere()
    assert trainwright.train(SMALL, runs_dir=folder_url, reuse=True).id == run.id


def test_a_decision_is_in_the_store_before_it_has_a_consequence(
    folder_url: str, elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide = Loop._decide

    def decides_and_dies(loop: Loop, decision: Decision) -> None:
        decide(loop, decision)
        if decision.kind == "prune":
            raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_decide", decides_and_dies)
        patch.setattr(Session, "close", lambda *_: None)  # as if the process was killed
        with every_save_on_disk(), pytest.raises(Crash):
            trainwright.train(SMALL, runs_dir=folder_url, verdict=lambda step, _: "prune")
    elsewhere()
    run = trainwright.resume("last", runs_dir=folder_url, verdict=lambda step, _: "keep")
    assert (run.status, run.result["steps"]) == ("pruned", 7)


# -- who owns it


def test_a_run_that_is_trained_elsewhere_is_running_and_refused(folder_url: str, elsewhere: Any) -> None:
    seen: list[Any] = []

    def look() -> None:
        cache = os.environ["TRAINWRIGHT_CACHE"]
        elsewhere("beside")
        seen.append(trainwright.get("last", runs_dir=folder_url).status)
        seen.append(trainwright.clean(folder_url, statuses=["crashed", "created"]))
        with pytest.raises(RunLockedError, match=r"is owned by another process \(process \d+ on"):
            trainwright.resume("last", runs_dir=folder_url)
        os.environ["TRAINWRIGHT_CACHE"] = cache

    trainwright.train(SMALL, runs_dir=folder_url, callbacks=[When(12, look)])
    assert seen == ["running", []]


def test_a_heartbeat_keeps_a_run_that_commits_rarely(
    folder_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainwright.runs.leasing import take_lease
    from trainwright.storage import lease

    monkeypatch.setattr(lease, "_BEAT", 0.01)
    run = RunDir.create(runs_folder(folder_url), "small", "model: mlp\n")
    run.acquire()
    owner = take_lease(run)
    remote_run = RemoteRun.of(run.path)
    assert remote_run is not None
    head = remote_run.log.head()
    assert head is not None
    old = head.model_copy(update={"time": head.time - 3600})
    while not list(open_store(folder_url).list("alive/")):
        pass
    with pytest.raises(RunLockedError):
        remote_run.heartbeats.refuse_owned(old)
    owner.release()
    while list(open_store(folder_url).list("alive/")):  # one was under way
        remote_run.heartbeats.stop_beating(1)
    remote_run.heartbeats.refuse_owned(old)


LONG = """
import time

import trainwright
from small_runs import SMALL
from trainwright.storage import lease

def main(url):
    lease._BEAT, here = 0.2, time.time
    time.time = lambda: here() - 120
    trainwright.train(SMALL, {"training.max_steps": 10**6}, runs_dir=url)
"""


@pytest.mark.slow
def test_a_run_is_left_alone_and_stopped_from_a_machine_that_shares_only_the_store(
    folder_url: str, elsewhere: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clocks of the two differ by two minutes."""
    elsewhere("trainer")
    Path("long_training.py").write_text(LONG, encoding="utf-8")
    with warm("long_training").started(folder_url, folder=Path.cwd()) as trainer:
        elsewhere("other")
        monkeypatch.setattr(stopping, "_STORE_PAUSE", 0.2)
        while [run.status for run in trainwright.list_runs(folder_url)] != ["running"]:
            assert not trainer.has_ended()
        monkeypatch.setattr(heartbeats, "_POLL_SECONDS", 0.05)
        with pytest.raises(RunLockedError, match="is owned by another process"):
            trainwright.resume("last", runs_dir=folder_url)
        asked = trainwright.stop("last", runs_dir=folder_url)
        ended = trainer.end()
        assert ended.returncode == 0, ended.stderr
    assert asked.status == "stopped"
    assert 0 < asked.result["steps"] < 10**6
    assert not list(open_store(folder_url).list("alive/"))


# -- URLs and folders that are refused


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nope://x/y", r"no store has URLs that begin with nope://; there are: .*file://.*s3://"),
        ("s3://key:secret@bucket/runs", "must not hold credentials"),
        ("s3://bucket/runs?region=eu", "must not hold credentials or options"),
        ("file://host/runs", "names no folder of this machine"),
        ("file:/tmp/runs", "file:/tmp/runs is neither a folder nor a URL; write file:///tmp/runs"),
        ("s3:bucket/runs", "s3:bucket/runs is neither a folder nor a URL; write s3://bucket/runs"),
        ("s3:///runs", "names no bucket; write s3://bucket/prefix"),
        (__file__, r"test_store_runs\.py is a file; give the folder of the runs, or the URL of a store"),
    ],
)
def test_a_url_that_cannot_be_used_is_an_input_error(url: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        trainwright.train(SMALL, runs_dir=url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("runs_dir", [__file__, "file:/tmp/runs"])
def test_a_folder_that_is_none_holds_no_list(runs_dir: str) -> None:
    with pytest.raises(InputError, match=r"is a file|write file:///tmp/runs"):
        trainwright.list_runs(runs_dir)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://bucket", "s3://bucket names no run; give URL/EXPERIMENT/RUN"),
        ("s3://bucket/run", "s3://bucket/run names no run; give URL/EXPERIMENT/RUN"),
        ("FOLDER/small", "no run 'small': file://.* holds no runs; give another folder with --runs-dir"),
    ],
)
def test_a_url_of_no_run_is_an_input_error(url: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        trainwright.get(url.replace("FOLDER", (tmp_path / "a" / "runs").as_uri()))


def test_the_next_commands_find_a_run_that_was_named_by_its_url(
    folder_url: str, elsewhere: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere()
    url = f"{folder_url}/small/{trainwright.create(SMALL, ['training.max_steps=3'], runs_dir=folder_url).id}"
    assert main(["work", url, "--quiet"]) == 0
    facts, _, commands = capsys.readouterr().out.partition("next:\n")
    assert ["url", url] in [line.split() for line in facts.splitlines()]
    assert commands.splitlines()[0] == f"  trainwright runs show {url}"
    assert main(["runs", "show", url]) == 0
    assert ["url", url] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_what_cannot_be_kept_in_a_store_says_so(folder_url: str) -> None:
    with pytest.raises(InputError, match=r"studies are kept in a local folder, not in file:"):
        trainwright.cross_validate(SMALL, runs_dir=folder_url)


def test_a_working_copy_that_lost_its_cache_is_not_trained_in(folder_url: str, elsewhere: Any) -> None:
    run = preempted(folder_url)
    elsewhere()
    with pytest.raises(
        InputError, match="is the working copy of a run in a store, and not in the cache folder"
    ):
        trainwright.resume(run.path)


def test_a_folder_outside_of_the_cache_is_no_working_copy(tmp_path: Path, folder_url: str) -> None:
    real = working_folder(folder_url)
    assert url_of(real) == folder_url
    fake = tmp_path / real.name
    fake.mkdir()
    (fake / ".url").write_text(folder_url)
    assert url_of(fake) is None
    other = real.with_name("0" * 16)
    other.mkdir()
    (other / ".url").write_text(folder_url)
    assert url_of(other) is None, "it is not under the hash of its URL"


UNSAFE = ["../outside", "/outside", "a/../../outside", "lock", ".url", "log/1", "", "a\0b", "a\udc00"]


@pytest.mark.parametrize("name", UNSAFE)
def test_an_entry_writes_nothing_outside_of_its_run(name: str, folder_url: str, tmp_path: Path) -> None:
    copy = RemoteRun(tmp_path / "copy" / "small" / "run", LocalStore(folder_url))
    file = StoredFile(bytes=1, sha256="0" * 64, text="x")
    entry = Entry(number=1, writer="w", serial=1, attempt=1, kind="commit", time=0, files={name: file})
    with pytest.raises(CheckpointError, match=r"which no run has"):
        copy.download(entry, lambda _: True)
    assert not list(tmp_path.rglob("outside"))


def test_an_entry_reads_nothing_outside_of_its_store(folder_url: str, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("x")
    sha256 = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    copy = RemoteRun(tmp_path / "copy" / "small" / "run", LocalStore(folder_url))
    (copy.path / "journal").mkdir(parents=True)
    (tmp_path / "store/runs/files/small/run").mkdir(parents=True)
    file = StoredFile(bytes=1, sha256=sha256, parts=("../../../../../outside",))
    entry = Entry(number=1, writer="w", serial=1, attempt=1, kind="commit", time=0, files={"data.json": file})
    with pytest.raises(CheckpointError, match=r"names a file '\.\./.*', which no run has"):
        copy.download(entry, lambda _: True)
    assert not (copy.path / "data.json").exists()


def test_a_segment_is_stored_in_parts_and_comes_back_whole(folder_url: str, tmp_path: Path) -> None:
    """Each entry stores what was appended; now and then, the whole is stored again."""
    path = tmp_path / "mine" / "small" / "run"
    (path / "journal").mkdir(parents=True)
    mine = RemoteRun(path, LocalStore(folder_url))
    segment = path / "journal" / "0001.jsonl"
    entry = Entry(number=0, writer="w", serial=0, attempt=1, kind="commit", time=0)
    most = 0
    for number in range(1, 80):
        with segment.open("ab") as file:
            file.write(b'{"line": %d}\n{"to' % number if number % 2 else b'rn": %d}\n' % number)
        files = mine.upload(f"0001-{number:06d}/", (), ())
        entry = entry.model_copy(update={"number": number, "files": files})
        mine.published(entry)
        most = max(most, len(files["journal/0001.jsonl"].parts))
        if number in (1, 2, 40, 79):
            copy = RemoteRun(tmp_path / f"copy{number}" / "small" / "run", LocalStore(folder_url))
            copy.path.mkdir(parents=True)
            copy.download(entry, lambda _: True)
            content = segment.read_bytes()
            assert (copy.path / "journal" / "0001.jsonl").read_bytes() == content[: content.rfind(b"\n") + 1]
    assert most == 32
    again = RemoteRun(path, LocalStore(folder_url))  # a resume
    again.download(entry, lambda _: True)
    with segment.open("ab") as file:
        file.write(b"{}\n")
    stored = again.upload("0002-000001/", (), ())["journal/0001.jsonl"]
    assert stored.parts == (*entry.files["journal/0001.jsonl"].parts, "0002-000001/journal/0001.jsonl")
