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
    """Return the error that names the first process that died, of a number of processes."""
    rank, how = first_death(error)
    return WorldError(f"process {rank} of {number} {how}, after {restarts} restarts")


def first_death(error: ChildFailedError) -> tuple[int, str]:
    """Return the process that died first, and how.

    Others, which only say that it is gone, count where none died. One that was killed comes before those that
    abort at the same time: they are its consequence.
    """
    died = {rank: one for rank, one in error.failures.items() if one.exitcode != RETRYABLE} or error.failures
    rank = min(died, key=lambda rank: (died[rank].timestamp, died[rank].exitcode != -signal.SIGKILL))
    code = died[rank].exitcode
    return rank, "hung" if code == HUNG else f"ended with exit code {code}{_named_signal(code)}"


def silence() -> None:
    """Keep the agent from logging what we say in our own words; each of its modules has a logger."""
    for name in logging.root.manager.loggerDict:
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _named_signal(exit_code: int) -> str:
    return f" ({signal.Signals(-exit_code).name})" if exit_code < 0 else ""
