"""Start the processes of a run on this machine, as torchrun does."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from trainwright.config.schema import DistributedConfig
from trainwright.frameworks.torch.parallel import nodes
from trainwright.frameworks.torch.parallel.agent import (
    SHUTDOWN_SECONDS,
    failed,
    first_death,
    is_final,
    silence,
)
from trainwright.frameworks.torch.parallel.world import STORE
from trainwright.process.environ import temporary_environment, threads_of_processes
from trainwright.world import RESTARTS, RETRYABLE

log = logging.getLogger("trainwright")
RESULT = "measured.json"  # of a check


def launch(
    distributed: DistributedConfig, command: Sequence[str], folder: Path, most: int | None = None
) -> int | None:
    """Start processes, and wait for their end; if one dies, end all, and start them again.

    They find each other in files, so that no port is open but those of gloo, on the loopback interface. Where
    `nproc` is a range, there are fewer of them after one has died. Each of several nodes starts its own
    processes, and all start again together.

    Args:
        distributed: How many processes to start, and how often.
        command: What each of them executes.
        folder: A folder of their own.
        most: The number of devices, if each process needs one.

    Returns:
        The signal that ended them, if one did; they had time to commit. None: they have ended, and said how.

    Raises:
        WorldError: A process died, and no restarts are left.
    """
    silence()
    try:
        if distributed.nnodes > 1:
            nodes.start(distributed, command)
        else:
            _start_again(distributed, command, folder, distributed.processes(most))
    except SignalException as error:
        return error.sigval
    return None


def _start_again(distributed: DistributedConfig, command: Sequence[str], folder: Path, number: int) -> None:
    """Start a number of processes on this machine, and start them again after one has died."""
    for restart in range(distributed.max_restarts + 1):
        try:
            _start(number, restart, command, folder)
            return
        except ChildFailedError as error:
            if is_final(error.failures.values()):
                return
            if restart == distributed.max_restarts:
                raise failed(error, number, restart) from error
            died = deaths([one.exitcode for one in error.failures.values()])
            said = "process {} {}".format(*first_death(error))
            number = distributed.processes(number - died)
        log.warning(
            "%s; restarting all of them from the newest commit, in %s (restart %d of %d)",
            said if died else "a process failed",
            "1 process" if number == 1 else f"{number} processes",
            restart + 1,
            distributed.max_restarts,
        )


def deaths(exit_codes: Sequence[int]) -> int:
    """Return how many processes are lost, by the exit codes of those that failed.

    The death of one makes others end: they say so (`RETRYABLE`), or abort in the middle of a collective call.
    So the killed ones count, or a single one.
    """
    killed = sum(code == -signal.SIGKILL for code in exit_codes)
    return killed or int(any(code != RETRYABLE for code in exit_codes))


def _start(number: int, restart: int, command: Sequence[str], folder: Path) -> None:
    """Start a number of processes on this machine, and wait for their end.

    Raises:
        ChildFailedError: One has died; the others were ended.
        SignalException: A signal came.
    """
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=number,
        run_id=f"{folder.name}-{restart}",
        rdzv_backend="c10d",
        rdzv_endpoint=str(folder / f"rendezvous-{restart}"),
        rdzv_configs={"store_type": "file"},
        local_addr="127.0.0.1",
        max_restarts=0,
    )
    variables = {
        STORE: str(folder / f"store-{restart}"),  # after a restart, the old one would lead astray
        RESTARTS: str(restart),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": SHUTDOWN_SECONDS,
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        **threads_of_processes(),
    }
    with temporary_environment(variables):
        elastic_launch(config, command[0])(*command[1:])


def check(nproc: int) -> dict[str, Any]:
    """Start processes that measure how they reach each other, and return what they say; see `check.py`.

    Raises:
        WorldError: They do not find each other, or die.
    """
    with tempfile.TemporaryDirectory(prefix="trainwright-") as folder:
        command = [sys.executable, "-P", "-m", f"{__package__}.check", folder]
        silence()
        try:
            _start(nproc, 0, command, Path(folder))
        except ChildFailedError as error:
            raise failed(error, nproc, 0) from error
        measured: dict[str, Any] = json.loads((Path(folder) / RESULT).read_text(encoding="utf-8"))
    return measured
