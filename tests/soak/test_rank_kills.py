"""Kills of processes that train together, from outside, at moments that are drawn at random."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "frameworks"))

from test_ranks import HARD, same

import trainwright
from trainwright.records.journal import losses, read
from trainwright.records.listing import all_runs
from trainwright.runs.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.soak]

SEED = int(os.environ.get("TRAINWRIGHT_SOAK_SEED", "0"))
STEPS = 200
CONFIG = HARD | {
    "training": {**HARD["training"], "max_steps": STEPS, "early_stopping": None},
    "checkpoint": {"every_n_steps": 20, "every_n_minutes": None},
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run in one process."""
    return trainwright.train(CONFIG, runs_dir=tmp_path_factory.mktemp("alone"))


def children(pid: int) -> list[int]:
    """Return the processes that a process has started, by rank."""
    ranks = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            environment = (status.parent / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):  # it has ended
            continue
        if parent == pid:
            ranks.update(
                {int(one[5:]): int(status.parent.name) for one in environment if one[:5] == b"RANK="}
            )
    return [ranks[rank] for rank in sorted(ranks)]


def last_step(runs_dir: Path) -> int:
    """Return the last step that the run's journal knows of."""
    runs = list(all_runs(runs_dir))
    known = losses(read(runs[0].path / "journal")) if runs else {}
    return max(known, default=0)


def wait_for_step(runs_dir: Path, step: int, process: "subprocess.Popen[bytes]") -> None:
    """Wait until the journal knows of a step, or the process has ended."""
    deadline = time.monotonic() + 240
    while last_step(runs_dir) < step and process.poll() is None:
        assert time.monotonic() < deadline, "the run makes no steps"
        time.sleep(0.05)  # reading a journal costs the processors what the run needs


def wait_for_end(pids: list[int]) -> None:
    """Wait until processes have let go of their files; nobody may have collected their exit codes."""
    for pid in pids:
        status = Path(f"/proc/{pid}/stat")
        with contextlib.suppress(OSError):
            while status.read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.01)


def back_in_step(run: Path, killed: float) -> float:
    """Return the seconds from a kill to the next loss in the journal."""
    times = [
        entry["time"]
        for entry in read(run / "journal")
        if entry["kind"] == "losses" and entry["time"] > killed
    ]
    return min(times) - killed


@pytest.mark.parametrize("number", range(10))
def test_three_kills_from_outside(number: int, alone: Run, tmp_path: Path) -> None:
    draw = random.Random(f"{SEED} {number}")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    settings = ["distributed.nproc=2", "distributed.max_restarts=3"]
    words = ["train", "config.yaml", *settings, "--runs-dir", str(tmp_path / "runs")]

    def start(*words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [sys.executable, "-m", "trainwright", *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    process = start(*words)
    kills = []
    for first in (1, 61, 121):
        victim, step, moment = draw.choice(["0", "1", "all"]), first + draw.randrange(60), draw.random() / 20
        wait_for_step(tmp_path / "runs", step, process)
        time.sleep(moment)  # somewhere within the next steps
        workers = children(process.pid)
        assert process.poll() is None, "it was killed too late"
        kills.append((victim, step, time.time()))
        for pid in {"0": workers[:1], "1": workers[1:], "all": [process.pid, *workers]}[victim]:
            os.kill(pid, signal.SIGKILL)
        if victim == "all":
            process.wait()
            wait_for_end(workers)
            process = start("resume", "last", "--trust", "--runs-dir", str(tmp_path / "runs"))
    assert process.wait(240) == 0
    run = trainwright.get("last", runs_dir=tmp_path / "runs")
    same(run, alone)
    starts = [entry["from_step"] for entry in read(run.path / "journal") if entry["kind"] == "start"]
    assert len(starts) == 1 + len(kills)
    for (victim, step, killed), begun in zip(kills, starts[1:], strict=True):
        assert begun >= (step // 20 - 1) * 20, (
            "at most the interval is lost that is being saved, and one more"
        )
        print(f"victim {victim}, step {step}: the next step after {back_in_step(run.path, killed):.1f} s")
