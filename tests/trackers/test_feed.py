"""Feeder processes: real ones, killed, orphaned, and with trackers that are dead."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from file_tracker import statuses, stored

from trainwright.engine.journal import Journal
from trainwright.trackers.feed import Feeders, sync
from trainwright.trackers.feed.state import State

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("installed")]
LONG = 120.0  # seconds within which a loaded machine does what takes one


def until(happened: Callable[[], Any]) -> None:
    """Waits for other processes."""
    end = time.monotonic() + LONG
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def write(journal: Journal, first: int, last: int, status: str = "") -> None:
    for step in range(first, last + 1):
        journal.values("metrics", step, {"train_loss": step / 2, "val_loss": step / 4})
    journal.flush()
    if status:
        journal.end(last, status)


def state(run_dir: Path, name: str = "0-file") -> State:
    return State.load(run_dir / "trackers" / f"{name}.json")


def assert_each_once(outside: Path, last: int) -> None:
    found = stored(outside)
    assert set(found) == {"train_loss", "val_loss"}
    for rows in found.values():
        assert [step for step, _ in rows] == list(range(1, last + 1))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return tmp_path / "outside"


@pytest.fixture
def run_dir(make_run, outside: Path) -> Path:
    return make_run(
        {"type": "file", "params": {"folder": "outside"}}
    )  # relative to the working directory of the run


def test_a_run_is_forwarded_while_it_goes_on_and_closed_at_its_end(run_dir: Path, outside: Path) -> None:
    journal, feeders = Journal(run_dir / "journal", 1, 0), Feeders(run_dir, ["file"])
    feeders.start()
    write(journal, 1, 50)
    until(lambda: len(stored(outside).get("val_loss", [])) == 50)
    write(journal, 51, 300, "completed")
    assert feeders.finish(LONG) == []
    assert_each_once(outside, 300)
    assert statuses(outside) == ["completed"]


def test_a_feeder_that_is_killed_between_sending_and_remembering_doubles_nothing(
    make_run, outside: Path
) -> None:
    run_dir = make_run({"type": "file", "params": {"folder": str(outside), "die_at": 2500}})
    journal, feeders = Journal(run_dir / "journal", 1, 0), Feeders(run_dir, ["file"])
    write(journal, 1, 2000, "preempted")
    feeders.start()
    (warning,) = feeders.finish(LONG)
    assert "2000 values not sent yet" in warning
    assert state(run_dir).sent == 2000  # in two batches; the third arrived, and nobody remembers
    assert sum(map(len, stored(outside).values())) == 3000

    write(Journal(run_dir / "journal", 2, 1900), 1901, 2100, "completed")
    resumed = Feeders(run_dir, ["file"])
    resumed.start()
    assert resumed.finish(LONG) == []
    assert_each_once(outside, 2100)


@pytest.mark.parametrize("delay", [0.0, 0.3, 0.6])
def test_a_feeder_killed_at_any_moment_loses_and_doubles_nothing(
    run_dir: Path, outside: Path, delay: float
) -> None:
    write(Journal(run_dir / "journal", 1, 0), 1, 20000, "completed")
    feeders = Feeders(run_dir, ["file"])
    feeders.start()
    feeders.finish(delay)  # kills it when the time is over
    (report,) = sync(run_dir, timeout=LONG)
    assert (report.pending, report.error) == (0, "")
    assert_each_once(outside, 20000)
    assert statuses(outside) == ["completed"]


def test_a_dead_tracker_costs_a_warning_and_loses_nothing(
    run_dir: Path, outside: Path, tmp_path: Path
) -> None:
    (tmp_path / "dead").touch()
    journal, feeders = Journal(run_dir / "journal", 1, 0), Feeders(run_dir, ["file"])
    feeders.start()
    write(journal, 1, 60, "completed")
    until(lambda: state(run_dir).error)
    start = time.monotonic()
    (warning,) = feeders.finish(1.0)
    assert time.monotonic() - start < 5
    assert warning.startswith("tracker file: 120 values not sent yet (Connection refused")
    assert warning.endswith(f"`trainwright runs sync {run_dir.name}` sends them")

    (tmp_path / "dead").unlink()
    (report,) = sync(run_dir, timeout=LONG)
    assert report == ("file", 120, 0, "")
    assert_each_once(outside, 60)
    assert sync(run_dir, timeout=LONG) == [("file", 0, 0, "")]


def test_one_dead_tracker_does_not_hold_up_another(make_run, outside: Path) -> None:
    blocked = {"type": "file", "params": {"folder": "/proc/nowhere/x"}}
    run_dir = make_run(blocked, {"type": "file", "params": {"folder": str(outside)}})
    journal, feeders = Journal(run_dir / "journal", 1, 0), Feeders(run_dir, ["file", "file"])
    feeders.start()
    write(journal, 1, 10, "completed")
    until(lambda: statuses(outside) or state(run_dir, "1-file").position.segment)
    (warning,) = feeders.finish(5.0)
    assert "No such file" in warning
    assert_each_once(outside, 10)
    assert statuses(outside) == ["completed"]


VICTIM = """
import os, signal, sys
from pathlib import Path
from trainwright.engine.journal import Journal
from trainwright.trackers.feed import Feeders
run_dir = Path(sys.argv[1])
feeders = Feeders(run_dir, ["file"])
feeders.start()
journal = Journal(run_dir / "journal", 1, 0)
for step in range(1, 41):
    journal.values("metrics", step, {"train_loss": step / 2, "val_loss": step / 4})
journal.flush()
if os.fork() == 0:          # a worker that outlives its parent, and holds the pipe to the feeder open
    os.close(1)
    os.close(2)
    signal.pause()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_feeder_whose_training_was_killed_sends_the_rest_and_ends(run_dir: Path, outside: Path) -> None:
    victim = subprocess.Popen([sys.executable, "-c", VICTIM, str(run_dir)], start_new_session=True)
    try:
        assert victim.wait(LONG) == -signal.SIGKILL
        until(lambda: statuses(outside) == ["failed"])
        until(lambda: not fed(run_dir))
    finally:
        os.killpg(victim.pid, signal.SIGKILL)
    write(Journal(run_dir / "journal", 2, 30), 31, 60, "completed")
    resumed = Feeders(run_dir, ["file"])
    resumed.start()
    assert resumed.finish(LONG) == []
    assert_each_once(outside, 60)
    assert statuses(outside) == ["failed", "completed"]


def fed(run_dir: Path) -> bool:
    """Whether a feeder holds the tracker."""
    with open(run_dir / "trackers" / "0-file.log", "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def test_an_orphan_with_a_dead_tracker_ends_too(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "dead").touch()
    write(Journal(run_dir / "journal", 1, 0), 1, 5)
    (run_dir / "trackers").mkdir()
    command = [sys.executable, "-m", "trainwright.trackers.feed", str(run_dir), "0", str(os.getpid())]
    orphan = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert orphan.returncode == 1
    assert orphan.stderr.count("Connection refused") == 1


def test_two_feeders_never_send_at_once(run_dir: Path, outside: Path) -> None:
    write(Journal(run_dir / "journal", 1, 0), 1, 30, "completed")
    (run_dir / "trackers").mkdir()
    with open(run_dir / "trackers" / "0-file.log", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (report,) = sync(run_dir, timeout=2.0)
        assert report.pending == 60
        assert report.error
        assert not outside.exists()
    assert sync(run_dir, timeout=LONG) == [("file", 60, 0, "")]


def test_signals_meant_for_the_training_do_not_end_a_feeder(run_dir: Path, outside: Path) -> None:
    journal, feeders = Journal(run_dir / "journal", 1, 0), Feeders(run_dir, ["file"])
    feeders.start()
    write(journal, 1, 10)
    until(lambda: stored(outside))
    process = feeders._feeders[0]._process
    assert process is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)
    write(journal, 11, 20, "interrupted")
    assert feeders.finish(LONG) == []
    assert_each_once(outside, 20)
    assert statuses(outside) == ["interrupted"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"type": "file", "params": {"folder": "x", "foldr": "y"}}, "foldr"),
        ({"type": "file", "params": {"folder": "${env:NOT_SET_ANYWHERE}"}}, "NOT_SET_ANYWHERE is not set"),
        ({"type": "fiel"}, "no tracker 'fiel'"),
    ],
)
def test_what_no_retry_can_mend_is_told_at_once(make_run, entry: dict[str, Any], message: str) -> None:
    run_dir = make_run(entry)
    write(Journal(run_dir / "journal", 1, 0), 1, 5, "completed")
    (report,) = sync(run_dir, trust=True)
    assert message in report.error
    assert report.pending == 10


def test_secrets_stay_out_of_state_and_log(make_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hush-hush")
    (tmp_path / "dead").touch()
    run_dir = make_run({"type": "file", "params": {"folder": "outside", "token": "${env:MY_TOKEN}"}})
    write(Journal(run_dir / "journal", 1, 0), 1, 5, "completed")
    feeders = Feeders(run_dir, ["file"])
    feeders.start()
    until(lambda: state(run_dir).error)
    (warning,) = feeders.finish(1.0)
    assert "${env:MY_TOKEN}" in warning
    for path in (run_dir / "trackers").iterdir():
        assert "hush-hush" not in path.read_text()


def test_a_run_directory_that_cannot_be_written_is_a_warning(run_dir: Path) -> None:
    write(Journal(run_dir / "journal", 1, 0), 1, 5, "completed")
    (run_dir / "trackers").write_text("a file is in the way")
    feeders = Feeders(run_dir, ["file"])
    feeders.start()
    (warning,) = feeders.finish(1.0)
    assert "10 values not sent yet" in warning


def test_the_library_of_a_tracker_is_not_imported_into_the_training() -> None:
    code = (
        "import sys, trainwright.trackers.feed; print({'mlflow', 'tensorboard', 'ruamel'} & set(sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "set()"
    )


def test_mlflow_dead_then_alive(
    make_run, tmp_path: Path, empty_mlflow_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("WHERE", "http://127.0.0.1:9")
    run_dir = make_run({"type": "mlflow", "params": {"uri": "${env:WHERE}"}})
    journal, feeders = Journal(run_dir / "journal", 1, 0), Feeders(run_dir, ["mlflow"])
    feeders.start()
    write(journal, 1, 1500)
    until(lambda: state(run_dir, "0-mlflow").error)
    journal.end(1500, "completed")
    start = time.monotonic()
    (warning,) = feeders.finish(2.0)
    assert time.monotonic() - start < 6
    assert "3000 values not sent yet (MLflow at ${env:WHERE}: [Errno 111] Connection refused)" in warning

    (tmp_path / "late.db").write_bytes(empty_mlflow_store.read_bytes())
    store = f"sqlite:///{tmp_path}/late.db"
    monkeypatch.setenv("WHERE", store)
    assert sync(run_dir, timeout=LONG, trust=True) == [("mlflow", 3000, 0, "")]
    client = mlflow.MlflowClient(store)
    (run,) = client.search_runs([client.get_experiment_by_name("exp").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["model.params.hidden"] == "[8, 4]"
    for metric in ("train_loss", "val_loss"):
        assert [point.step for point in client.get_metric_history(run.info.run_id, metric)] == list(
            range(1, 1501)
        )
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["config.yaml"]


def test_tensorboard_is_fed(make_run) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_dir = make_run({"type": "tensorboard"})
    journal = Journal(run_dir / "journal", 1, 0)
    write(journal, 1, 30)
    bars = {"edges": [0.0, 1.0, 2.0], "counts": [6, 1], "sum": 3.0, "sum_squares": 2.0}
    journal.values("histograms", 30, {"0.weight": bars})
    journal.end(30, "completed")
    assert sync(run_dir, timeout=LONG) == [("tensorboard", 60, 0, "")]
    shown = EventAccumulator(str(run_dir / "tensorboard"))
    shown.Reload()
    assert [event.step for event in shown.Scalars("val_loss")] == list(range(1, 31))
    assert "0.weight" in json.dumps(shown.Tags())


def test_sync_names_a_damaged_journal(run_dir: Path, outside: Path) -> None:
    write(Journal(run_dir / "journal", 1, 0), 1, 5, "completed")
    assert [report.error for report in sync(run_dir)] == [""]
    path = run_dir / "journal" / "0001.jsonl"
    path.write_text(path.read_text().replace('"step":3', '"step":"3"').replace('"step": 3', '"step": "3"'))
    (report,) = sync(run_dir)
    assert "journal/0001.jsonl: line 4 is damaged" in report.error
