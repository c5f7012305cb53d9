"""Studies that are killed at random moments: their process, a worker, those that have joined, all, the server.

What was drawn is in the test's name; TRAINWRIGHT_SOAK_SEED draws others.
"""

import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest

import trainwright
from postgres_server import PostgresServer
from study_configs import TOY
from trainwright.records.listing import all_runs
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import FILE, Ending, read_trials
from trainwright.studies.tuning.tuning_view import Tuning
from trainwright.testing.warm import WarmProcess
from trainwright.trackers.mlflow import ENVIRONMENT
from warm_commands import warm

pytestmark = pytest.mark.timeout(1800)  # each restart imports all again, several at once
SEED = int(os.environ.get("TRAINWRIGHT_SOAK_SEED", "0"))
KILLS = 3  # of one study
LINES, PAUSE = 6, 0.4  # a kill comes at most so many lines of the log later, and so many seconds
PRUNERS: dict[str, Any] = {
    "hyperband": "hyperband",
    "median": {"type": "median", "n_startup_trials": 2, "n_warmup_steps": 8},
}
STUDY: dict[str, Any] = {
    **TOY,
    "training": {**TOY["training"], "epochs": 9},
    "tuning": {
        "metric": "val_loss",
        "trials": 12,
        "horizon": 4,
        "parallel": 2,
        "sampler": {"type": "tpe", "n_startup_trials": 4},
        "space": {
            "training.learning_rate": {"low": 1e-3, "high": 1.0, "log": True},
            "model.params.noise": {"low": 0.0, "high": 0.5},
        },
    },
}


def config_of(pruner: str, **tuning: Any) -> dict[str, Any]:
    return {**STUDY, "tuning": {**STUDY["tuning"], "pruner": PRUNERS[pruner], **tuning}}


@pytest.fixture(scope="module", params=PRUNERS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Tuning]:
    """A study of one process that nothing interrupted."""
    config = config_of(request.param, parallel=1)
    study = trainwright.tune(config, runs_dir=tmp_path_factory.mktemp("runs"))
    assert "pruned" in set(study.trials.status), "nothing is pruned otherwise"
    return request.param, study


def table(study: Tuning) -> list[Any]:
    """The trials, without what the clock and the random names of runs are in."""
    return [
        (
            one.number,
            one.params,
            one.same_as,
            one.running,
            [(stint.number, timeless(stint.ending)) for stint in one.stints],
        )
        for one in read_trials(study.path)
    ]


def timeless(ending: Ending | None) -> Ending | None:
    return ending and ending._replace(seconds=0.0)


class Processes:
    """The processes of a study: who leads it, and who has joined."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.all: dict[int, WarmProcess] = {}

    @property
    def study(self) -> Path | None:
        """The study's folder, once it is there."""
        return next((path.parent for path in self._folder.glob(f"runs/*/tune-*/{FILE}")), None)

    def start(self, number: int) -> None:
        """Start the process that begins the study, or one that goes on with it: one that joins, if one lives."""
        words = ["tune", "config.json"] if self.study is None else ["resume", self.study.name]
        if self.study is not None and self.all:
            words[0] = "work"
        processes = warm("signaller", number=number)
        self.all[number] = self._stack.enter_context(
            processes.started("-", "-", "0", *words, "--runs-dir", "runs", folder=self._folder)
        )
        while words[0] == "resume" and not RunDir(self.study).is_locked():
            if self.all[number].has_ended():  # `end` says why, if there was more to do
                break

    def kill(self, number: int, *, with_workers: bool = False) -> None:
        """Kill a process, and its workers with it."""
        process = self.all.pop(number)
        workers = self.workers(process) if with_workers else []
        process.kill()
        for worker in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                worker.kill()

    @staticmethod
    def workers(process: WarmProcess) -> list[psutil.Process]:
        """The worker processes of one that leads."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(process.pid).children(recursive=True)
        return []

    def until_written(self, more: int) -> None:
        """Wait until the log has more lines, or all have ended."""
        wanted = self._lines() + more
        while self._lines() < wanted and not all(one.has_ended() for one in self.all.values()):
            pass

    def _lines(self) -> int:
        return (self.study / FILE).read_bytes().count(b"\n") if self.study else 0


def kill_some(draw: random.Random, processes: Processes, whom: str, folder: Path) -> None:
    """Kill a process, or several, at a moment that is drawn, and start what is missing."""
    processes.until_written(draw.randint(0, LINES))
    time.sleep(draw.uniform(0, PAUSE))
    number = draw.choice(sorted(processes.all))
    if whom == "a worker":
        if workers := processes.workers(processes.all[number]):
            with contextlib.suppress(psutil.NoSuchProcess):
                draw.choice(workers).kill()
        return
    for one in sorted(processes.all) if whom == "everything" else [number]:
        processes.kill(one, with_workers=whom == "everything")
    for one in (1, 2):
        if one not in processes.all and (one == 1 or (folder / "joined").exists()):
            processes.start(one)


@contextlib.contextmanager
def running(folder: Path, config: dict[str, Any], *, joined: bool) -> Iterator[Processes]:
    """A study that has begun, with another process that has joined it or without; it ends in the end."""
    (folder / "config.json").write_text(json.dumps(config))
    with contextlib.ExitStack() as stack:
        processes = Processes(folder, stack)
        processes.start(1)
        while processes.study is None:  # else a kill may come before it has a name
            assert not processes.all[1].has_ended(), processes.all[1].end()
        if joined:
            (folder / "joined").touch()
            processes.start(2)
        yield processes
        for process in processes.all.values():
            done = process.end()
            assert done.returncode == 0, done.stderr


def check(folder: Path, whole: Tuning) -> Tuning:
    """The study is the one that nothing interrupted, and no run was trained that is not in it."""
    (path,) = folder.glob("runs/*/tune-*")
    study = Tuning(path)
    assert study.status == "completed"
    assert table(study) == table(whole)
    assert study.digest == whole.digest
    trained = {run.id for run in all_runs(folder / "runs") if run.attempts()}
    assert trained == {one.run_id for one in read_trials(path)}
    return study


@pytest.mark.parametrize("joined", [False, True], ids=["alone", "joined"])
@pytest.mark.parametrize("number", range(2))
def test_a_study_that_is_killed_again_and_again(
    number: int, joined: bool, whole: tuple[str, Tuning], tmp_path: Path
) -> None:
    """Three kills of each of eight studies."""
    pruner, uninterrupted = whole
    draw = random.Random(f"{SEED} {number} {joined} {pruner}")
    with running(tmp_path, config_of(pruner), joined=joined) as processes:
        for _ in range(KILLS):
            kill_some(draw, processes, draw.choice(["a process", "a worker", "everything"]), tmp_path)
    check(tmp_path, uninterrupted)


def test_the_server_of_its_storage_is_killed_too(
    whole: tuple[str, Tuning],
    postgres: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pruner, uninterrupted = whole
    monkeypatch.setenv("DATABASE_PASSWORD", "open%20sesame")
    draw = random.Random(f"{SEED} server {pruner}")
    config = config_of(pruner, storage=postgres.url("${env:DATABASE_PASSWORD}"))
    with running(tmp_path, config, joined=False) as processes:
        for _ in range(2):
            processes.until_written(draw.randint(0, LINES))
            postgres.kill()
            kill_some(draw, processes, draw.choice(["a process", "a worker", "everything"]), tmp_path)
            postgres.start()
    study = check(tmp_path, uninterrupted)
    trainwright.resume_study(
        str(study.path)
    )  # writes what the server lacks: the study waited for it for 10 s only
    theirs = optuna.load_study(study_name=study.id, storage=postgres.url())
    ours = read_trials(study.path)
    assert [one.number for one in theirs.trials] == [one.number for one in ours]
    completed = {one.number: one.value for one in theirs.trials if one.state.name == "COMPLETE"}
    endings = [(one.number, one.ending) for one in ours if one.ending and one.ending.status == "completed"]
    assert completed == {number: ending.value for number, ending in endings}


@pytest.mark.skipif(find_spec("mlflow") is None, reason="MLflow is not installed")
def test_mlflow_has_the_study_and_each_trial_once(
    empty_mlflow_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is killed twice, the processes that feed MLflow, too."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    shutil.copy(empty_mlflow_store, tmp_path / "mlflow.db")
    uri, draw = f"sqlite:///{tmp_path / 'mlflow.db'}", random.Random(f"{SEED} mlflow")
    tracking = [{"type": "mlflow", "params": {"uri": uri, "log_model": False}}]
    config = config_of("median", trials=5) | {"tracking": tracking}
    with running(tmp_path, config, joined=False) as processes:
        for _ in range(2):
            kill_some(draw, processes, "everything", tmp_path)
    (path,) = tmp_path.glob("runs/*/tune-*")
    client = import_module("mlflow").MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    by_name = {run.info.run_name: run for run in found}
    trials = read_trials(path)
    assert sorted(run.info.run_name for run in found) == sorted([path.name, *(one.run_id for one in trials)])
    assert by_name[path.name].info.status == "FINISHED"
    for trial in trials:
        run = by_name[trial.run_id]
        assert run.data.tags["mlflow.parentRunId"] == by_name[path.name].info.run_id
        assert run.info.status == ("FINISHED" if trial.ending.status == "completed" else "KILLED")  # type: ignore[union-attr]
        values = client.get_metric_history(run.info.run_id, "val_loss")
        assert [(one.step, one.value) for one in values] == list(trial.ending.curve)  # type: ignore[union-attr]
