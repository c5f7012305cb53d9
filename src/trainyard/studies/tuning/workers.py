"""Where the jobs of a study are done: in this process, or in several worker processes.

An executor takes jobs and says, one by one, how they have ended. A worker process that dies is replaced, and
its job goes on from the newest checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, cast

from trainyard.callbacks.base import Callback
from trainyard.config import Resolved
from trainyard.datasets.base import DataBundle
from trainyard.engine.signals import STATUS_OF, Stopped
from trainyard.errors import TrainyardError
from trainyard.records.status import Ended
from trainyard.studies.tuning.jobs import Job, hidden, train

_POLL_SECONDS = 0.2  # between two looks at whether a signal has come
_MOST_DEATHS = 3  # of workers at one job, after which its trial has failed


class Outcome(NamedTuple):
    """How the attempt of a job has ended: a status of runs, or `failed` with an error."""

    job: Job
    status: str
    error: str | None = None


class Executor(Protocol):
    """Does jobs, as many at once as it has `slots`."""

    slots: int

    def submit(self, job: Job) -> None:
        """Begin a job; there is a free slot."""

    def wait(self) -> Outcome:
        """Return how the next job has ended; some job has been submitted.

        Raises:
            Stopped: A signal has come, and no job is being done any more.
        """

    def close(self) -> None:
        """End what is left; jobs that are being done save and stop."""


class InProcess:
    """Does one job at a time, in this process.

    Args:
        bundle: Returns the data that were given as objects, if any, as a config prepares them.
        callbacks: Observers of the runs.
    """

    slots = 1

    def __init__(
        self, bundle: Callable[[Resolved], DataBundle | None], callbacks: Sequence[Callback] = ()
    ) -> None:
        self._bundle, self._callbacks = bundle, callbacks
        self._job: Job | None = None

    def submit(self, job: Job) -> None:
        """Begin a job; see `Executor.submit`."""
        self._job = job

    def wait(self) -> Outcome:
        """Do the job; see `Executor.wait`."""
        job, self._job = self._job, None
        assert job is not None
        try:
            status = train(job, self._bundle, self._callbacks)
        except TrainyardError as error:
            return Outcome(job, "failed", hidden(job.runs[0], error))
        if status in STATUS_OF.values():
            raise Stopped(cast("Ended", status))
        return Outcome(job, status)

    def close(self) -> None:
        """Do nothing; see `Executor.close`."""


@dataclass
class _Worker:
    """A worker process, the pipe of its answers, and its job."""

    process: subprocess.Popen[bytes]
    answers: int
    job: Job | None = None
    text: bytes = b""

    @staticmethod
    def start(log_level: int) -> _Worker:
        """Start a process."""
        answers, own = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "trainyard", "do-jobs", str(own), str(os.getpid()), str(log_level)],
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL,
                pass_fds=(own,),
                start_new_session=True,  # Ctrl-C is for this process, which passes it on
            )
        finally:
            os.close(own)
        return _Worker(process, answers)

    def send(self, job: Job) -> None:
        """Give the worker a job; one that has died is noticed by its pipe."""
        self.job = job
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(job.to_json()).encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> dict[str, Any] | None:
        """Return an answer; an empty one if the worker has died; None if it is not complete."""
        data = os.read(self.answers, 1 << 16)
        if not data:
            return {}
        self.text += data
        line, end, rest = self.text.partition(b"\n")
        if not end:
            return None
        self.text = rest
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> int:
        """Close the pipes, wait for the process, and return how it ended."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        os.close(self.answers)
        return self.process.wait()


@dataclass
class WorkerProcesses:
    """Does jobs in worker processes, each of which makes one run after another.

    Args:
        slots: The number of processes.
        signal_status: Returns what a signal to this process asks for, if one came.
        log_level: The level of the log that the workers write to stderr.
    """

    slots: int
    signal_status: Callable[[], Ended | None]
    log_level: int
    _workers: list[_Worker] = field(default_factory=list)
    _deaths: dict[int, int] = field(default_factory=dict)

    def submit(self, job: Job) -> None:
        """Begin a job; see `Executor.submit`."""
        idle = next((worker for worker in self._workers if worker.job is None), None)
        if idle is None:
            idle = _Worker.start(self.log_level)
            self._workers.append(idle)
        idle.send(job)

    def wait(self) -> Outcome:
        """Return how the next job has ended; see `Executor.wait`."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                if worker.job is not None:
                    selector.register(worker.answers, selectors.EVENT_READ, worker)
            while True:
                if status := self.signal_status():
                    self.close()
                    raise Stopped(status)
                for key, _ in selector.select(_POLL_SECONDS):
                    answer = key.data.read()
                    if answer is None:
                        continue
                    if not answer:
                        selector.unregister(key.fd)
                    if (outcome := self._outcome(key.data, answer)) is not None:
                        return outcome
                    if not answer:
                        self._register_busy(selector)

    def _register_busy(self, selector: selectors.BaseSelector) -> None:
        known = {key.fd for key in selector.get_map().values()}
        for worker in self._workers:
            if worker.job is not None and worker.answers not in known:
                selector.register(worker.answers, selectors.EVENT_READ, worker)

    def _outcome(self, worker: _Worker, answer: dict[str, Any]) -> Outcome | None:
        """Return what an answer says; None if a worker has died whose job another one goes on with."""
        job = worker.job
        assert job is not None
        if answer:
            worker.job = None
            return Outcome(job, answer["status"], answer.get("error"))
        self._workers.remove(worker)
        code = worker.end()
        self._deaths[job.number] = deaths = self._deaths.get(job.number, 0) + 1
        if deaths >= _MOST_DEATHS:
            return Outcome(job, "failed", f"its process died {deaths} times, the last time {_how(code)}")
        self.submit(job)
        return None

    def close(self) -> None:
        """Ask the workers to save and stop, and wait for them; see `Executor.close`."""
        for worker in self._workers:
            if worker.job is not None:
                with contextlib.suppress(ProcessLookupError):
                    worker.process.send_signal(signal.SIGTERM)
        for worker in self._workers:
            worker.end()
        self._workers.clear()


def _how(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True


def do_jobs(answers: int) -> Ended | None:
    """Do the jobs that arrive on stdin, one after the other, and write how each ended.

    Returns:
        The status that a signal asked for, if one came.
    """
    for line in sys.stdin.buffer:
        job = Job.from_json(json.loads(line))
        answer: dict[str, Any]
        try:
            answer = {"status": train(job)}
        except TrainyardError as error:
            answer = {"status": "failed", "error": hidden(job.runs[0], error)}
        except Stopped as stopped:
            return stopped.status
        if answer["status"] in STATUS_OF.values():
            return cast("Ended", answer["status"])
        os.write(answers, json.dumps(answer).encode() + b"\n")
    return None
