"""The world of processes that torch's process group connects."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from functools import cache
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from trainwright.errors import InputError, WorldError
from trainwright.frameworks.torch.parallel.saving import SaveGroup
from trainwright.frameworks.torch.parallel.stopwatch import waiting
from trainwright.frameworks.torch.parallel.watch import Watch
from trainwright.world import Mesh, World, portable, ranks_of_environment

T = TypeVar("T")
STORE = "TRAINWRIGHT_STORE"  # the file in which local processes find each other
# The processes wait for each other at collective calls: for the main one while it evaluates or saves, too.
_TIMEOUT = timedelta(days=7)
_FIND_EACH_OTHER = timedelta(minutes=15)
_GROUPS = count()  # all processes make as many


class ProcessGroup(World):
    """The processes of a torch process group.

    Small values travel over gloo; tensors over the backend of their device.
    """

    def __init__(self, rank: int, size: int, local_rank: int, backend: str, mesh: Mesh) -> None:
        self.rank, self.size, self.local_rank, self.mesh = rank, size, local_rank, mesh
        self._savers: dict[bool, SaveGroup] = {}
        self._watch = Watch(rank)
        if backend == "nccl":
            # A launcher, such as srun, may give each process a GPU of its own, the only one that it sees.
            torch.cuda.set_device(local_rank if local_rank < torch.cuda.device_count() else 0)
        backend = "cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo"
        try:
            with _signals_end_at_once():
                self._store = _store(rank, size)
                self._store.set_timeout(_FIND_EACH_OTHER)
                _meet(self._store, rank, size)
                self._connect(backend)
            self._watch.start(self)
        except WorldError:
            raise
        except Exception as error:
            raise WorldError(
                f"the {size} processes did not find each other: {error}; "
                "`trainwright doctor --distributed` says what is wrong"
            ) from error

    def _connect(self, backend: str) -> None:
        # If a process dies now, the others wait for it.
        self._watch.begin("the search for others", _FIND_EACH_OTHER.total_seconds())
        try:
            dist.init_process_group(
                backend, store=self._store, rank=self.rank, world_size=self.size, timeout=_TIMEOUT
            )
        finally:
            self._watch.rest()

    def leave(self) -> None:
        """End the process group, so that the processes may find each other again for another run.

        Threads of gloo that still run when the interpreter ends may abort the process.
        """
        self._watch.close()
        dist.destroy_process_group()

    def savers(self, *, everyone: bool) -> SaveGroup:
        """Return the processes that write checkpoints together; a collective call.

        Args:
            everyone: Whether all do, or only those on the main process's machine.
        """
        if everyone not in self._savers:
            self._savers[everyone] = SaveGroup(self, everyone=everyone)
        return self._savers[everyone]

    def watch(self, seconds: float) -> None:
        """End this process where it hangs in the next steps; see `World.watch`."""
        # All make the same steps: one that hangs ends first, and those that wait for it only where it cannot.
        self._watch.begin("a step", seconds, waits=2 * seconds)

    def rest(self) -> None:
        """Stop watching the steps."""
        self._watch.rest()

    def working(self, where: str, least: float = 60.0) -> AbstractContextManager[None]:
        """Return a context in which this process is ended where it hangs; see `World.working`."""
        return self._watch.working(where, least)

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank."""
        values: list[Any] = [None] * self.size
        self._collective(lambda: dist.all_gather_object(values, value))
        return values

    def to_main(self, value: T) -> list[T]:
        """Return the values of all processes, by rank, in the main one; none in the others."""
        values: list[Any] | None = [None] * self.size if self.is_main else None
        self._collective(lambda: dist.gather_object(value, values))
        return values or []

    def from_main(self, function: Callable[[], T]) -> T:
        """Call a function in the main process, and return its value, or raise its exception, in every one."""
        answer: list[Any] = [None]
        if self.is_main:
            try:
                answer = [(function(), None)]
            except Exception as error:
                self._tell([(None, portable(error))])
                raise
        self._tell(answer)
        value, raised = answer[0]
        if raised is not None:
            raise raised
        result: T = value
        return result

    def main_only(self, function: Callable[[], Any]) -> None:
        """Call a function in the main process for its effect; its value stays there."""

        def call() -> None:
            function()

        self.from_main(call)

    def _tell(self, values: list[Any]) -> None:
        """Broadcast the main process's values: replace, in every process, the items of the list by them."""
        self._collective(lambda: dist.broadcast_object_list(values, src=0))

    def _collective(self, call: Callable[[], None]) -> None:
        try:
            with waiting:
                call()
        except RuntimeError as error:  # torch's DistBackendError is one
            raise WorldError(f"another process is gone ({error})") from error


def join(backend: str, mesh: Callable[[int], Mesh] = lambda size: Mesh(data=size)) -> World:
    """Return the world of the processes that a launcher has started, this one being one of them.

    Args:
        backend: What the processes talk over: `gloo` or `nccl`.
        mesh: Returns the mesh of so many processes; default: one along `data`.

    Raises:
        InputError: No launcher has, or so many processes form no mesh.
        WorldError: The processes do not find each other.
    """
    ranks = ranks_of_environment()
    if ranks is None and "RANK" in os.environ:
        return World()  # one process is left of several
    if ranks is None:
        raise InputError("no launcher has started this process: RANK and WORLD_SIZE are not set")
    return ProcessGroup(*ranks, backend, mesh(ranks[1]))


@contextmanager
def _signals_end_at_once() -> Iterator[None]:
    """Let SIGTERM and SIGINT end this process while it waits for the others: there is nothing to save.

    Handlers in Python would run when the wait is over, which it never is if another process has died. The
    launcher sends these signals then, and the kernel does when the launcher has died.
    """
    previous = {}
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for signum in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(signum) is not None:  # else it is not of Python, and works at once
                previous[signum] = signal.signal(signum, signal.SIG_DFL)
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def _meet(store: Any, rank: int, size: int) -> None:
    """Wait until all processes are there: what connects them then waits as long as for a collective call.

    Raises:
        WorldError: Some do not come.
    """
    keys = [f"here-{one}" for one in range(size)]
    store.set(keys[rank], "")
    try:
        store.wait(keys, _FIND_EACH_OTHER)
    except RuntimeError as error:  # torch's DistError is one
        missing = [str(one) for one, key in enumerate(keys) if not store.check([key])]
        if not missing:
            raise
        minutes = _FIND_EACH_OTHER.total_seconds() / 60
        raise WorldError(
            f"process {', '.join(missing[:8])} of {size} did not come within {minutes:g} minutes; see its "
            "output, or the log of its machine; `trainwright doctor --distributed` says what is wrong"
        ) from error


def _store(rank: int, size: int) -> Any:
    """Return the store in which the processes find each other, apart from that of earlier attempts.

    The keys of dead processes, or of an earlier run of these, would lead them astray.
    """
    if (path := os.environ.get(STORE)) is not None:
        return dist.FileStore(path, size)  # type: ignore[attr-defined]
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))
    is_hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = _server(host, port, not is_hosted and rank == 0)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") if is_hosted else "0"
    return dist.PrefixStore(f"attempt-{attempt}-{next(_GROUPS)}", store)  # type: ignore[attr-defined]


@cache
def _server(host: str, port: int, is_main: bool) -> Any:
    """Return the connection to the server of the store, which the main process starts and keeps."""
    return dist.TCPStore(host, port, is_master=is_main)  # type: ignore[attr-defined]
