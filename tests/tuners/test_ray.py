"""Ray Tune decides, and each trial is a run of ours: the same bits as without Ray, whatever is killed."""

import errno
import importlib.util
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest

import loopback
import trainwright
from trainwright.errors import CheckpointError, ConfigError, InputError, MissingExtraError, TrainingError
from trainwright.records.journal import evaluations, read
from trainwright.records.manifest import Parent
from trainwright.records.run_dir import RunDir
from trainwright.records.trials import LoggedTrial, TrialLog, read_log, read_trials
from trainwright.runs.run import Run
from trainwright.studies.tuning import tuner_worker
from trainwright.studies.tuning.stints import Stint
from trainwright.studies.tuning.tuner_worker import WorkerTrainer
from trainwright.studies.tuning.tuning_view import Tuning
from trainwright.testing.tuner_suite import TunerSuite
from trainwright.tuners.base import Point, StartedTrial
from trainwright.tuners.ray import RayTuner, folders
from trainwright.tuners.ray.folders import own_folder
from warm_commands import warm

pytestmark = [
    pytest.mark.services,
    pytest.mark.slow,
    pytest.mark.timeout(1200),  # Ray starts in a minute where the machine is busy
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]
CONFIG: dict[str, Any] = {
    "experiment": {"name": "rays", "seed": 3},
    "data": {"path": "data.npz"},
    "model": {"type": "mlp", "hidden": [8], "dropout": 0.1},
    "training": {"max_steps": 80, "batch_size": 16, "threads": 1, "learning_rate": 0.01},
    "evaluation": {"every_n_steps": 7},
    "checkpoint": {"every_n_steps": 5, "every_n_minutes": None, "metric": "val_loss", "mode": "min"},
}
TOY = {**CONFIG, "model": {"type": "toy", "params": {"noise": 0.1}}}  # its processes start fast
SPACE: dict[str, Any] = {
    "training.learning_rate": {"low": 1e-3, "high": 0.1, "log": True},
    "training.batch_size": [8, 16],
}
TUNER: dict[str, Any] = {"type": "ray", "num_cpus": 1, "scheduler": "fifo"}


def config_of(**tuning: Any) -> dict[str, Any]:
    return {**CONFIG, "tuning": {"trials": 2, "space": SPACE, "tuner": TUNER, **tuning}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with data, in which this process works, too."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(160, 4)).astype(np.float32)
    target = (features @ np.array([1.0, -2.0, 0.5, 0.0]) > 0).astype(np.int64)
    np.savez(tmp_path / "data.npz", features=features, target=target)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runs_of(folder: Path) -> Path:
    return folder / "runs" / "rays"


def until(happened: Callable[[], Any]) -> Any:
    end = time.monotonic() + 900
    while not (value := happened()):
        assert time.monotonic() < end, "it never happens"
        time.sleep(0.01)
    return value


@pytest.fixture
def started(folder: Path) -> Callable[..., Any]:
    """Starts `trainwright WORDS` in a network of its own."""
    if not loopback.is_permitted():
        pytest.skip("no network of its own is permitted here, and Ray listens on all interfaces")
    processes = warm("on_loopback", folder=Path(__file__).parent, environment=_path())
    return lambda *words: processes.started(*map(str, words), folder=folder)


def _path() -> dict[str, str]:
    here = Path(__file__).parent
    return {"PYTHONPATH": os.pathsep.join([str(here), str(here.parent), os.environ.get("PYTHONPATH", "")])}


def tuned(folder: Path, started: Callable[..., Any], *, fails: bool = False, **tuning: Any) -> Tuning:
    """A study that nothing interrupted; `fails`: its trials have all failed."""
    (folder / "config.json").write_text(json.dumps(config_of(**tuning)))
    with started("tune", "config.json", "--runs-dir", "runs") as process:
        done = process.end()
    assert done.returncode == int(fails), done.stderr
    return study_in(folder)


def study_in(folder: Path) -> Tuning:
    (path,) = runs_of(folder).glob("tune-*")
    return Tuning(path)


def trained_alone(trial: LoggedTrial, folder: Path) -> Run:
    """The run of the parameters of a trial, without a study."""
    return trainwright.train(CONFIG, trial.params, runs_dir=folder / "alone")


def check_trials(study: Tuning, folder: Path) -> list[LoggedTrial]:
    """The completed trials are what the same parameters lead to without Ray."""
    trials = read_trials(study.path)
    for trial in trials:
        assert trial.ending is not None
        if trial.ending.status == "completed" and RunDir(study.path.parent / trial.run_id).lineage() is None:
            alone = trained_alone(trial, folder)
            assert trial.ending.digest == alone.digest
            values = [(row["step"], row["val_loss"]) for row in alone.history() if "val_loss" in row]
            assert list(trial.ending.curve) == values
    return trials


def worker_of(run: Path) -> psutil.Process | None:
    """The process that trains a run, once it has made two evaluations."""
    path = RunDir(run)
    if path.status() != "running" or not path.journal.exists() or len(evaluations(read(path.journal))) < 2:
        return None
    try:
        return psutil.Process(path.attempts()[-1].pid)
    except psutil.NoSuchProcess:
        return None


def first_run(folder: Path) -> Path | None:
    """The first run of a study, once it is there."""
    for study in (path.parent for path in runs_of(folder).glob("tune-*/study.json")):
        assert Tuning(study).status != "failed", (study / "study.json").read_text()
    return next((config.parent for config in runs_of(folder).glob("2*/config.yaml")), None)


def killed_actor(folder: Path) -> Path:
    """Kill the actor that trains the first run, and return the run."""
    run = until(lambda: first_run(folder))
    actor = until(lambda: worker_of(run)).parent()
    assert "ray::" in " ".join(actor.cmdline()), actor.cmdline()
    actor.kill()
    return Path(run)


@pytest.mark.soak
def test_a_killed_actor_is_started_again_and_its_run_has_the_same_bits(
    folder: Path, started: Callable[..., Any]
) -> None:
    (folder / "config.json").write_text(json.dumps(config_of()))
    with started("tune", "config.json", "--runs-dir", "runs") as process:
        run = killed_actor(folder)
        done = process.end()
    assert done.returncode == 0, done.stderr
    study = study_in(folder)
    trials = check_trials(study, folder)
    assert [trial.ending.status for trial in trials if trial.ending] == ["completed"] * 2
    assert len(RunDir(run).attempts()) > 1, "it was not killed while it trained"
    assert RunDir(run).require_manifest().parent == Parent(run_id=study.id, relation="tune")
    assert not (study.path / "ray").exists()
    assert "ray" not in done.stderr.lower().replace("rays", ""), "Ray is quiet"
    with pytest.raises(InputError, match="each trial is: trainwright reproduce RUN"):
        trainwright.reproduce_study(study.id, runs_dir=folder / "runs")
    assert trainwright.reproduce(run.name, runs_dir=folder / "runs").verdict == "identical"


@pytest.fixture
def begun(folder: Path) -> StartedTrial:
    run = trainwright.create(TOY, runs_dir="runs")
    return StartedTrial(0, str(run.path), {})


@pytest.fixture
def trainer(folder: Path) -> Iterator[WorkerTrainer]:
    one = WorkerTrainer("tune-1", "val_loss", "min", str(folder), 30)
    yield one
    one.close()


def test_a_trainer_reports_each_evaluation_once_whatever_dies(
    begun: StartedTrial, trainer: WorkerTrainer, folder: Path
) -> None:
    alone = trainwright.train(TOY, runs_dir=folder / "alone")
    values = [(row["step"], row["val_loss"]) for row in alone.history() if "val_loss" in row]
    seen, at = [], Point()
    for turn in range(1, 100):
        if turn == 4:  # as Ray does with a trial that waits for others
            assert trainer.commit(begun, at) == at
            assert RunDir(Path(begun.run)).status() == "paused"
        if turn == 6:
            psutil.Process(RunDir(Path(begun.run)).attempts()[-1].pid).kill()
            with pytest.raises(TrainingError, match="SIGKILL"):
                trainer.go_on(begun, at)
            seen, at = [], Point()  # another actor knows nothing
        report = trainer.go_on(begun, at)
        at = report.point
        assert report.value is not None
        seen.append((at.step, report.value))
        if report.ended:
            break
    assert seen == values
    assert at.evaluation == len(values)
    assert Run(RunDir(Path(begun.run))).digest == alone.digest


def test_trials_of_one_session_have_the_same_data(folder: Path) -> None:
    """The first trial has been trained when the file changes; the trainer itself knows of no run."""
    study, paths = folder / "runs" / "rays" / "tune-1", []
    for number in range(2):
        paths.append(trainwright.create(TOY, runs_dir="runs").path)
        study.mkdir(exist_ok=True)
        log = TrialLog(study)
        log.begin(LoggedTrial(number, {}, paths[-1].name))
        log.close()
    one = WorkerTrainer("tune-1", "val_loss", "min", str(folder), 30, shares_inputs=True)
    try:
        assert one.go_on(StartedTrial(0, str(paths[0]), {}), Point()).value is not None
        one.leave()
        with np.load("data.npz") as arrays:
            np.savez("data.npz", features=-arrays["features"], target=arrays["target"])
        with pytest.raises(InputError, match="data: train split"):
            one.go_on(StartedTrial(1, str(paths[1]), {}), Point())
    finally:
        one.close()


def test_a_trainer_tells_a_full_disk_from_a_failure(
    begun: StartedTrial, trainer: WorkerTrainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def read_whole(self) -> dict[str, Any]:
            return {"status": "failed", "error": "no room\nat all", "is_from_outside": True}

        def send(self, message: Any) -> None: ...

        def end(self) -> None: ...

    monkeypatch.setattr(trainer, "_worker", Full())
    with pytest.raises(CheckpointError, match=r"^no room at all$"):
        trainer.go_on(begun, Point())
    gone = {"status": "failed", "error": "rows.csv: no file", "is_from_outside": True, "is_input": True}
    monkeypatch.setattr(Full, "read_whole", lambda self: gone)
    with pytest.raises(InputError, match=r"^rows.csv: no file$"):
        trainer.go_on(begun, Point())
    monkeypatch.setattr(trainer, "_worker", None)
    assert trainer.go_on(begun, Point()).value is not None


def test_the_process_that_trains_tells_a_full_disk_from_a_failure(
    begun: StartedTrial, monkeypatch: pytest.MonkeyPatch
) -> None:
    stints = b"".join(
        json.dumps(Stint(number, [Path(begun.run)], "tune-1", "val_loss", "min").to_json()).encode() + b"\n"
        for number in range(2)
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"[]\n" + stints)))
    errors: list[Exception] = [OSError(errno.ENOSPC, "No space left on device"), TrainingError("NaN")]

    def train(stint: Stint, **how: Any) -> str:
        raise errors[stint.trial]

    monkeypatch.setattr(tuner_worker, "train", train)
    read, write = os.pipe()
    tuner_worker.serve(write)
    os.close(write)
    with open(read, "rb") as answers:
        told = [json.loads(line) for line in answers]
    assert [(one["status"], one["is_from_outside"]) for one in told] == [("failed", True), ("failed", False)]


@pytest.mark.parametrize(
    ("last", "is_from_outside", "said"),
    [
        ("trainwright.errors.InputError: rows.csv is gone", True, "rows.csv is gone"),
        ("trainwright.errors.CheckpointError: step 3 cannot be written", True, "step 3 cannot be written"),
        ("OSError: [Errno 28] No space left on device: 'x'", True, "[Errno 28] No space left on device: 'x'"),
        ("FileNotFoundError: [Errno 2] No such file: 'x'", False, "its process died"),
        ("trainwright.errors.TrainingError: it has ended by SIGKILL", False, "it has ended by SIGKILL"),
    ],
)
def test_a_full_disk_under_ray_is_no_result_of_a_trial(
    last: str, is_from_outside: bool, said: str, tmp_path: Path
) -> None:
    """Ray keeps a traceback in a file; the copy in its storage is empty where the disk is full."""
    from trainwright.tuners.ray.session import _Hooks

    class Told:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *args, **named: called.append((name, *args, *named.values()))

    called: list[Any] = []
    (tmp_path / "error.txt").write_text(f"Failure # 1\nray::actor()\n  File x\n{last}\n")
    config = {"trial": {"number": 5, "run": "x", "params": {}, "start": [0, 0]}}
    trial = SimpleNamespace(config=config, num_failures=4, error_file=str(tmp_path / "error.txt"))
    _Hooks(Told()).on_trial_error(trial=trial)  # type: ignore[arg-type]
    full = ("cannot_go_on", 5, said, *([True] if "InputError" in last else []))
    assert called[0] == (
        full if is_from_outside else ("end", 5, f"Ray has begun it 4 times, the last time {said}")
    )


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tuner": {"type": "ray", "scheduler": "ashaa"}}, "tuning.tuner.*asha"),
    ({"tuner": {"type": "rey"}}, "did you mean 'ray'"),
    ({"tuner": {"type": "ray", "shedule": "asha"}}, "shedule"),
    ({"parallel": 2}, "tuning.parallel: tuner ray runs as many trials at once as fit"),
    ({"resources": {"nproc": 2}}, "tuning.resources.nproc: tuner ray judges a trial within its process"),
    ({"order": "free"}, "tuning.order: tuner ray decides from whatever has ended first"),
    ({"horizon": 2}, "tuning.horizon: tuner ray decides from whatever has ended first"),
    ({"pruner": "hyperband"}, "tuning.pruner: tuner ray decides by itself"),
    ({"sampler": "tpe"}, "tuning.sampler: tuner ray proposes trials by itself"),
    ({"folds": 2}, "tuning.folds: tuner ray judges one run"),
    ({"metric": ["val_loss", "parameters"]}, "searches by one metric"),
    ({"tuner": {"type": "ray", "address": "auto", "num_cpus": 2}}, "keep one"),
    ({"tuner": {"type": "ray", "scheduler": "pbt", "search": "optuna"}}, "pbt proposes parameters by itself"),
    (
        {"tuner": {"type": "ray", "scheduler": "pbt"}, "space": {"model.hidden": [[8], [16]]}},
        "such as training.learning_rate",
    ),
]


@pytest.mark.parametrize(("tuning", "said"), WRONG)
def test_what_ray_cannot_do_is_refused_before_anything_runs(
    tuning: dict[str, Any], said: str, folder: Path
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        trainwright.check(config_of(**tuning))
    assert len(str(caught.value).splitlines()) <= 5


def test_conditions_are_refused_where_ray_knows_none(folder: Path) -> None:
    space = {
        "training.optimizer.type": ["adamw", "sgd"],
        "training.optimizer.momentum": {"low": 0.0, "high": 0.9, "when": {"training.optimizer.type": "sgd"}},
    }
    trainwright.check(config_of(space=space))
    with pytest.raises(ConfigError, match="search: optuna of Ray does not support `when`"):
        trainwright.check(config_of(space=space, tuner={"type": "ray", "search": "optuna"}))


def test_without_ray_the_extra_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "ray.tune", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'optuna.* 'ray\[tune\]"):
        trainwright.tune(config_of(), runs_dir="runs")


def test_the_folder_of_a_study_that_was_killed_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "_LONGEST", 4096)
    with own_folder() as living:
        if (child := os.fork()) == 0:
            with own_folder():
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        assert len([*tmp_path.iterdir()]) == 2, "the child has left one"
        with own_folder() as other:
            assert set(tmp_path.iterdir()) == {Path(living), Path(other)}
    assert not [*tmp_path.iterdir()]


def test_the_paths_of_sockets_fit_where_that_of_temporary_files_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (long := tmp_path / ("x" * 60)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with own_folder() as folder, socket.socket(socket.AF_UNIX) as one:
        path = Path(folder, "session_2026-11-24_05-31-59_916659_26219", "sockets", "plasma_store")
        path.parent.mkdir(parents=True)
        one.bind(str(path))  # as Ray does: a path of more than 107 bytes is an error
    assert not Path(folder).exists()


# --- in a Ray of their own each: `make soak`


@pytest.mark.soak
def test_asha_stops_what_is_worse_at_a_rung(folder: Path, started: Callable[..., Any]) -> None:
    scheduler = {"type": "asha", "grace_period": 2, "reduction_factor": 2}
    study = tuned(folder, started, trials=6, tuner={**TUNER, "scheduler": scheduler, "num_cpus": 2})
    trials = check_trials(study, folder)
    pruned = [one.ending for one in trials if one.ending and one.ending.status == "pruned"]
    assert pruned, "the study shows nothing otherwise"
    for ending in pruned:
        rung = len(ending.curve)
        assert rung in (2, 4, 8), "it was stopped at an evaluation that is a rung"
        at_rung = [
            one.ending.curve[rung - 1][1] for one in trials if one.ending and len(one.ending.curve) >= rung
        ]
        assert ending.curve[-1][1] > min(at_rung), "the best of a rung is never stopped"
    assert trainwright.reproduce(pruned_run(study), runs_dir=folder / "runs").verdict == "identical"


def pruned_run(study: Tuning) -> str:
    table = study.trials
    return str(table.loc[table.status == "pruned"].run_id.iloc[0])


@pytest.mark.soak
def test_hyperband_pauses_and_goes_on_with_the_same_bits(folder: Path, started: Callable[..., Any]) -> None:
    scheduler = {"type": "hyperband", "max_t": 9, "reduction_factor": 3}
    study = tuned(folder, started, trials=8, tuner={**TUNER, "scheduler": scheduler, "num_cpus": 2})
    trials = check_trials(study, folder)
    attempts = {one.number: len(RunDir(study.path.parent / one.run_id).attempts()) for one in trials}
    statuses = {one.number: one.ending.status for one in trials if one.ending}
    assert any(attempts[number] > 1 and statuses[number] == "completed" for number in statuses)
    assert "pruned" in statuses.values()


@pytest.mark.soak
def test_an_exploit_is_a_fork_with_its_parent(folder: Path, started: Callable[..., Any]) -> None:
    scheduler = {"type": "pbt", "perturbation_interval": 2}
    study = tuned(folder, started, trials=4, tuner={**TUNER, "scheduler": scheduler})
    logged = read_log(study.path)
    trials = logged.trials
    forks = [note for note in logged.notes if note["kind"] == "fork"]
    assert forks, "the study shows nothing otherwise"
    check_trials(study, folder)
    for note in forks:
        run, donor = (RunDir(study.path.parent / trials[note[key]].run_id) for key in ("trial", "of"))
        lineage = run.lineage()
        assert lineage is not None
        assert (lineage.run_id, lineage.relation, lineage.step) == (donor.id, "fork", note["start"][1])
        assert run.require_manifest().initial.run_id == donor.id  # type: ignore[union-attr]
        replaced = trials[note["instead_of"]].ending
        assert replaced is not None
        assert replaced.status in ("pruned", "completed")
    fork = forks[0]
    trial, donor = trials[fork["trial"]], trials[fork["of"]]
    run = RunDir(study.path.parent / trial.run_id)
    assert trainwright.reproduce(trial.run_id, runs_dir=folder / "runs").verdict == "identical"
    if run.status() == "completed":  # by hand: the fork that a user makes
        changed = {key: value for key, value in trial.params.items() if value != donor.params[key]}
        by_hand = trainwright.fork(donor.run_id, changed, step=fork["start"][1], runs_dir=folder / "runs")
        assert by_hand.digest == trial.ending.digest  # type: ignore[union-attr]


@pytest.mark.soak
@pytest.mark.parametrize("scheduler", ["asha", "pbt"])
def test_a_study_whose_driver_is_killed_goes_on(
    scheduler: str, folder: Path, started: Callable[..., Any]
) -> None:
    options = {"pbt": {"perturbation_interval": 2}}.get(scheduler, {})
    tuner = {**TUNER, "scheduler": {"type": scheduler, **options}}
    (folder / "config.json").write_text(json.dumps(config_of(trials=4, tuner=tuner)))
    with started("tune", "config.json", "--runs-dir", "runs") as process:
        run = until(lambda: first_run(folder))
        until(lambda: worker_of(run))
        process.send_signal(signal.SIGKILL)
    before = read_trials(study_in(folder).path)
    assert any(one.ending is None for one in before)
    with started("resume", study_in(folder).id, "--runs-dir", "runs") as process:
        done = process.end()
    assert done.returncode == 0, done.stderr
    after = check_trials(study_in(folder), folder)
    assert [one.run_id for one in after[: len(before)]] == [one.run_id for one in before]
    assert all(one.ending is not None for one in after)
    assert study_in(folder).status == "completed"


@pytest.mark.soak
def test_ctrl_c_saves_and_the_study_goes_on(folder: Path, started: Callable[..., Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config_of()))
    with started("tune", "config.json", "--runs-dir", "runs") as process:
        run = until(lambda: first_run(folder))
        until(lambda: worker_of(run))
        process.send_signal(signal.SIGINT)
        done = process.end()
    assert done.returncode == 130, done.stderr
    study = study_in(folder)
    assert study.status == "interrupted"
    assert RunDir(run).status() in ("paused", "completed")
    with started("tune", "config.json", "--runs-dir", "runs", "--resume") as process:
        assert process.end().returncode == 0
    assert all(one.ending and one.ending.status == "completed" for one in check_trials(study, folder))


@pytest.mark.soak
def test_optuna_searches_for_ray(folder: Path, started: Callable[..., Any]) -> None:
    study = tuned(folder, started, trials=4, tuner={**TUNER, "search": "optuna"})
    trials = check_trials(study, folder)
    assert len({repr(one.params) for one in trials}) > 1
    with started("resume", study.id, "tuning.trials=5", "--runs-dir", "runs") as process:
        done = process.end()
    assert done.returncode == 0, done.stderr
    assert len({repr(one.params) for one in check_trials(study, folder)}) == 5, "it repeats none"


@pytest.mark.soak
def test_a_trial_that_fails_is_a_result(folder: Path, started: Callable[..., Any]) -> None:
    space = {"training.learning_rate": {"low": 1e20, "high": 1e30, "log": True}}
    study = tuned(folder, started, fails=True, trials=2, space=space)
    errors = [one.ending.error for one in read_trials(study.path) if one.ending]
    assert len(errors) == 2
    assert all("is not finite" in str(error) for error in errors)


@pytest.mark.soak
def test_a_study_joins_a_cluster_and_leaves_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that someone has started, which asks for a token, goes on afterwards."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0123456789abcdef" * 4)
    port = 6399
    options = ["--head", "--block", f"--port={port}", "--node-ip-address=127.0.0.1", "--num-cpus=1"]
    short = tempfile.mkdtemp(prefix="head-", dir="/tmp")  # the path of a socket has 107 characters at most
    more = [f"--temp-dir={short}", "--include-dashboard=false", "--disable-usage-stats"]

    def joined() -> None:
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", *options, *more]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as head:
            assert head.stdout is not None
            tempfile.tempdir = short  # of this process alone: other tests start clusters at the same time
            try:
                assert any("Ray runtime started" in line for line in head.stdout)
                tuner = {"type": "ray", "scheduler": "fifo", "address": f"127.0.0.1:{port}"}
                trainwright.tune(config_of(tuner=tuner), runs_dir="runs")
                assert head.poll() is None
                assert not list(Path(short).glob("trainwright-ray-*")), "a cluster of its own was started"
            finally:
                os.killpg(head.pid, signal.SIGTERM)

    try:
        apart(joined)
    finally:
        shutil.rmtree(short, ignore_errors=True)
    trials = check_trials(study_in(folder), folder)
    assert [one.ending.status for one in trials if one.ending] == ["completed"] * 2


def apart(test: Callable[[], None]) -> None:
    """Run a test in a process with a network of its own."""
    if not loopback.is_permitted():
        pytest.skip("no network of its own is permitted here, and Ray listens on all interfaces")
    if (child := os.fork()) == 0:
        try:
            loopback.enter()
            test()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


class Apart(TunerSuite):
    cls = RayTuner

    def apart(self, test: Callable[[], None]) -> None:
        apart(test)

    test_all_trials_begin_and_end = pytest.mark.soak(TunerSuite.test_all_trials_begin_and_end)
    test_it_stops_and_goes_on = pytest.mark.soak(TunerSuite.test_it_stops_and_goes_on)


class TestAsha(Apart):
    params: ClassVar = {"num_cpus": 2}


class TestHyperband(Apart):
    params: ClassVar = {"num_cpus": 2, "scheduler": {"type": "hyperband", "max_t": 4, "reduction_factor": 2}}


class TestPbt(Apart):
    params: ClassVar = {"num_cpus": 2, "scheduler": {"type": "pbt", "perturbation_interval": 1}}


class TestOptuna(Apart):
    params: ClassVar = {"num_cpus": 2, "search": "optuna"}
