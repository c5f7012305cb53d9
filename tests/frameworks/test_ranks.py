"""Several processes train one run: to the same bits as one, whatever dies on the way."""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import trainwright
from s3_server import S3Server
from small_runs import journal_values
from trainwright.errors import ConfigError, InputError, ModelError, TrainingError, WorldError
from trainwright.frameworks.torch.parallel.agent import failed
from trainwright.frameworks.torch.parallel.launch import deaths
from trainwright.records.journal import losses, read
from trainwright.runs.run import Run
from troubled_server import Trouble

pytestmark = [pytest.mark.slow, pytest.mark.services]

# 1257 rows: the last batch of an epoch has 9 samples, and the parts of 4 virtual ranks are uneven.
HARD: dict[str, Any] = {
    "experiment": {"name": "ranks", "seed": 5},
    "data": {"type": "digits"},
    "model": {"type": "faulty_models:Net"},
    "training": {
        "max_steps": 45,
        "batch_size": 39,
        "microbatch_size": 6,
        "learning_rate": 0.003,
        "scheduler": {"type": "plateau", "patience": 0, "warmup_steps": 5},
        "early_stopping": {"patience": 9},
        "max_grad_norm": 0.5,
        "threads": 1,
    },
    "evaluation": {"every_n_steps": 7, "batch_size": 16},
    "checkpoint": {"every_n_steps": 10, "every_n_minutes": None},
    "logging": {"every_n_steps": 4},
    "distributed": {"virtual": {"data": 4}},
}
OTHERS = {
    "bf16": {"training.precision": "bf16"},
    # The last batch of an epoch has one sample: most parts are empty.
    "optimization": {
        "training.weight_decay": 0.1,
        "training.ema": 0.9,
        "training.freeze": [{"match": "*.weight", "until_step": 12}],
        "training.optimizer": "muon",
    },
    "noise": {"training.optimizer": "faulty_models:Noise"},
    "empty": {"training.optimizer": {"type": "sgd", "momentum": 0.9}, "training.batch_size": 157},
}


def same(run: Run, expected: Run) -> None:
    """The same weights, losses, metrics and predictions, of which the tables are made."""
    assert run.status == expected.status == "completed"
    assert run.digest == expected.digest
    assert run.result["metrics"] == expected.result["metrics"]
    assert losses(read(run.path / "journal")) == losses(read(expected.path / "journal"))
    assert journal_values(run) == journal_values(expected)
    for name in ("val", "test"):
        tables = [
            json.loads((one.path / "evaluation" / f"{name}.json").read_text()) for one in (run, expected)
        ]
        assert tables[0] == tables[1]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run in one process."""
    return trainwright.train(HARD, runs_dir=tmp_path_factory.mktemp("alone"))


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("FLAGS", str(tmp_path))
    return monkeypatch


# `make test` compares the bits of two processes where one of them is killed, too: below.
@pytest.mark.soak
@pytest.mark.parametrize("nproc", [2, 4])
def test_the_bits_of_one_process(nproc: int, alone: Run, tmp_path: Path) -> None:
    same(trainwright.train(HARD, {"distributed.nproc": nproc}, runs_dir=tmp_path), alone)


@pytest.mark.soak
@pytest.mark.parametrize("name", OTHERS)
def test_the_bits_of_one_process_in_other_runs(name: str, tmp_path: Path) -> None:
    alone = trainwright.train(HARD, OTHERS[name], runs_dir=tmp_path)
    same(trainwright.train(HARD, OTHERS[name] | {"distributed.nproc": 2}, runs_dir=tmp_path), alone)


@pytest.mark.soak
def test_weights_are_those_of_the_whole_batch(tmp_path: Path) -> None:
    """Some samples, and whole parts, have no weight."""
    weighted = {"data.weight": "pixel_2_1", "training.class_weights": "balanced", "training.max_steps": 20}
    config = HARD | {"model": {"type": "mlp", "hidden": [32], "dropout": 0.2}}
    alone = trainwright.train(config, weighted, runs_dir=tmp_path / "alone")
    same(trainwright.train(config, weighted | {"distributed.nproc": 2}, runs_dir=tmp_path), alone)


CNN = {"model": {"type": "faulty_models:Cnn"}}


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in one process that normalizes over the batch."""
    return trainwright.train(HARD | CNN, {"training.batch_size": 40}, runs_dir=tmp_path_factory.mktemp("cnn"))


@pytest.mark.soak
@pytest.mark.parametrize("nproc", [2, 4])
def test_batch_normalization_is_synchronized(nproc: int, cnn: Run, tmp_path: Path) -> None:
    settings = {"training.batch_size": 40, "distributed.nproc": nproc}
    same(trainwright.train(HARD | CNN, settings, runs_dir=tmp_path), cnn)


@pytest.mark.soak
def test_batch_normalization_in_bf16(tmp_path: Path) -> None:
    settings = {"training.batch_size": 40, "training.precision": "bf16"}
    runs = [
        trainwright.train(HARD | CNN, settings | {"distributed.nproc": nproc}, runs_dir=tmp_path)
        for nproc in (1, 2)
    ]
    same(runs[1], runs[0])


@pytest.mark.soak
def test_a_language_model(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text(Path(json.__file__).read_text() * 3)
    config = HARD | {
        "data": {"type": "text", "path": str(tmp_path / "text"), "params": {"length": 32}},
        "model": {
            "type": "gpt",
            "params": {"num_layers": 2, "hidden_size": 32, "num_heads": 2, "dropout": 0.1},
        },
        "training": {"max_steps": 20, "batch_size": 6, "threads": 1},
    }
    runs = [
        trainwright.train(config, {"distributed.nproc": nproc}, runs_dir=tmp_path / "runs")
        for nproc in (1, 2)
    ]
    same(runs[1], runs[0])


@pytest.mark.parametrize(
    "kills", ["kill@0@70", pytest.param("kill@1@70 kill@0@33 kill@1@41", marks=pytest.mark.soak)]
)
def test_processes_that_are_killed(
    kills: str, alone: Run, tmp_path: Path, faults: pytest.MonkeyPatch
) -> None:
    """Each time all begin again from the newest commit."""
    faults.setenv("FAULTS", kills)
    run = trainwright.train(HARD, {"distributed.nproc": 2}, runs_dir=tmp_path)
    same(run, alone)
    assert run.result["attempts"] == 1 + len(kills.split())


@pytest.mark.soak
def test_too_many_deaths_are_said(tmp_path: Path, faults: pytest.MonkeyPatch) -> None:
    faults.setenv("FAULTS", "kill@1@30 kill@1@35")
    settings = {"distributed.nproc": 2, "distributed.max_restarts": 1}
    with pytest.raises(WorldError, match=r"process 1 of 2 ended .*\(SIGKILL\), after 1 restarts"):
        trainwright.train(HARD, settings, runs_dir=tmp_path / "runs")


@pytest.mark.soak
def test_another_number_of_processes_is_a_decision(
    alone: Run, tmp_path: Path, faults: pytest.MonkeyPatch
) -> None:
    """4 processes, one of which is killed, then 2, also killed, then one; the repetition has one."""
    faults.setenv("FAULTS", "kill@2@50 kill@1@60")
    settings = {"distributed.nproc": 4, "distributed.max_restarts": 0}
    with pytest.raises(WorldError, match="process 2 of 4"):
        trainwright.train(HARD, settings, runs_dir=tmp_path / "runs")
    run = trainwright.get("last", runs_dir=tmp_path / "runs")
    with pytest.raises(WorldError, match="process 1 of 2"):
        trainwright.resume(run, ["distributed.nproc=2"])
    same(trainwright.resume(run, ["distributed.nproc=1"]), alone)
    assert [(one["kind"], one["detail"]) for one in run.decisions] == [
        ("processes", {"from": 4, "to": 2, "attempt": 2}),
        ("processes", {"from": 2, "to": 1, "attempt": 3}),
    ]
    first = run.decisions[0]["step"]
    assert first in (10, 20)  # where the second attempt began
    newest = max((run.path / "checkpoints").iterdir())
    assert json.loads((newest / "state.json").read_text())["decisions"] == [
        [one["step"], one["kind"], one["detail"]] for one in run.decisions
    ]
    shown = command("runs", "show", run.id, folder=tmp_path)
    assert f"step {first}: processes (from 4, to 2, attempt 2)" in shown.stdout
    assert f"step {first}: processes (from 4, to 2, attempt 2)" in (run.path / "report.html").read_text()
    again = trainwright.reproduce(run)
    assert (again.verdict, again.processes) == ("identical", ([4, 2, 1], [1]))


@pytest.mark.parametrize(
    ("nproc", "kills", "numbers"),
    [
        ("1..2", "kill@1@60", [2, 1]),
        pytest.param("2..4", "kill@0@50", [4, 2], marks=pytest.mark.soak),
        pytest.param("1..4", "kill@3@50 kill@1@60", [4, 2, 1], marks=pytest.mark.soak),
    ],
)
def test_a_range_goes_on_with_what_is_left(
    nproc: str, kills: str, numbers: list[int], alone: Run, tmp_path: Path, faults: pytest.MonkeyPatch
) -> None:
    faults.setenv("FAULTS", kills)
    (tmp_path / "config.yaml").write_text(json.dumps(HARD))
    ended = command("train", "config.yaml", f"distributed.nproc={nproc}", "--quiet", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    left = "2 processes" if numbers[1] == 2 else "1 process"
    rank = kills.split("@")[1]
    assert (
        f"process {rank} ended with exit code -9 (SIGKILL); restarting all of them from the newest commit, "
        f"in {left} (restart 1 of 3)"
    ) in ended.stderr
    run = trainwright.get("last", runs_dir=tmp_path / "runs")
    same(run, alone)
    assert [one["detail"]["to"] for one in run.decisions] == numbers[1:]
    if nproc == "1..2":  # the test above repeats a run, too
        return
    again = command("reproduce", "last", "--trust", "--quiet", folder=tmp_path)
    assert "identical" in again.stdout
    assert f"processes: {', then '.join(map(str, numbers))}; of the repetition: {numbers[0]}" in again.stdout


def failure(code: int, second: int) -> Any:
    return SimpleNamespace(exitcode=code, timestamp=second)


@pytest.mark.parametrize(
    ("failures", "said"),
    [
        (
            [failure(-6, 7), failure(-9, 7), failure(75, 7)],
            "process 1 of 3 ended with exit code -9 (SIGKILL)",
        ),
        ([failure(75, 6), failure(124, 7), failure(-9, 37)], "process 1 of 3 hung"),
        ([failure(75, 6), failure(75, 7)], "process 0 of 3 ended with exit code 75"),
        ([failure(75, 6), failure(1, 7)], "process 1 of 3 ended with exit code 1"),
    ],
)
def test_the_process_that_died_first_is_named(failures: list[Any], said: str) -> None:
    error: Any = SimpleNamespace(failures=dict(enumerate(failures)))
    assert str(failed(error, 3, 2)) == f"{said}, after 2 restarts"


@pytest.mark.parametrize(
    ("exit_codes", "lost"),
    [([75, 75], 0), ([-9, 75, 75], 1), ([-9, -6, 75], 1), ([-9, -9, -6], 2), ([-11, -6], 1), ([1], 1)],
)
def test_who_aborts_because_another_is_gone_is_not_lost(exit_codes: list[int], lost: int) -> None:
    assert deaths(exit_codes) == lost


def command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-m", "trainwright", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_signal_and_another_number_of_processes(
    alone: Run, tmp_path: Path, faults: pytest.MonkeyPatch
) -> None:
    """A signal to the launcher: all commit the same step. One process goes on, and what it ends is provable."""
    faults.setenv("FAULTS", "term@1@60")
    (tmp_path / "config.yaml").write_text(json.dumps(HARD))
    ended = command("train", "config.yaml", "distributed.nproc=2", "--quiet", folder=tmp_path)
    assert ended.returncode == 75, ended.stderr
    run = trainwright.get("last", runs_dir=tmp_path / "runs")
    assert run.status == "preempted"
    same(trainwright.resume(run, ["distributed.nproc=1"]), alone)
    assert trainwright.reproduce(run).verdict == "identical"


@pytest.mark.soak
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_hangs(rank: int, alone: Run, tmp_path: Path, faults: pytest.MonkeyPatch) -> None:
    """It shows where, and all begin again; the one that waits for it does not count as hanging."""
    faults.setenv("FAULTS", f"hang@{rank}@60")
    (tmp_path / "config.yaml").write_text(json.dumps(HARD))
    ended = command("train", "config.yaml", "distributed.nproc=2", "--quiet", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "meet_faults" in ended.stderr
    assert ended.stderr.count(f"process {rank} hangs: it makes no progress in a step") == 1
    assert ended.stderr.count("its threads are at") == 1
    same(trainwright.get("last", runs_dir=tmp_path / "runs"), alone)


SCRIPT = """
import sys, torch, trainwright
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 10))
config = %r
run = trainwright.train(config, model=model, verdict=%s)
again = trainwright.train(config, {"experiment.seed": 1, "training.max_steps": 8}, model=model)
sys.stdout.write(f"{run.status} {run.digest} {again.digest}\\n")
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("launcher", "verdict", "status"),
    [
        ("torchrun", "None", "completed"),
        ("srun", "None", "completed"),
        ("torchrun", "lambda step, metrics: 'prune' if step > 20 else 'keep'", "pruned"),
    ],
)
def test_a_script_of_the_users_under_a_launcher(
    launcher: str, verdict: str, status: str, tmp_path: Path
) -> None:
    """Each process runs the script; the objects in it need not travel. srun says the ranks in its own words."""
    config = {key: value for key, value in HARD.items() if key != "model"}
    (tmp_path / "both.py").write_text(SCRIPT % (config, verdict))
    (tmp_path / "one.py").write_text(SCRIPT % (config, verdict))
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "MASTER_PORT": "29517"}
    if launcher == "torchrun":
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "both.py"]
        starts = [([sys.executable, *words], environment)]
    else:
        starts = [
            (
                [sys.executable, "both.py"],
                environment | {"SLURM_PROCID": str(i), "SLURM_LOCALID": str(i), "SLURM_NTASKS": "2"},
            )
            for i in range(2)
        ]
    started = [
        subprocess.Popen(command, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True)
        for command, variables in starts
    ]
    lines = [line for one in started for line in one.communicate(timeout=240)[0].splitlines()]
    assert [one.returncode for one in started] == [0] * len(started)
    one = subprocess.run(
        [sys.executable, "one.py"], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=True
    )
    assert lines == one.stdout.splitlines() * 2
    assert lines[0].startswith(f"{status} ")
    assert len(list(tmp_path.glob("runs/ranks/*"))) == 4


@pytest.mark.soak
def test_an_error_of_one_process(tmp_path: Path, faults: pytest.MonkeyPatch) -> None:
    """It is the one that is told, not its consequence in the others; what may pass is tried again."""
    faults.setenv("FAULTS", "error@1@20")
    with pytest.raises(TrainingError, match=r"^process 1: .*no space left"):
        trainwright.train(
            HARD, {"distributed.nproc": 2, "distributed.max_restarts": 0}, runs_dir=tmp_path / "runs"
        )
    run = trainwright.get("last", runs_dir=tmp_path / "runs")
    assert run.status == "failed"
    assert trainwright.resume(run, ["distributed.nproc=2"]).status == "completed"


def test_wrong_input_ends_at_once(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="width"):
        trainwright.train(
            HARD, {"distributed.nproc": 2, "model.params": {"width": "wide"}}, runs_dir=tmp_path
        )
    assert not list(tmp_path.glob("*/*"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"nproc": 3}, "3 does not divide the 2 virtual ranks of the batch; allowed: 1, 2"),
        (
            {"nproc": 4, "virtual": {"data": 2}},
            "4 does not divide the 2 virtual ranks of the batch; allowed: 1, 2",
        ),
    ],
)
def test_what_does_not_divide_is_refused(settings: dict[str, int], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        trainwright.train(HARD | {"distributed": settings}, runs_dir=tmp_path)


def test_objects_of_the_main_script_cannot_be_sent(tmp_path: Path) -> None:
    class Local(torch.nn.Linear):
        pass

    config = {key: value for key, value in HARD.items() if key != "model"}
    with pytest.raises(InputError, match="cannot be sent to other processes"):
        trainwright.train(config, {"distributed.nproc": 2}, model=Local(64, 10), runs_dir=tmp_path)


class Gone(Trouble):
    """The service answers nothing for a while, from a request on."""

    def __init__(self, first: int, seconds: float) -> None:
        super().__init__("500", [first])
        self.seconds, self.until = seconds, math.inf

    def concerns(self, environ: dict[str, Any]) -> bool:
        if super().concerns(environ):
            self.until = time.monotonic() + self.seconds
        return self.until < math.inf and time.monotonic() < self.until


def failing_and_slow() -> list[Trouble]:
    """Every fifth request of a kind fails, every tenth is slow."""
    return [
        Trouble(kind, range(every, 999, every), method)
        for method in ("PUT", "GET")
        for kind, every in (("500", 5), ("slow", 10))
    ]


@pytest.mark.soak
@pytest.mark.parametrize(
    "troubles", [failing_and_slow(), [Gone(20, 60.0)]], ids=["fails and is slow", "gone for a minute"]
)
def test_a_store_with_troubles(
    troubles: list[Trouble], alone: Run, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TRAINWRIGHT_CACHE", str(tmp_path))
    with s3.troubled(*troubles):
        run = trainwright.train(HARD, {"distributed.nproc": 2}, runs_dir=f"{s3.new_bucket()}/runs")
    assert all(trouble.met >= min(trouble.calls) for trouble in troubles)
    same(run, alone)
    assert run.result["attempts"] == 1


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(
        "trainwright.frameworks.torch.parallel.processes.device_named", lambda _: torch.device("cuda")
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(
        InputError,
        match=r"2 processes need a GPU each, but this machine has 1; give distributed\.nproc=1, or",
    ):
        trainwright.train(HARD, {"distributed.nproc": 2}, runs_dir=tmp_path)


def test_nccl_without_gpus_is_refused(tmp_path: Path) -> None:
    changes = {"distributed.nproc": 2, "distributed.backend": "nccl", "training.device": "cpu"}
    with pytest.raises(InputError, match=r"distributed\.backend: nccl is for processes on GPUs"):
        trainwright.train(HARD, changes, runs_dir=tmp_path)
