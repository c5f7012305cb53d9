"""An error of one process that no other try would mend, while the others wait for it as in a kernel."""

import socket
import sys
import time
from pathlib import Path

import pytest

from trainwright.config.schema import DistributedConfig, VirtualConfig
from trainwright.errors import WorldError
from trainwright.frameworks.torch.parallel import launch, nodes
from trainwright.world import FINAL, RETRYABLE

# The second process waits until the first one has started, and ends; the first one waits for a signal.
WORK = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
rank = os.environ["RANK"]
with open(folder / f"starts-{rank}", "a") as file:
    file.write("x")
if rank == "0":
    signal.pause()
while not (folder / "starts-0").exists():
    time.sleep(0.01)
sys.exit(int(sys.argv[2]))
"""


def config(folder: Path, *, max_restarts: int) -> DistributedConfig:
    """Return the config of two processes on this machine, which finds others at a free port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return DistributedConfig(
        nproc=2,
        max_restarts=max_restarts,
        virtual=VirtualConfig(data=2, tensor=1, pipeline=1),
        rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_id=folder.name,
    )


def starts(folder: Path) -> int:
    return len((folder / "starts-1").read_text())


@pytest.mark.parametrize("how", ["machine", "nodes"])
def test_an_end_that_is_final_ends_the_others_and_restarts_nothing(how: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORK, str(tmp_path), str(FINAL)]
    began = time.monotonic()
    if how == "machine":
        assert launch.launch(config(tmp_path, max_restarts=2), command, tmp_path) is None
    else:
        nodes.start(config(tmp_path, max_restarts=2), command)
    assert starts(tmp_path) == 1
    assert time.monotonic() - began < 20, "the other process is not waited for"


def test_an_end_that_may_pass_starts_all_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WORK, str(tmp_path), str(RETRYABLE)]
    with pytest.raises(WorldError, match="after 1 restarts"):
        nodes.start(config(tmp_path, max_restarts=1), command)
    assert starts(tmp_path) == 2
