"""Starts the processes of a run on this machine, as torchrun does."""

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

from trainyard.errors import WorldError
from trainyard.frameworks.torch.parallel.world import STORE

RESULT = "measured.json"  # of a check

_TO_COMMIT = "600"  # seconds that the processes have to finish their step and to save it after a signal


def launch(nproc: int, max_restarts: int, command: Sequence[str], folder: Path) -> int | None:
    """Start processes, and wait for their end; if one dies, end all, and start them again.

    They find each other in files, so that no port is open but those of gloo, on the loopback interface.

    Returns:
        The signal that has ended them, if one has; they have had time to commit.

    Raises:
        WorldError: A process has died, and there were enough restarts.
    """
    _silence()
    environment = {
        STORE: str(folder / "store"),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": _TO_COMMIT,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),  # torchrun warns that it sets it
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=nproc,
        run_id=folder.name,
        rdzv_backend="c10d",
        rdzv_endpoint=str(folder / "rendezvous"),
        rdzv_configs={"store_type": "file"},
        local_addr="127.0.0.1",
        max_restarts=max_restarts,
    )
    try:
        elastic_launch(config, command[0])(*command[1:])
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise WorldError(
            f"process {rank} of {nproc} ended with exit code {failure.exitcode}"
            f"{_named_signal(failure.exitcode)}, after {max_restarts} restarts"
        ) from error
    except SignalException as error:
        return error.sigval
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
    return None


def check(nproc: int) -> dict[str, Any]:
    """Start processes that measure how they reach each other, and return what they say; see `check.py`.

    Raises:
        WorldError: They do not find each other, or die.
    """
    with tempfile.TemporaryDirectory(prefix="trainyard-") as folder:
        command = [sys.executable, "-m", f"{__package__}.check", folder]
        launch(nproc, 0, command, Path(folder))
        measured: dict[str, Any] = json.loads((Path(folder) / RESULT).read_text(encoding="utf-8"))
    return measured


def _silence() -> None:
    """Keep the agent from logging what we say in our own words; each of its modules has a logger."""
    for name in logging.root.manager.loggerDict:
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _named_signal(exit_code: int) -> str:
    return f" ({signal.Signals(-exit_code).name})" if exit_code < 0 else ""
