"""Processes that have joined a study, on this machine or another one that shares its folder.

    workers/NAME/lock         held by the worker while it lives: its lease
    workers/NAME/worker.json  who it is; written once the lock is held
    workers/NAME/job.json     the stint that it was given, with the number of the order
    workers/NAME/answer.json  how this stint has ended

The process that holds the lock of the study is its leader: it decides the stints, writes the log, and gives
stints to the workers that have joined. A worker that finds no leader becomes the leader. Each notices the end
of another by its lock, which the system releases however a process ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import getpid
from pathlib import Path

from trainwright.errors import InputError
from trainwright.records.run_dir import RunDir
from trainwright.safe_files import make_folders, read_regular, write_atomically
from trainwright.storage.log import is_of_this_machine, new_writer
from trainwright.studies.study import Json
from trainwright.studies.tuning.stints import Stint

log = logging.getLogger("trainwright")
FOLDER = "workers"
LEFT = "left"  # the status of a stint whose worker has left before it ended
_LEADER = "leader.json"
_WORKER, _STINT, _ANSWER = "worker.json", "job.json", "answer.json"
_BEAT = 5.0  # seconds between two heartbeats of the leader
_SILENCE = 4 * _BEAT  # without a heartbeat, after which a leader on another machine counts as dead


class WorkerFolder:
    """The folder of a worker, for the worker itself.

    Args:
        study: The folder of the study.

    Raises:
        OSError: It cannot be made.
    """

    def __init__(self, study: Path) -> None:
        self._runs = study.parent
        self._dir = RunDir(study / FOLDER / f"{socket.gethostname()}-{getpid()}-{secrets.token_hex(4)}")
        self._done = 0
        make_folders(self._dir.path)
        self._dir.acquire()
        _write(self._dir.path / _WORKER, {"writer": new_writer(), "joined": time.time()})

    def next_stint(self) -> Stint | None:
        """Return the stint that the leader has given; None if there is none, or it was answered."""
        order = _read(self._dir.path / _STINT)
        if order.get("order", 0) <= self._done:
            return None
        self._done = order["order"]
        return _with_runs(order["job"], self._runs)

    def answer(self, answer: Json) -> None:
        """Say how the stint has ended."""
        _write(self._dir.path / _ANSWER, {"order": self._done, **answer})

    def leave(self, *, is_led: bool) -> None:
        """Release the lock. The leader removes the folder; without one, this process does."""
        self._dir.release()
        if not is_led:
            shutil.rmtree(self._dir.path, ignore_errors=True)

    def leave_stint(self) -> None:
        """Hand the stint back for another worker to continue; this worker takes no other."""
        (self._dir.path / _WORKER).unlink(missing_ok=True)
        self.answer({"status": LEFT})


@dataclass
class JoinedWorker:
    """A worker that has joined, for the leader; `stint` is what this leader has given it."""

    path: Path
    stint: Stint | None = None
    order: int = 0
    unfinished: Json = field(default_factory=dict)  # of an earlier leader

    def is_alive(self) -> bool:
        """Return whether its process lives."""
        return RunDir(self.path).is_locked()

    @property
    def is_idle(self) -> bool:
        """True if it may be given a stint."""
        return self.stint is None and not self.unfinished

    def send(self, stint: Stint) -> None:
        """Give it a stint, unless it is doing that stint already."""
        self.stint = stint
        if not self.does(stint):
            self.order += 1
            _write(self.path / _STINT, {"order": self.order, "job": _plain(stint)})
        self.unfinished = {}

    def does(self, stint: Stint) -> bool:
        """Return whether it is doing this stint for an earlier leader."""
        known = ("number", "until", "runs")
        plain = json.loads(json.dumps(_plain(stint)))
        return bool(self.unfinished) and all(self.unfinished[key] == plain[key] for key in known)

    def read(self) -> Json | None:
        """Return the worker's answer to the newest order, if there is one."""
        answer = _read(self.path / _ANSWER)
        return answer if answer.get("order") == self.order else None


class JoinedWorkers:
    """The workers that have joined a study, for its leader.

    Args:
        study: The folder of the study; None: it is not shared.
    """

    def __init__(self, study: Path | None = None) -> None:
        self._folder = None if study is None else study / FOLDER
        self.workers: list[JoinedWorker] = []

    def poll(self) -> Iterator[tuple[JoinedWorker, Json]]:
        """Find new workers, and yield those that have answered, or have died: with an empty answer."""
        self._find()
        for worker in list(self.workers):
            is_gone = not worker.is_alive()  # asked first: what it wrote before it died is there then
            answer = None if worker.is_idle else worker.read()
            is_gone |= answer is not None and answer["status"] == LEFT
            if is_gone:
                self.workers.remove(worker)
                shutil.rmtree(worker.path, ignore_errors=True)
            if answer is not None:
                worker.unfinished = {}
                yield worker, answer
            elif is_gone and worker.stint is not None:
                yield worker, {}

    def _find(self) -> None:
        if self._folder is None or not self._folder.is_dir():
            return
        known = {worker.path for worker in self.workers}
        for path in sorted(self._folder.iterdir()):
            if path not in known and (path / _WORKER).exists():
                self.workers.append(_found(path))
                log.info("worker %s has joined", path.name)


def _found(path: Path) -> JoinedWorker:
    """Return a worker that has joined, with the stint that it is doing for an earlier leader, if any."""
    order, answer = _read(path / _STINT), _read(path / _ANSWER)
    number = order.get("order", 0)
    return JoinedWorker(path, None, number, order["job"] if number > answer.get("order", 0) else {})


def _plain(stint: Stint) -> Json:
    """Return a stint with the names of its runs, as the folder of runs may be elsewhere on each machine."""
    return stint.to_json() | {"runs": [run.name for run in stint.runs]}


def _with_runs(plain: Json, folder: Path) -> Stint:
    return Stint.from_json(plain | {"runs": [folder / name for name in plain["runs"]]})


@contextlib.contextmanager
def leading(study: Path) -> Iterator[None]:
    """Write heartbeats while this process holds the lock of the study.

    Raises:
        InputError: Another machine leads: the locks of this file system do not reach it.
    """
    ended = threading.Event()
    _check_alone(study)
    writer = new_writer()

    def sign(number: int) -> None:
        with contextlib.suppress(OSError):
            _write(study / _LEADER, {"writer": writer, "beat": number})

    def beat() -> None:
        number = 0
        while not ended.wait(_BEAT):
            sign(number := number + 1)

    sign(0)
    thread = threading.Thread(target=beat, name="trainwright-leader", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        (study / _LEADER).unlink(missing_ok=True)


def _check_alone(study: Path) -> None:
    """Wait to see whether a leader on another machine, whose lock may not reach this one, still lives.

    Raises:
        InputError: It does.
    """
    last = _read(study / _LEADER)
    if not last or is_of_this_machine(last["writer"]):
        return
    log.info("the study was led from another machine: making sure that this has ended")
    deadline = time.monotonic() + _SILENCE
    while time.monotonic() < deadline:
        time.sleep(_BEAT / 4)
        if (now := _read(study / _LEADER)) not in ({}, last):
            owner = now["writer"].partition(",")[0]
            raise InputError(
                f"study {study.name} is led by {owner}, whose lock does not reach this machine: mount the "
                "folder so that all machines see its locks (NFS 4, or Lustre with `flock`)"
            )


def _write(path: Path, content: Json) -> None:
    write_atomically(path, json.dumps(content).encode())  # curves may hold NaN


def _read(path: Path) -> Json:
    """Return what a file says; empty if it is not there."""
    try:
        content: Json = json.loads(read_regular(path))
    except FileNotFoundError:
        return {}
    return content
