"""Processes of which one, or whose launcher, is killed while they wait for each other."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist
import yaml

from small_runs import SMALL
from trainwright.errors import WorldError
from trainwright.frameworks.torch.parallel import world
from trainwright.world import Mesh

pytestmark = pytest.mark.slow


def rank_of(pid: int) -> str | None:
    """Return the rank of a process that a launcher has started, or None."""
    words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((word[5:].decode() for word in words if word.startswith(b"RANK=")), None)


def ranks_below(pid: int) -> dict[str, int]:
    """Return the ids of the processes that a launcher has started, by rank."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            rank = rank_of(int(child))
        except OSError:
            continue
        if rank is not None:
            found[rank] = int(child)
    return found


def has_ended(pid: int) -> bool:
    """Return whether a process has ended; nobody may have collected its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class Start:
    """A command that starts two processes, of which the second is stopped before it meets the first."""

    def __init__(self, folder: Path) -> None:
        (folder / "config.yaml").write_text(yaml.safe_dump(SMALL))
        words = ["train", "config.yaml", "distributed.nproc=2", "distributed.max_restarts=0"]
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", "trainwright", *words],
            cwd=folder,
            env=os.environ | {"TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.folder, self.deadline = folder, time.monotonic() + 60
        self.ranks: dict[str, int] = {}

    def stop_the_second(self) -> None:
        """Stop the second process, and wait until the first one waits for it."""
        while len(self.ranks) < 2:
            self.wait_a_little()
            self.ranks = ranks_below(self.launcher.pid)
        os.kill(self.ranks["1"], signal.SIGSTOP)
        while not any(b"here-0" in store.read_bytes() for store in self.folder.glob("trainwright-*/store-0")):
            self.wait_a_little()

    def wait_a_little(self) -> None:
        """Give the processes time, unless they have had too much."""
        assert time.monotonic() < self.deadline
        time.sleep(0.02)

    def end(self) -> None:
        """Kill what is left."""
        for pid in self.ranks.values():
            if not has_ended(pid):
                os.kill(pid, signal.SIGKILL)
        self.launcher.kill()
        self.launcher.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started = Start(tmp_path)
    try:
        started.stop_the_second()
        yield started
    finally:
        started.end()


def test_processes_end_with_their_launcher(start: Start) -> None:
    start.launcher.kill()
    start.launcher.wait()
    start.deadline = time.monotonic() + 20
    while not has_ended(start.ranks["0"]):
        start.wait_a_little()
    os.kill(start.ranks["1"], signal.SIGCONT)  # its first instructions come after the death
    while not has_ended(start.ranks["1"]):
        start.wait_a_little()


@pytest.mark.soak
def test_processes_end_with_each_other(start: Start) -> None:
    os.kill(start.ranks["1"], signal.SIGKILL)
    said = start.launcher.communicate(timeout=30)[1]
    assert "process 1 of 2 ended with exit code -9 (SIGKILL), after 0 restarts" in said
    assert has_ended(start.ranks["0"])


def test_a_process_that_does_not_come_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "_FIND_EACH_OTHER", timedelta(milliseconds=60))
    store = dist.FileStore(str(tmp_path / "store"), 3)  # type: ignore[attr-defined]
    store.set("here-2", "")
    monkeypatch.setenv(world.STORE, str(tmp_path / "store"))
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(WorldError, match=r"process 1 of 3 did not come within 0\.001 minutes"):
        world.ProcessGroup(0, 3, 0, "gloo", Mesh(data=3))
    assert signal.getsignal(signal.SIGTERM) is before
