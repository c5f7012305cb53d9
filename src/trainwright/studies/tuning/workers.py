"""The executor of a search's stints by worker processes, and by workers that have joined.

Stints go to a worker process, and messages come back, as lines of JSON in pipes. A worker process that dies
is replaced, and any free worker continues its stint from the newest checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from trainwright.engine.signals import STATUS_OF, Stopped
from trainwright.errors import TrainwrightError
from trainwright.records.status import Ended
from trainwright.runs.data.shared import sharing_data
from trainwright.studies.driver import log_warnings_once
from trainwright.studies.tuning.joined_workers import LEFT, JoinedWorker, JoinedWorkers
from trainwright.studies.tuning.stints import Stint, StintOutcome, failure, train, unfinished
from trainwright.studies.tuning.trial_configs import visible_gpus

_POLL_SECONDS = 0.2  # between two checks whether a signal has come
_MOST_DEATHS = 3  # of workers at one stint, after which its trial has failed


@dataclass
class _Worker:
    """A worker process, the GPUs that it sees, and its stint."""

    process: WorkerProcess
    gpus: str | None = None
    stint: Stint | None = None

    @property
    def is_idle(self) -> bool:
        """True if it may be given a stint."""
        return self.stint is None

    @staticmethod
    def start(log_level: int, gpus: str | None = None) -> _Worker:
        """Start a process, which sees these GPUs, or all."""
        stdout = sys.stderr.fileno() if _has_descriptor(sys.stderr) else subprocess.DEVNULL
        environment = visible_gpus(gpus)
        process = WorkerProcess.start("do-stints", log_level, stdout=stdout, environment=environment)
        return _Worker(process, gpus)

    def send(self, stint: Stint) -> None:
        """Give the worker a stint."""
        self.stint = stint
        self.process.send(stint.to_json())


@dataclass
class WorkerProcesses:
    """The workers of a study: processes that make one run after another, and workers that have joined.

    Args:
        count: The number of processes that this one starts.
        signal_status: Returns what a signal to this process asks for, if one came.
        log_level: The level of the log that the workers write to stderr.
        joined: The workers that have joined the study.
        gpus: The GPUs that each process sees, as CUDA_VISIBLE_DEVICES; empty: all that there are.
    """

    count: int
    signal_status: Callable[[], Ended | None]
    log_level: int
    joined: JoinedWorkers = field(default_factory=JoinedWorkers)
    gpus: Sequence[str] = ()
    _workers: list[_Worker] = field(default_factory=list)
    _deaths: dict[int, int] = field(default_factory=dict)
    _waiting: list[Stint] = field(default_factory=list)

    @property
    def slots(self) -> int:
        """The number of workers; see `Executor.slots`."""
        return self.count + len(self.joined.workers)

    def submit(self, stint: Stint) -> None:
        """Begin a stint; see `Executor.submit`."""
        self._waiting.append(stint)
        self._give()

    def _give(self) -> None:
        """Give the stints that wait to workers that are free."""
        for stint in list(self._waiting):
            worker = self._worker_for(stint)
            if worker is not None:
                self._waiting.remove(stint)
                worker.send(stint)

    def _worker_for(self, stint: Stint) -> _Worker | JoinedWorker | None:
        """Return the worker that is doing a stint for an earlier leader of the study, or a free one."""
        joined = self.joined.workers
        for known in (worker for worker in joined if worker.stint is None and worker.does(stint)):
            return known
        if all(worker.stint for worker in self._workers) and len(self._workers) < self.count:
            self._workers.append(self._started())
        everyone: list[_Worker | JoinedWorker] = [*self._workers, *joined]
        return next((worker for worker in everyone if worker.is_idle), None)

    def _started(self) -> _Worker:
        """Start a process, with GPUs that none of the others has."""
        free = [share for share in self.gpus if all(worker.gpus != share for worker in self._workers)]
        return _Worker.start(self.log_level, next(iter(free), None))

    def wait(self) -> StintOutcome | None:
        """Return how the next stint has ended; see `Executor.wait`."""
        slots = self.slots
        while True:
            if status := self.signal_status():
                self.close()
                raise Stopped(status)
            for worker in self._answering():
                answer = worker.process.read()
                if answer is not None and (outcome := self._outcome(worker, answer)) is not None:
                    return outcome
            for other, answer in self.joined.poll():
                if (outcome := self._outcome(other, answer)) is not None:
                    return outcome
            self._give()
            if self.slots > slots:
                return None

    def _answering(self) -> list[_Worker]:
        """Wait a moment, and return the worker processes that have written something, or died."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                if worker.stint is not None:
                    selector.register(worker.process.messages, selectors.EVENT_READ, worker)
            return [key.data for key, _ in selector.select(_POLL_SECONDS)]

    def _outcome(self, worker: _Worker | JoinedWorker, answer: dict[str, Any]) -> StintOutcome | None:
        """Return what an answer says; None if the worker is gone, and another one continues its stint.

        Raises:
            InputError, TrainingError: The trial cannot be trained for now.
        """
        stint, worker.stint = worker.stint, None
        if stint is None:  # an earlier leader of the study has given it
            return None
        if answer.get("is_from_outside"):
            raise unfinished(stint, answer["error"], is_input=answer["is_input"])
        if answer and answer["status"] != LEFT:
            return StintOutcome(stint, answer["status"], answer.get("error"))
        if not answer:
            how = self._ended(worker)
            self._deaths[stint.trial] = deaths = self._deaths.get(stint.trial, 0) + 1
            if deaths >= _MOST_DEATHS:
                return StintOutcome(stint, "failed", f"its process died {deaths} times, the last time {how}")
        self.submit(stint)
        return None

    def _ended(self, worker: _Worker | JoinedWorker) -> str:
        """Return how a worker has ended."""
        if isinstance(worker, JoinedWorker):
            return f"as {worker.path.name}"
        self._workers.remove(worker)
        return worker.process.end()

    def close(self) -> None:
        """Ask the workers to save and stop, and wait for them; see `Executor.close`."""
        for worker in self._workers:
            if worker.stint is not None:
                worker.process.terminate()
        for worker in self._workers:
            worker.process.end()
        self._workers.clear()  # those that have joined go on: one of them leads the study then


def _has_descriptor(stream: Any) -> bool:
    try:
        stream.fileno()
    except (AttributeError, OSError, ValueError):
        return False
    return True


@sharing_data()
def do_stints(answers: int) -> Ended | None:
    """Do the stints that arrive on stdin, one after the other, and write how each ended.

    Returns:
        The status that a signal asked for, if one came.
    """
    with log_warnings_once():
        for message in received():
            answer = answer_to(Stint.from_json(message))
            if answer["status"] in STATUS_OF.values():
                return cast("Ended", answer["status"])
            os.write(answers, json.dumps(answer).encode() + b"\n")
    return None


def answer_to(stint: Stint) -> dict[str, Any]:
    """Do a stint, and return how it has ended, which may be by a signal."""
    try:
        return {"status": train(stint)}
    except (TrainwrightError, OSError) as error:
        return failure(stint, error)
    except Stopped as stopped:
        return {"status": stopped.status}


@dataclass
class WorkerProcess:
    """A worker process, and the pipe of its messages.

    Attributes:
        process: The process; it ends when its stdin is closed.
        messages: The file descriptor of the pipe; it can be read when there is a message, or the end.
    """

    process: subprocess.Popen[bytes]
    messages: int
    _text: bytes = b""

    @staticmethod
    def start(
        command: Literal["do-stints", "serve-stints", "predict-files"],
        log_level: int,
        *,
        stdout: int = subprocess.DEVNULL,
        directory: str | None = None,
        path: Sequence[str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> WorkerProcess:
        """Start a process.

        Args:
            command: What it executes: the hidden command of `trainwright`.
            log_level: The level of its log, on stderr.
            stdout: Where the output of the user's code goes, as `subprocess` takes it.
            directory: Its working directory; default: this one.
            path: The `sys.path` from which it may import, too; default: that of this process.
            environment: Variables that are added to those of this process.
        """
        messages, theirs = os.pipe()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "trainwright", command, str(theirs), str(os.getpid()), str(log_level)],
                stdin=subprocess.PIPE,
                stdout=stdout,
                pass_fds=(theirs,),
                cwd=directory,
                env=os.environ | (environment or {}),
                start_new_session=True,  # Ctrl-C is for this process, which passes it on
            )
        finally:
            os.close(theirs)
        worker = WorkerProcess(process, messages)
        worker.send(list(sys.path if path is None else path))
        return worker

    def send(self, message: Any) -> None:
        """Send a message; a process that has died is noticed when the next one is read."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()

    def read(self) -> dict[str, Any] | None:
        """Wait for a part of a message; return the message if it is whole. Empty: the process has died."""
        if b"\n" not in self._text:
            data = os.read(self.messages, 1 << 16)
            if not data:
                return {}
            self._text += data
        line, end, rest = self._text.partition(b"\n")
        if not end:
            return None
        self._text = rest
        message: dict[str, Any] = json.loads(line)
        return message

    @property
    def has_read(self) -> bool:
        """True if the next message was read together with the last one, so that no `select` tells of it."""
        return b"\n" in self._text

    def read_whole(self) -> dict[str, Any]:
        """Wait for the next message, and return it; empty: the process has died."""
        while (message := self.read()) is None:
            pass
        return message

    def terminate(self) -> None:
        """Ask the process to save and stop what it trains."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)

    def end(self) -> str:
        """Close the pipes, wait for the process to exit, and return a description of its end."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait()
        os.close(self.messages)
        return f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def received() -> Iterator[Any]:
    """Import from where the process that started this one does, and yield what it sends on stdin."""
    lines = iter(sys.stdin.buffer.readline, b"")
    given = json.loads(next(lines, b"[]"))
    sys.path[:] = [*given, *(path for path in sys.path if path not in given)]
    yield from map(json.loads, lines)
