"""The number of threads that `OMP_NUM_THREADS` asks for."""

import logging
from pathlib import Path
from typing import Any

import pytest

import trainwright
from small_runs import SMALL
from trainwright.frameworks.sklearn.process import reset_settings, settings_kept, thread_pools
from trainwright.process.environ import asked_threads, threads_of_processes
from trainwright.records.run_dir import RunDir
from trainwright.runs.run import Run

TRAINING = {key: value for key, value in SMALL["training"].items() if key != "threads"}
FREE: dict[str, Any] = {**SMALL, "training": TRAINING}
DATA: dict[str, Any] = {"experiment": {"name": "small", "seed": 3}, "data": {"type": "iris"}}


def threads(run: Run) -> tuple[int, int]:
    manifest = RunDir(run.path).require_manifest()
    return manifest.environment.threads, manifest.placement["training.threads"]


@pytest.mark.parametrize(
    "config",
    [
        FREE,
        DATA | {"model": {"type": "lightgbm"}, "training": {"max_steps": 3}},
        DATA | {"model": {"type": "xgboost"}, "training": {"max_steps": 3}},
        DATA | {"model": {"type": "catboost"}, "training": {"max_steps": 3}},
        DATA | {"model": {"type": "random_forest", "n_estimators": 3}},
    ],
    ids=["torch", "lightgbm", "xgboost", "catboost", "sklearn"],
)
def test_it_is_obeyed(config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the size of the steps, which take one thread without it; a resume keeps it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads(trainwright.train(config, runs_dir=tmp_path)) == (2, 2)


@pytest.mark.parametrize("text", ["99999999999999999999", "9" * 5000, "1025", "0", "-2", "two"])
def test_what_is_no_number_of_threads_asks_for_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither for a run, nor for the libraries of scikit-learn."""
    monkeypatch.setenv("OMP_NUM_THREADS", text)
    assert asked_threads() is None
    with settings_kept(thread_pools()):
        reset_settings()


def test_the_config_wins_with_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    with caplog.at_level(logging.INFO):
        assert threads(trainwright.train(SMALL, runs_dir=tmp_path)) == (1, 1)
    assert "1 threads, as training.threads says, and not the 2 of OMP_NUM_THREADS" in caplog.text


def test_trials_obey_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    space = {"training.learning_rate": [0.01, 0.02]}
    tuned = FREE | {"tuning": {"metric": "val_loss", "trials": 2, "sampler": "random", "space": space}}
    study = trainwright.tune(tuned, runs_dir=tmp_path)
    assert {threads(run) for run in trainwright.list_runs(study.path.parent.parent)} == {(2, 2)}


@pytest.mark.slow
@pytest.mark.parametrize(("given", "wanted"), [("2", 2), (None, 1)])
def test_processes_obey_it(
    given: str | None, wanted: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, what torch is given for them asks for nothing: the steps are small."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    run = trainwright.train(FREE, {"distributed.nproc": 2}, runs_dir=tmp_path)
    assert threads(run) == (wanted, wanted)


@pytest.mark.parametrize(
    ("variables", "asked"),
    [
        ({}, None),
        ({"OMP_NUM_THREADS": "3"}, 3),
        ({"OMP_NUM_THREADS": "3,2"}, 3),
        ({"OMP_NUM_THREADS": "many"}, None),
        ({"OMP_NUM_THREADS": "0"}, None),
        ({"OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "x"}, None),
        ({"OMP_NUM_THREADS": "2", "TORCHELASTIC_RUN_ID": "x"}, 2),
    ],
)
def test_what_is_asked_for(
    variables: dict[str, str], asked: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert asked_threads() == asked
    if "TORCHELASTIC_RUN_ID" not in variables:
        for name, value in threads_of_processes().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
        assert asked_threads() == asked
