"""Torch's elastic agent, which starts processes and watches them: what all of its uses here share."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterable, Iterator

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher import api

from trainwright.errors import WorldError
from trainwright.frameworks.torch.parallel.watch import HUNG
from trainwright.world import FINAL, RETRYABLE

SHUTDOWN_SECONDS = "600"  # seconds that the processes have to finish their step and to save it after a signal


class _Agent(LocalElasticAgent):
    """An agent that starts nothing again after an end that is final."""

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        result: RunResult = super()._monitor_workers(worker_group)
        if is_final(result.failures.values()):
            self._remaining_restarts = 0
        return result


@contextlib.contextmanager
def ending_finally() -> Iterator[None]:
    """Let the agents that torch makes here start nothing again after an end that is final."""
    before = api.LocalElasticAgent  # type: ignore[attr-defined]
    api.LocalElasticAgent = _Agent  # type: ignore[attr-defined]
    try:
        yield
    finally:
        api.LocalElasticAgent = before  # type: ignore[attr-defined]


def is_final(failures: Iterable[ProcessFailure]) -> bool:
    """Return whether a process has said that no other try would help; the rest are its consequences."""
    return any(one.exitcode == FINAL for one in failures)


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
