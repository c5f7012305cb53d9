"""The queue of a replica: requests wait in it, and one thread answers them in batches.

Requests that come while the model is busy are answered together. A batch of fewer requests than the
one before waits a little (`batch_seconds`) for as many, so that clients that work in step meet in one batch;
a client that is alone never waits. The model is called by this thread alone.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trainwright.servers.service.errors import full, late, stopping

log = logging.getLogger("trainwright")


@dataclass(eq=False)
class Job:
    """Work for the model: rows to predict, or one call of a function.

    Attributes:
        key: Jobs of one key are answered together; None: this one alone.
        work: What the model needs to know.
        rows: The number of rows, which the limits count.
        deadline: The time, by `time.monotonic`, after which nobody waits for the answer.
        future: Gets the answer, in the loop of the server.
        began: The time at which the job was queued.
    """

    key: object
    work: Any
    rows: int
    deadline: float
    future: asyncio.Future[Any]
    began: float = field(default_factory=time.monotonic)


class Answering(Protocol):
    """A function that answers jobs of one key."""

    def __call__(self, jobs: Sequence[Job]) -> Sequence[Any]:
        """Return an answer for each job; an exception is raised where the job waits."""


class Batcher:
    """A bounded queue, and the thread that empties it.

    Args:
        answer: Answers the jobs of a batch, in the thread.
        max_batch: The number of rows of a batch; a single job may have more.
        batch_seconds: How long a batch waits for more jobs.
        max_waiting: The number of rows that may wait.
        timeout: How long a job may wait for its answer, in seconds.
    """

    def __init__(
        self,
        answer: Answering,
        *,
        max_batch: int,
        batch_seconds: float,
        max_waiting: int,
        timeout: float,
    ) -> None:
        self._answer = answer
        self._max_batch = max_batch
        self._batch_seconds = batch_seconds
        self._max_waiting = max_waiting
        self._timeout = timeout
        self._jobs: deque[Job] = deque()
        self._waiting = 0  # rows in the queue
        self._changed = threading.Condition()
        self._is_closed = False
        self._last = 0  # jobs of the batch before
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    @property
    def waiting(self) -> int:
        """The number of rows that wait."""
        return self._waiting

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def ask(self, work: Any, rows: int, key: object = None) -> Any:
        """Return the answer to one job.

        Raises:
            RequestError: The queue is full, or the answer took too long; or the one of the answer.
        """
        loop = asyncio.get_running_loop()
        job = Job(key, work, rows, time.monotonic() + self._timeout, loop.create_future())
        with self._changed:
            if self._is_closed:
                raise stopping()
            # A request larger than the whole queue is taken by an empty one.
            if self._waiting and self._waiting + rows > self._max_waiting:
                raise full(self._waiting, self._max_waiting)
            self._jobs.append(job)
            self._waiting += rows
            self._changed.notify()
        try:
            async with asyncio.timeout_at(loop.time() + self._timeout):
                return await job.future
        except TimeoutError:
            raise late(self._timeout) from None

    def close(self) -> None:
        """Answer what waits, and stop the thread."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while jobs := self._next():
            try:
                answers = self._answer(jobs)
            except Exception as error:  # each job gets it
                answers = [error] * len(jobs)
            jobs[0].future.get_loop().call_soon_threadsafe(_deliver, jobs, answers)

    def _next(self) -> list[Job]:
        """Return the jobs of the next batch; none when the queue is closed and empty."""
        with self._changed:
            while True:
                while not self._jobs:
                    if self._is_closed:
                        return []
                    self._changed.wait()
                self._wait_for_more()
                if jobs := self._taken():
                    self._last = len(jobs)
                    return jobs

    def _wait_for_more(self) -> None:
        """Wait for as many jobs as the batch before had."""
        until = time.monotonic() + self._batch_seconds
        while len(self._jobs) < self._last and self._waiting < self._max_batch and not self._is_closed:
            if (left := until - time.monotonic()) <= 0:
                break
            self._changed.wait(left)

    def _taken(self) -> list[Job]:
        """Take the first job, and those of its key that fit into its batch, out of the queue."""
        jobs: list[Job] = []
        left: deque[Job] = deque()
        now, rows = time.monotonic(), 0
        while self._jobs:
            job = self._jobs.popleft()
            if job.future.cancelled() or job.deadline < now:
                self._waiting -= job.rows  # nobody waits for it
            elif not jobs or (
                job.key is not None and job.key == jobs[0].key and rows + job.rows <= self._max_batch
            ):
                jobs.append(job)
                rows += job.rows
                self._waiting -= job.rows
                if rows >= self._max_batch or job.key is None:
                    break
            else:
                left.append(job)
        self._jobs.extendleft(reversed(left))
        return jobs


def _deliver(jobs: Sequence[Job], answers: Sequence[Any]) -> None:
    """Give the answers to those who wait, in the loop of the server."""
    for job, answer in zip(jobs, answers, strict=True):
        if job.future.done():  # cancelled, or too late
            continue
        if isinstance(answer, Exception):
            job.future.set_exception(answer)
        else:
            job.future.set_result(answer)
