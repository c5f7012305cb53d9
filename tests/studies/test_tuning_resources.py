"""What the processes of a trial compute with: threads, GPUs, and how many processes there are."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import trainwright
from small_runs import SMALL
from trainwright.config import load as load_config
from trainwright.errors import ConfigError, InputError
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import read_trials
from trainwright.runs import wiring
from trainwright.runs.catalog import Catalog
from trainwright.studies.tuning.trial_configs import Threads, TrialData, shares_of_gpus
from trainwright.studies.tuning.tuning_view import Tuning
from trainwright.studies.tuning.workers import _Worker

UNTHREADED = {key: value for key, value in SMALL["training"].items() if key != "threads"} | {"max_steps": 8}
TUNED: dict[str, Any] = {
    **SMALL,
    "training": UNTHREADED,
    "tuning": {"trials": 2, "sampler": "grid", "space": {"model.params.hidden": [[8], [40_000, 40_000]]}},
}


@pytest.fixture
def six_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(6)))


def with_tuning(**keys: Any) -> dict[str, Any]:
    return {**TUNED, "tuning": {**TUNED["tuning"], **keys}}


def settings_of(study: Tuning) -> Mapping[str, Any]:
    return RunDir(study.path).read_json("settings.json")


def threads_of(study: Tuning) -> list[int | None]:
    """The threads of each trial, as its config says."""
    paths = [study.path.parent / trial.run_id / "config.yaml" for trial in read_trials(study.path)]
    return [load_config(path, adapters=Catalog()).config.training.threads for path in paths]


def test_trials_of_small_steps_have_one_thread(six_processors: None, tmp_path: Path) -> None:
    """A step of 16 rows: 4 x 8 weights, and 40,000 x 40,000; `train` decides the same."""
    small = {"space": {"model.params.hidden": [[8]]}}
    study = trainwright.tune(with_tuning(**small), runs_dir=tmp_path)
    assert threads_of(study) == [1]
    assert settings_of(study)["threads"] == 6
    alone = trainwright.train(
        SMALL | {"training": UNTHREADED}, {"model.params.hidden": [8]}, runs_dir=tmp_path
    )
    assert alone.manifest["environment"]["threads"] == 1

    base = load_config(TUNED, adapters=Catalog())
    data = TrialData(base, [], lambda resolved: wiring.load_data(resolved.config), lambda _: None)
    threads = Threads(3, True, data)
    sizes = ([8], [40_000, 40_000])
    given = [load_config(TUNED, {"model.params.hidden": list(size)}, Catalog()) for size in sizes]
    assert [threads.of(resolved) for resolved in given] == [1, 3]


def test_the_data_of_a_trial_are_asked_where_the_space_has_keys_of_them(
    six_processors: None, tmp_path: Path
) -> None:
    """The rows have gaps, which only the choices fill; a choice that does not is the failure of its trial."""
    table = tmp_path / "gaps.csv"
    table.write_text("a,b\n" + "".join(f"{i if i % 5 else ''},{i % 2}\n" for i in range(100)))
    config = {
        "data": {"path": str(table), "target": "b", "task": "classification"},
        "model": {"type": "mlp", "params": {"hidden": [4]}},
        "training": {"max_steps": 4},
        "tuning": {"sampler": "grid", "space": {"data.impute": [None, "median", "mean"]}},
    }
    study = trainwright.tune(config, runs_dir=tmp_path)
    assert [trial.ending.status for trial in read_trials(study.path) if trial.ending] == [
        "failed",
        "completed",
        "completed",
    ]
    assert threads_of(study) == [6, 1, 1]


def test_cpu_is_the_number_of_threads(six_processors: None, tmp_path: Path) -> None:
    given = with_tuning(resources={"cpu": 2}, space={"model.params.hidden": [[8]]})
    assert threads_of(trainwright.tune(given, runs_dir=tmp_path)) == [2]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"resources": {"gpu": 1}},
            "tuning.resources.gpu: a trial needs 1 GPUs, but this machine has 0",
        ),
        (
            {"resources": {"gpu": 1, "nproc": 2}, "parallel": 2},
            "2 trials at once need 4 GPUs, but this machine has 3, by CUDA_VISIBLE_DEVICES",
        ),
    ],
)
def test_gpus_that_are_not_there(
    change: dict[str, Any], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2" if "parallel" in change else "")
    with pytest.raises(InputError, match=problem):
        trainwright.tune(with_tuning(**change), runs_dir=tmp_path)
    assert not list(tmp_path.rglob("tune-*"))


def test_each_worker_sees_its_own_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7,-1,8")
    given = with_tuning(resources={"gpu": 1, "nproc": 2}, parallel=2)
    tuning = load_config(given, adapters=Catalog()).config.tuning
    assert tuning is not None
    assert shares_of_gpus(tuning) == ["4,5", "6,7"]
    started: list[Any] = []

    def start(command: list[str], **how: Any) -> SimpleNamespace:
        started.append(how["env"])
        return SimpleNamespace(stdin=io.BytesIO())

    monkeypatch.setattr("subprocess.Popen", start)
    os.close(_Worker.start(30, "6,7").process.messages)
    assert started[0]["CUDA_VISIBLE_DEVICES"] == "6,7"


@pytest.mark.parametrize(
    ("change", "training", "problem"),
    [
        (
            {"resources": {"gpu": 1}},
            {"device": "cpu"},
            "tuning.resources.gpu: is 1, but training.device is cpu",
        ),
        ({"resources": {"cpu": 2}}, {"threads": 1}, "tuning.resources.cpu: is 2, but training.threads is 1"),
        (
            {"resources": {"nproc": 2}, "pruner": "median"},
            {},
            "tuning.pruner: is median, which judges a trial within",
        ),
        ({"resources": {"nproc": 3}}, {}, "3 is not a power of two"),
        ({"resources": {"gpus": 1}}, {}, "unknown key"),
    ],
)
def test_resources_that_do_not_go_with_the_rest(
    change: dict[str, Any], training: dict[str, Any], problem: str
) -> None:
    given = with_tuning(**change)
    with pytest.raises(ConfigError, match=problem):
        trainwright.check({**given, "training": {**UNTHREADED, **training}})


@pytest.mark.slow
def test_a_trial_of_two_processes_has_the_bits_of_a_run_of_two(tmp_path: Path) -> None:
    given = with_tuning(resources={"cpu": 1, "nproc": 2}, space={"training.learning_rate": [0.02]})
    study = trainwright.tune(given, {"tuning.trials": 1}, runs_dir=tmp_path)
    run = study.best_run
    assert run is not None
    assert RunDir(run.path).attempts()[0].processes == 2
    own = {"distributed.virtual.data": 2, "training.threads": 1, "training.learning_rate": 0.02}
    alone = trainwright.train(SMALL | {"training": UNTHREADED}, own, runs_dir=tmp_path)
    assert alone.digest == run.digest
