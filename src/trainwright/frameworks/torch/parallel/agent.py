"""Torch's elastic agent, which starts processes and watches them: what all of its uses here share."""

from __future__ import annotations

import logging
import signal

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from trainwright.errors import WorldError
from trainwright.frameworks.torch.parallel.watch import HUNG
from trainwright.world import RETRYABLE

SHUTDOWN_SECONDS = "600"  # seconds that the processes have to finish their step and to save it after a signal


def failed(error: ChildFailedError, number: int, restarts: int) -> WorldError:
    """Return the error that names the first process that died, of a number of processes.

    Others, which only say that it is gone, count where none died.
    """
    died = {rank: one for rank, one in error.failures.items() if one.exitcode != RETRYABLE} or error.failures
    rank, failure = min(died.items(), key=lambda pair: pair[1].timestamp)
    code = failure.exitcode
    ended = "hung" if code == HUNG else f"ended with exit code {code}{_named_signal(code)}"
    return WorldError(f"process {rank} of {number} {ended}, after {restarts} restarts")


def silence() -> None:
    """Keep the agent from logging what we say in our own words; each of its modules has a logger."""
    for name in logging.root.manager.loggerDict:
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _named_signal(exit_code: int) -> str:
    return f" ({signal.Signals(-exit_code).name})" if exit_code < 0 else ""
