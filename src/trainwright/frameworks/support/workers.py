"""Processes that read batches of samples ahead of the training.

Each worker is a fork of this process, so that it has the data set whatever that is. It reads one batch after
the other into memory that both share. It ends when this process ends, however that happens; and if it ends or
hangs itself, the error says which sample it was reading.
"""

from __future__ import annotations

import logging
import mmap
import multiprocessing
import os
import selectors
import signal
import tempfile
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import IO, Any, NamedTuple

import numpy as np

from trainwright.datasets.base import Draw, Reading, SampleSplit
from trainwright.errors import DataError, TrainingError
from trainwright.frameworks.support.worker import FAILED, INLINE, NO_SAMPLE, Request, serve
from trainwright.types import Array, Ids

log = logging.getLogger("trainwright")
_POLL_SECONDS = 1.0  # between two looks at what a slow worker does
_DUMP_SECONDS = 2.0  # for a worker to write where it hangs
_PATIENCE = 30.0  # seconds of waiting for one sample that are worth a warning


class Ticket(NamedTuple):
    """A batch that a worker reads; `Workers.batch` returns it."""

    worker: int
    number: int


@dataclass
class _Worker:
    """A worker process: the end of its pipe, what it shares, and what it was asked for and has answered."""

    process: Any
    pipe: Connection
    slots: Sequence[mmap.mmap]  # one for each batch that it may read ahead
    current: Any  # (1,) int64, shared: the position of the sample that it reads
    stacks: IO[bytes]  # where it writes its stacks when it is asked to
    requests: dict[int, Request] = field(default_factory=dict)  # by number
    answers: dict[int, tuple[str, Any]] = field(default_factory=dict)
    free: deque[int] = field(default_factory=deque)  # the slots that hold no batch


class Workers:
    """Worker processes that read batches of one split.

    Args:
        split: The samples; what it reads there is as of now.
        row_bytes: The usual size of a sample.
        rows: The usual number of samples in a batch. Larger batches come through a pipe, which is slower.
    """

    def __init__(self, split: SampleSplit, row_bytes: int, rows: int) -> None:
        self._reading: Reading = split.reading
        self._number = 0
        size = max(1, row_bytes * rows + 4096)  # room to align the arrays
        self._workers = [_start(split, size, index) for index in range(self._reading.workers)]
        self._end = weakref.finalize(self, _end, [worker.process for worker in self._workers])

    @property
    def depth(self) -> int:
        """The number of batches that may be asked for before one is taken."""
        return self._reading.workers * self._reading.prefetch

    def submit(self, ids: Ids, draw: Draw) -> Ticket:
        """Ask for a batch; at most `depth` of them may be outstanding.

        Raises:
            TrainingError: The worker hangs.
        """
        self._number += 1
        index = max(range(len(self._workers)), key=lambda index: len(self._workers[index].free))
        worker = self._workers[index]
        request = Request(self._number, worker.free.popleft(), ids, draw)
        worker.requests[request.number] = request
        try:
            for part in request.parts():
                self._await(index, worker, None)
                worker.pipe.send(part)
        except (OSError, EOFError):  # it has died, which `batch` finds
            log.debug("data worker %d does not listen", index)
        return Ticket(index, request.number)

    def batch(self, ticket: Ticket, copied: Callable[[Mapping[str, Array]], Any]) -> Any:
        """Wait for a batch, and return what `copied` makes of it: it copies the arrays out of shared memory.

        Raises:
            DataError: A sample cannot be read.
            TrainingError: The worker has died, or hangs.
        """
        worker = self._workers[ticket.worker]
        if ticket.number not in worker.answers:
            try:
                self._await(ticket.worker, worker, ticket.number)
            except (OSError, EOFError):
                raise self._died(ticket.worker, worker) from None
        kind, answer = worker.answers.pop(ticket.number)
        request = worker.requests.pop(ticket.number)
        try:
            if kind == FAILED:
                raise answer
            if kind == INLINE:
                return copied(answer)
            slot = worker.slots[request.slot]
            return copied({name: _array(slot, *where) for name, where in answer.items()})
        finally:
            worker.free.append(request.slot)

    def drop(self, ticket: Ticket) -> None:
        """Forget a batch that was asked for."""
        with suppress(DataError):
            self.batch(ticket, lambda _: None)

    def close(self) -> None:
        """End the processes."""
        self._end()

    def _await(self, index: int, worker: _Worker, number: int | None) -> None:
        """Take the answers of a worker until one is there, as long as it makes progress.

        Without a number, until its pipe has room for a request: a worker that sends an answer which the pipe
        does not hold takes no request before that is taken.

        Raises:
            EOFError, OSError: The worker has died.
            TrainingError: The worker hangs.
        """
        began = progressed = time.monotonic()
        before, is_late = self._progress(worker), False
        while True:
            can_read, can_write = _ready(worker, writing=number is None)
            try:
                while can_read and worker.pipe.poll():
                    answered, kind, answer = worker.pipe.recv()
                    worker.answers[answered] = (kind, answer)
            except (EOFError, OSError):
                if number not in worker.answers:
                    raise
            if number in worker.answers or can_write:
                return
            if (now := self._progress(worker)) != before:
                before, progressed = now, time.monotonic()
            waited = time.monotonic() - progressed
            if waited > self._reading.timeout:
                raise self._hangs(index, worker, waited)
            if waited > _PATIENCE and not is_late:
                is_late = True
                log.warning(
                    "data worker %d has read %s for %.0f s, and training waits for it",
                    *(index, self._sample(worker), time.monotonic() - began),
                )

    def _progress(self, worker: _Worker) -> tuple[int, int]:
        """Return what changes while a worker works: the answers taken, and the sample that it reads."""
        return len(worker.answers), int(worker.current[0])

    def _sample(self, worker: _Worker) -> str:
        position = int(worker.current[0])
        name = self._reading.name
        return f"item {position} of {name}" if position != NO_SAMPLE else f"no item of {name}"

    def _died(self, index: int, worker: _Worker) -> TrainingError:
        worker.process.join(_DUMP_SECONDS)
        code = worker.process.exitcode
        how = "ended" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        memory = "; the machine may have run out of memory" if code == -signal.SIGKILL else ""
        return TrainingError(
            f"data worker {index} (pid {worker.process.pid}) {how} while it read "
            f"{self._sample(worker)}{memory}; resume the run to go on from the last checkpoint"
        )

    def _hangs(self, index: int, worker: _Worker, seconds: float) -> TrainingError:
        stacks = _stacks(worker)
        log.error("the stacks of data worker %d:\n%s", index, stacks)
        return TrainingError(
            f"data worker {index} (pid {worker.process.pid}) hangs: it has read {self._sample(worker)} for "
            f"{seconds:.0f} s (data.timeout: {self._reading.timeout:g}){_innermost(stacks)}; resume the run "
            "to go on from the last checkpoint"
        )


def _start(split: SampleSplit, size: int, index: int) -> _Worker:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    slots = [mmap.mmap(-1, size) for _ in range(split.reading.prefetch)]
    current: Any = np.frombuffer(mmap.mmap(-1, 8), np.int64)
    current[0] = NO_SAMPLE
    stacks = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the worker
    process = context.Process(
        target=serve,
        args=(split, theirs, ours, slots, current, stacks.fileno(), os.getpid()),
        name=f"data worker {index}",
        daemon=True,
    )
    with warnings.catch_warnings():
        # Python warns of forks of threads. The child uses no lock of theirs, and one thread of torch.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    theirs.close()
    return _Worker(process, ours, slots, current, stacks, free=deque(range(len(slots))))


def _ready(worker: _Worker, *, writing: bool) -> tuple[bool, bool]:
    """Wait until a pipe can be read, or written; return which of both.

    Raises:
        EOFError: The worker has died, and there is nothing to read.
    """
    with selectors.DefaultSelector() as selector:
        both = selectors.EVENT_READ | (selectors.EVENT_WRITE if writing else 0)
        selector.register(worker.pipe, both)
        selector.register(worker.process.sentinel, selectors.EVENT_READ)
        ready = {key.fileobj: events for key, events in selector.select(_POLL_SECONDS)}
    events = ready.get(worker.pipe, 0)
    if worker.process.sentinel in ready and not events & selectors.EVENT_READ:
        raise EOFError
    return bool(events & selectors.EVENT_READ), bool(events & selectors.EVENT_WRITE)


def _array(slot: mmap.mmap, start: int, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return an array, a view of shared memory."""
    count = int(np.prod(shape))
    return np.frombuffer(slot, dtype, count, start).reshape(shape)


def _stacks(worker: _Worker) -> str:
    """Have a worker write its stacks, and return them."""
    with suppress(ProcessLookupError):
        os.kill(worker.process.pid, signal.SIGUSR1)
    until = time.monotonic() + _DUMP_SECONDS
    written = -1
    while (size := os.fstat(worker.stacks.fileno()).st_size) != written or not size:
        if time.monotonic() > until:
            break
        written = size
        wait([worker.process.sentinel], 0.05)
    return os.pread(worker.stacks.fileno(), 100_000, 0).decode(errors="replace")


def _innermost(stacks: str) -> str:
    """Return where the most recent call of a dump is, for a message."""
    lines = [line.strip() for line in stacks.splitlines() if line.startswith("  File ")]
    return f", in {lines[0]}" if lines else ""


def _end(processes: Sequence[Any]) -> None:
    """Kill the processes: they hold nothing that must be written."""
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
