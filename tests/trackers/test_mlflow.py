"""MLflow's adapter.

The contract, on a sqlite store and on a real server, and what MLflow's users expect of it.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from late import Late
from trainwright.errors import TrackerError
from trainwright.testing.tracker_suite import NOW, Stored, TrackerSuite, card, line
from trainwright.trackers.base import Point, RunCard
from trainwright.trackers.mlflow import ENVIRONMENT, MlflowParams, MlflowTracker

pytestmark = pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")
mlflow: Any = Late(lambda: import_module("mlflow"))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter sets variables, for the process that is its own; here it is not."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def stored_run(uri: str, run: RunCard, experiment: str = "suite") -> tuple[Any, Any]:
    client = mlflow.MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = client.search_runs([found.experiment_id], f"tags.`trainwright.run_id` = '{run.run_id}'")
    assert len(runs) == 1
    return client, runs[0]


class MlflowSuite(TrackerSuite):
    def uri(self, root: Path) -> str:
        raise NotImplementedError

    def make(self, root: Path) -> MlflowTracker:
        return MlflowTracker(MlflowParams(uri=self.uri(root)))

    def points(self, root: Path, run: RunCard) -> Stored:
        client, found = stored_run(self.uri(root), run)
        return {
            name: [(point.step, point.value) for point in client.get_metric_history(found.info.run_id, name)]
            for name in found.data.metrics
        }

    def texts(self, root: Path, run: RunCard) -> dict[str, str]:
        data = stored_run(self.uri(root), run)[1].data
        return {**data.params, **data.tags}

    def artifact(self, root: Path, run: RunCard, name: str) -> bytes | None:
        client, found = stored_run(self.uri(root), run)
        listed = [
            file.path
            for file in client.list_artifacts(found.info.run_id, str(Path(name).parent).replace(".", ""))
        ]
        if name not in listed:
            return None
        (root / "down").mkdir(exist_ok=True)
        return Path(client.download_artifacts(found.info.run_id, name, str(root / "down"))).read_bytes()


class TestMlflow(MlflowSuite):
    @pytest.fixture
    def root(self, tmp_path: Path, empty_mlflow_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "root"
        folder.mkdir()
        (folder / "mlflow.db").write_bytes(empty_mlflow_store.read_bytes())
        monkeypatch.chdir(folder)
        return folder

    def uri(self, root: Path) -> str:
        return f"sqlite:///{root}/mlflow.db"


@pytest.mark.slow
class TestMlflowServer(MlflowSuite):
    """The same against a server of its own."""

    @pytest.fixture(scope="class")
    @classmethod
    def server(cls, tmp_path_factory: pytest.TempPathFactory, empty_mlflow_store: Path) -> Iterator[str]:
        folder = tmp_path_factory.mktemp("server")
        (folder / "mlflow.db").write_bytes(empty_mlflow_store.read_bytes())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--workers",
            "1",
        ]
        with open(folder / "log", "wb") as log:
            process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_for_port(process, port, folder / "log")
            yield f"http://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # nothing of it is needed; an orderly end takes it seconds
            process.wait(30)

    @pytest.fixture(autouse=True)
    def _address(self, server: str) -> None:
        self.address = server

    @pytest.fixture
    def run(self, tmp_path: Path) -> RunCard:
        (tmp_path / "run").mkdir()
        return card(tmp_path / "run", run_id=tmp_path.name)  # one server for all tests: a run for each

    def uri(self, root: Path) -> str:
        return self.address


def wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    while process.poll() is None:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    pytest.fail(log.read_text())


@pytest.fixture
def run(tmp_path: Path) -> RunCard:
    return card(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, empty_mlflow_store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a store."""
    (tmp_path / "mlflow.db").write_bytes(empty_mlflow_store.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_store_is_in_the_working_directory_and_artifacts_beside_it(folder: Path, run: RunCard) -> None:
    tracker = MlflowTracker(MlflowParams())
    tracker.open(run)
    (folder / "note.txt").write_text("here")
    tracker.log_artifact(folder / "note.txt", "note.txt")
    _, found = stored_run(f"sqlite:///{folder}/mlflow.db", run)
    assert found.info.run_name == run.run_id
    assert [path.read_text() for path in (folder / "mlruns").rglob("note.txt")] == ["here"]


def test_the_environment_variable_is_honored(
    folder: Path, run: RunCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "mlflow.db").rename(folder / "other.db")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///other.db")
    MlflowTracker(MlflowParams()).open(run)
    assert stored_run(f"sqlite:///{folder}/other.db", run)
    assert not (folder / "mlflow.db").exists()


def test_options_name_the_experiment_the_run_and_tags(folder: Path, run: RunCard) -> None:
    MlflowTracker(MlflowParams(experiment="mine", run_name="first", tags={"team": "blue"})).open(run)
    _, found = stored_run(f"sqlite:///{folder}/mlflow.db", run, "mine")
    assert found.info.run_name == "first"
    assert found.data.tags["team"] == "blue"
    assert found.data.tags["mlflow.source.git.commit"] == "0123abc"


def test_secrets_in_tags_do_not_reach_the_store(folder: Path, run: RunCard) -> None:
    tags = {
        "api_key": "sk-12345",
        "signing.private_key": "BEGIN\nsk-12345\nEND",
        "page": "https://u:sk-12345@host/x",
    }
    MlflowTracker(MlflowParams(tags=tags)).open(run)
    found = stored_run(f"sqlite:///{folder}/mlflow.db", run, run.experiment)[1].data.tags
    assert {key: found[key] for key in tags} == {
        "api_key": "***",
        "signing.private_key": "***",
        "page": "https://***@host/x",
    }
    assert b"sk-12345" not in (folder / "mlflow.db").read_bytes()


@pytest.mark.parametrize(
    ("status", "told"), [("completed", "FINISHED"), ("failed", "FAILED"), ("preempted", "KILLED")]
)
def test_the_status_is_told_and_taken_back_when_the_run_goes_on(
    folder: Path, run: RunCard, status: str, told: str
) -> None:
    tracker = MlflowTracker(MlflowParams())
    tracker.open(run)
    tracker.close(status)
    uri = f"sqlite:///{folder}/mlflow.db"
    assert stored_run(uri, run)[1].info.status == told
    MlflowTracker(MlflowParams()).open(run)
    assert stored_run(uri, run)[1].info.status == "RUNNING"


def test_times_are_those_of_the_journal(folder: Path, run: RunCard) -> None:
    tracker = MlflowTracker(MlflowParams())
    tracker.open(run)
    tracker.log([Point("loss", 1, 0.5, NOW + 0.25)])
    client, found = stored_run(f"sqlite:///{folder}/mlflow.db", run)
    assert client.get_metric_history(found.info.run_id, "loss")[0].timestamp == int(NOW * 1000) + 250


def test_a_dead_server_is_named_in_one_line(run: RunCard) -> None:
    tracker = MlflowTracker(MlflowParams(uri="http://127.0.0.1:9"))
    with pytest.raises(TrackerError, match=r"^MLflow at http://127\.0\.0\.1:9: .*refused[^\n]*$"):
        tracker.open(run)


def test_a_deleted_experiment_is_named(folder: Path, run: RunCard) -> None:
    tracker = MlflowTracker(MlflowParams())
    tracker.open(run)
    client, found = stored_run(f"sqlite:///{folder}/mlflow.db", run)
    client.delete_experiment(found.info.experiment_id)
    with pytest.raises(TrackerError, match="'suite' is deleted"):
        MlflowTracker(MlflowParams()).open(run)


def test_a_deleted_run_is_made_anew(folder: Path, run: RunCard) -> None:
    tracker = MlflowTracker(MlflowParams())
    tracker.open(run)
    tracker.log(line("loss", 1, 3))
    client, found = stored_run(f"sqlite:///{folder}/mlflow.db", run)
    client.delete_run(found.info.run_id)
    with pytest.raises(TrackerError, match="deleted"):
        tracker.log(line("loss", 4, 5))
    assert dict(MlflowTracker(MlflowParams()).open(run)) == {}


@pytest.mark.slow
def test_system_metrics_are_measured_while_it_is_open_if_asked_for(
    folder: Path, run: RunCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("psutil")
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.1")
    tracker = MlflowTracker(MlflowParams(system_metrics=True))
    tracker.open(run)
    tracker.log(line("loss", 1, 1))
    end = time.monotonic() + 60
    while "system/cpu_utilization_percentage" not in stored_run(uri(folder), run)[1].data.metrics:
        assert time.monotonic() < end, "nothing is measured"
        time.sleep(0.1)
    tracker.close("completed")
    assert not any(each.name == "SystemMetricsMonitor" for each in threading.enumerate())


def test_a_monitor_that_does_not_start_costs_no_metric(
    folder: Path, run: RunCard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.system_metrics.system_metrics_monitor", None)
    tracker = MlflowTracker(MlflowParams(system_metrics=True))
    tracker.open(run)
    tracker.log(line("loss", 1, 2))
    assert MlflowTracker(MlflowParams()).open(run) == {"loss": 2}


def uri(folder: Path) -> str:
    return f"sqlite:///{folder}/mlflow.db"
