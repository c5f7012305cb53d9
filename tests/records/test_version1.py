"""Runs that version 1 made (`version1.tar.xz`) can still be used."""

import logging
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

import trainwright
from late import keras_in_one_thread
from trainwright.cli.main import main

FRAMEWORKS = ["torch", "xgboost", "lightgbm", "catboost", "sklearn", "keras"]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("version1")
    with tarfile.open(Path(__file__).with_name("version1.tar.xz")) as file:
        # Python has this filter since 3.11.4 (and warns without one since 3.12).
        file.extraction_filter = getattr(tarfile, "data_filter", None)
        file.extractall(folder)
    return folder


@pytest.fixture
def runs_dir(archive: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(archive, tmp_path / "runs"))


def run_of(runs_dir: Path, experiment: str) -> trainwright.Run:
    (run,) = trainwright.list_runs(runs_dir, f"v1-{experiment}")
    return run


@pytest.mark.slow
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_completed_run_is_shown_reported_used_and_evaluated(
    framework: str, runs_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if framework == "keras":
        keras_in_one_thread()
    run = run_of(runs_dir, framework)
    assert main(["runs", "show", str(run.path)]) == 0
    assert str(run.digest) in capsys.readouterr().out
    assert "completed" in trainwright.report(run).read_text(encoding="utf-8")
    for metric, value in trainwright.evaluate(run, split="test").items():
        assert value == pytest.approx(run.metrics[metric], rel=1e-6), metric
    iris = load_iris(as_frame=True)
    iris.data.to_csv(tmp_path / "iris.csv", index=False)
    predictions = trainwright.predict(run, tmp_path / "iris.csv")
    assert len(predictions) == 150
    probabilities = predictions.filter(like="probability_").to_numpy()
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ["torch", "xgboost"])
def test_a_crashed_run_ends_as_the_run_that_was_not(
    framework: str, runs_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    crashed, whole = run_of(runs_dir, f"{framework}-crashed"), run_of(runs_dir, framework)
    assert crashed.status in ("failed", "crashed")
    with caplog.at_level(logging.INFO, "trainwright"):
        resumed = trainwright.resume(crashed)
    assert "from step 0" not in caplog.text
    assert "resuming run" in caplog.text
    if "processor was" in caplog.text:  # another make rounds otherwise, as the warning says
        flowers = load_iris().data
        outputs = [trainwright.load(run).predict_proba(flowers) for run in (resumed, whole)]
        assert np.allclose(*outputs, atol=1e-5)
        return
    assert resumed.digest == whole.digest
    assert resumed.metrics == whole.metrics


def test_all_runs_are_listed(runs_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "list", "--runs-dir", str(runs_dir)]) == 0
    listed = capsys.readouterr().out
    assert listed.count("completed") == len(FRAMEWORKS)
    assert (
        pd.Series([run.status for run in trainwright.list_runs(runs_dir)]).isin(["completed", "failed"]).all()
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "key"), [("torch", "training.max_steps"), ("lightgbm", "model.params.n_estimators")]
)
def test_a_completed_run_is_forked(framework: str, key: str, runs_dir: Path) -> None:
    run = run_of(runs_dir, framework)
    child = trainwright.fork(run, {key: 2 * run.result["steps"]})
    assert (child.status, child.result["steps"]) == ("completed", 2 * run.result["steps"])
    assert trainwright.reproduce(child).verdict == "identical"
