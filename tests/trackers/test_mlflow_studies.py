"""Studies in MLflow: a run of their own, below which the runs of their trials are."""

import shutil
import threading
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import trainwright
from late import Late
from trainwright.errors import TrackerError
from trainwright.testing.tracker_suite import card
from trainwright.trackers.base import StudyCard
from trainwright.trackers.mlflow import ENVIRONMENT, MlflowParams, MlflowTracker

pytestmark = pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")
mlflow: Any = Late(lambda: import_module("mlflow"))
PARENT = "mlflow.parentRunId"


@pytest.fixture
def uri(empty_mlflow_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    shutil.copy(empty_mlflow_store, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def runs(uri: str, experiment: str) -> list[Any]:
    client = mlflow.MlflowClient(uri)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return list(client.search_runs([found.experiment_id], order_by=["attributes.start_time"]))


def test_trials_are_below_the_one_run_of_their_study(uri: str, tmp_path: Path) -> None:
    """Two feeders of two trials begin at once."""
    experiment = tmp_path / "suite"
    (experiment / "tune-1").mkdir(parents=True)
    (experiment / "tune-1" / "report.html").write_text("<p>all of them</p>")
    trackers = [MlflowTracker(MlflowParams(uri=uri, tags={"team": "blue"})) for _ in range(2)]
    cards = [
        card(experiment)._replace(run_id=f"run-{i}", run_dir=experiment / f"run-{i}", study="tune-1")
        for i in range(2)
    ]
    experiment_name = cards[0].experiment
    mlflow.MlflowClient(uri).create_experiment(experiment_name, artifact_location=str(tmp_path / "artifacts"))
    threads = [
        threading.Thread(target=tracker.open, args=(one,))
        for tracker, one in zip(trackers, cards, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trackers[0].open(cards[0])  # of another attempt

    by_name = {run.info.run_name: run for run in runs(uri, experiment_name)}
    assert sorted(by_name) == ["run-0", "run-1", "tune-1"]
    study = by_name["tune-1"]
    assert [by_name[name].data.tags[PARENT] for name in ("run-0", "run-1")] == [study.info.run_id] * 2
    assert (study.info.status, study.data.tags["team"]) == ("RUNNING", "blue")
    assert PARENT not in study.data.tags

    ended = StudyCard(
        "tune-1", experiment_name, experiment / "tune-1", "completed", {"val_f1": 0.5}, {"a": "b"}
    )
    MlflowTracker(MlflowParams(uri=uri)).end_study(ended)
    study = mlflow.MlflowClient(uri).get_run(study.info.run_id)
    assert (study.info.status, study.data.metrics, study.data.tags["a"]) == ("FINISHED", {"val_f1": 0.5}, "b")
    assert [file.path for file in mlflow.MlflowClient(uri).list_artifacts(study.info.run_id)] == [
        "report.html"
    ]
    assert len(runs(uri, experiment_name)) == 3


def test_only_the_best_trial_of_a_search_is_registered(
    uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "customers").mkdir()
    monkeypatch.chdir(tmp_path / "customers")
    settings = {
        "experiment": {"name": "search"},
        "data": {"type": "iris"},
        "model": {"type": "decision_tree"},
        "training": {"threads": 1},
        "tuning": {"metric": "val_log_loss", "trials": 2, "space": {"model.params.max_depth": [1, 3]}},
        "tracking": [{"type": "mlflow", "uri": uri, "registered_model_name": "trees"}],
    }
    study = trainwright.tune(settings, runs_dir=tmp_path / "runs")
    client = mlflow.MlflowClient(uri)
    (version,) = client.search_model_versions("name = 'trees'")
    assert version.tags["trainwright.run_id"] == study.result["best"]["run_id"]
    assert len(client.search_logged_models([client.get_experiment_by_name("search").experiment_id])) == 2


def test_a_server_that_is_away_is_an_error_of_the_tracker(tmp_path: Path, uri: str) -> None:
    away = MlflowTracker(MlflowParams(uri="http://127.0.0.1:1"))
    with pytest.raises(TrackerError, match="MLflow at http"):
        away.end_study(StudyCard("tune-1", "suite", tmp_path, "completed", {}, {}))
