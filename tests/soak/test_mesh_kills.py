"""Kills and other faults of processes on meshes of all kinds, from outside, at moments drawn at random."""

import argparse
import inspect
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "frameworks"))

from test_meshes import MESHES, config
from test_rank_kills import children, wait_for_end, wait_for_step
from test_ranks import same
from test_tensor_runs import TestTensorAndPipeline

import trainwright
from trainwright.records.journal import read
from trainwright.runs.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.soak]

SEED = int(os.environ.get("TRAINWRIGHT_SOAK_SEED", "0"))
STEPS, EVERY = 48, 8
ALONE = {"nproc": 1, "strategy": "ddp", "shard": "auto", "tensor": 1, "pipeline": 1}


class Training:
    """A run of a small language model with an average of its weights, whose mesh may change at each resume."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.runs = folder, folder / "runs"
        (folder / "text.txt").write_text(inspect.getsource(argparse)[:20_000])
        given = config("gpt", "fp32")
        given["training"] |= {"max_steps": STEPS, "ema": {"decay": 0.9}}
        given["checkpoint"]["every_n_steps"] = EVERY
        (folder / "config.yaml").write_text(json.dumps(given))
        self.kills: list[int] = []  # the steps at which processes were killed

    def start(self, mesh: str, restarts: int) -> None:
        """Train, or go on, in the processes of a mesh."""
        sizes = ALONE | dict(one.split("=") for one in MESHES.get(mesh, []))
        words = [f"distributed.{key}={value}" for key, value in sizes.items()]
        begin = ["resume", "last"] if self.runs.exists() else ["train", "config.yaml"]
        with open(self.folder / "said", "ab") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trainwright", *begin, *words, f"distributed.max_restarts={restarts}"],
                cwd=self.folder,
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
                stdout=said,
                stderr=said,
            )

    def kill(self, draw: random.Random, step: int, *, everyone: bool) -> None:
        """Kill one of the processes, or all and their launcher, some time after a step."""
        moment = draw.random() / 5
        wait_for_step(self.runs, step, self.process)
        time.sleep(moment)  # somewhere within the next steps, an evaluation, or a save
        assert self.process.poll() is None, (self.folder / "said").read_text()
        self.kills.append(step)
        workers = children(self.process.pid)
        if workers and not everyone:
            os.kill(draw.choice(workers), signal.SIGKILL)
            return
        for pid in [self.process.pid, *workers]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        wait_for_end(workers)

    def end(self, alone: Run) -> None:
        """Wait for the end; compare the run with that of one process."""
        assert self.process.wait(240) == 0, (self.folder / "said").read_text()
        run = trainwright.get("last", runs_dir=self.runs)
        same(run, alone)
        starts = [entry["from_step"] for entry in read(run.path / "journal") if entry["kind"] == "start"]
        assert len(starts) == 1 + len(self.kills)
        for step, begun in zip(self.kills, starts[1:], strict=True):
            assert begun >= (step // EVERY - 1) * EVERY, "the interval that is being saved, and one more"


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run in one process."""
    training = Training(tmp_path_factory.mktemp("alone"))
    training.start("alone", 0)
    assert training.process.wait(240) == 0
    return trainwright.get("last", runs_dir=training.runs)


@pytest.mark.parametrize("number", range(10))
def test_three_kills_on_a_mesh(number: int, alone: Run, tmp_path: Path) -> None:
    """Of single processes, which their launcher starts again, and of all, after which a resume has another mesh."""
    draw, training = random.Random(f"{SEED} {number}"), Training(tmp_path)
    training.start(draw.choice([*MESHES]), 3)
    for first in (1, 17, 33):
        is_all = draw.random() < 0.4
        training.kill(draw, first + draw.randrange(12), everyone=is_all)
        if is_all:
            training.start(draw.choice([*MESHES]), 3)
    training.end(alone)


@pytest.mark.parametrize("number", range(20))
def test_a_run_that_changes_its_mesh_twice(number: int, alone: Run, tmp_path: Path) -> None:
    draw, training = random.Random(f"mesh {SEED} {number}"), Training(tmp_path)
    meshes = draw.sample(["alone", *MESHES], 3)
    for mesh, first in zip(meshes, (1, 24), strict=False):
        training.start(mesh, 0)
        training.kill(draw, first + draw.randrange(16), everyone=draw.random() < 0.5)
        training.process.wait(120)
    training.start(meshes[2], 0)
    training.end(alone)


def test_a_checkpoint_is_restored_on_another_mesh(alone: Run, tmp_path: Path) -> None:
    """Each process reads what it needs of the parts that others have written."""
    draw, training = random.Random(0), Training(tmp_path)
    for number, mesh in enumerate(["fsdp-4", "ddp-2", "alone"]):
        training.start(mesh, 0)
        training.kill(draw, 10 * number + 9, everyone=True)
    training.start("tensor-2-pipeline-2", 0)
    training.end(alone)


def test_a_disk_that_is_full_for_one_process(alone: Run, tmp_path: Path) -> None:
    """Its saves fail with a warning, and later ones do not."""
    training = Training(tmp_path)
    training.start("tensor-2-pipeline-2", 0)
    wait_for_step(training.runs, 2, training.process)
    last = children(training.process.pid)[-1]
    before = resource.prlimit(last, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    wait_for_step(training.runs, 20, training.process)
    resource.prlimit(last, resource.RLIMIT_FSIZE, before)
    training.end(alone)
    journal = trainwright.get("last", runs_dir=training.runs).path / "journal"
    failed = [entry for entry in read(journal) if entry.get("name") == "checkpoint_failed"]
    assert failed
    assert all("process 3: [Errno 27]" in entry["detail"]["message"] for entry in failed)


FAULTY = [
    ("stop@1@6@evaluation", "", "process 1 was stopped in the evaluation of val, and is killed after 60 s"),
    ("stop@0@60", "strategy=fsdp", "process 0 was stopped in a step, and is killed after 60 s"),
    ("stop@1@2@copy", "strategy=fsdp", "process 1 was stopped in a save, and is killed after 60 s"),
    ("stop@1@100", "tensor=2", "process 1 was stopped in a step, and is killed after 60 s"),
    ("hang@1@100", "tensor=2", "process 1 hangs: it makes no progress in a step"),
    ("hang@0@100@evaluation", "tensor=2", "process 0 hangs: it makes no progress in the evaluation of"),
    ("stop@1@30@evaluation", "pipeline=2", "process 1 was stopped in the evaluation of val, and is killed"),
    ("hang@0@100", "pipeline=2", "process 0 hangs: it makes no progress in a step"),
]


@pytest.mark.parametrize(("fault", "mesh", "said"), FAULTY)
def test_a_process_that_is_stopped_or_hangs(
    fault: str, mesh: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is stopped cannot end itself: another one does; those that wait are not blamed."""
    suite, folders = TestTensorAndPipeline(), [tmp_path / "alone", tmp_path / "stopped"]
    for folder in folders:
        folder.mkdir()
    alone = suite._result(suite._train(folders[0], 1))
    monkeypatch.setenv("FLAGS", str(tmp_path))
    monkeypatch.setenv("FAULTS", fault)  # in steps, once it is known how long they take
    words = [f"distributed.{one}" for one in ["tensor=1", "pipeline=1", *mesh.split()]]
    done = suite._train(folders[1], 2, *words)
    result = suite._result(done)
    assert result["attempts"] == 2
    assert [line for line in done.stderr.splitlines() if ": error: process" in line] == [
        line for line in done.stderr.splitlines() if said in line
    ]
    assert said in done.stderr
    suite._compare(result, alone)
