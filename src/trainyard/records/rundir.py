"""The run directory: who owns it, what is in it, and how a run is found again.

runs/<experiment>/<run-id>/
    config.yaml         the resolved config
    manifest.json       every input of the computation; written before step 1
    data.json           how raw rows become features, and outputs become classes
    attempts/0001.json  one process life: when, where, how it ended
    journal/0001.jsonl  metrics and events of that attempt
    checkpoints/        what the run resumes from
    best/               the best models, weights only
    evaluation/         the tables of the last evaluation of each split
    trackers/           how far each tracker is
    result.json         how the run stands; written at each orderly end
    report.html
    lock                held by the process that owns the run
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trainyard.digest import fsync_folder, make_folders, write_atomically
from trainyard.errors import CheckpointError, InputError, RunLockedError, RunNotFoundError

Json = dict[str, Any]
UNFINISHED = ("created", "crashed", "preempted", "interrupted", "failed")


def default_runs_dir() -> Path:
    """`TRAINYARD_RUNS`, or `runs` below the working directory."""
    return Path(os.environ.get("TRAINYARD_RUNS") or "runs")


class RunDir:
    """One run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock: BinaryIO | None = None

    @staticmethod
    def create(runs_dir: Path, experiment: str, config: str) -> RunDir:
        """A new run directory, for the run of a resolved config (YAML).

        Raises:
            InputError: the directory cannot be written.
        """
        run_id = f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        run = RunDir(runs_dir / experiment / run_id)
        try:
            make_folders(run.path.parent)
            run.path.mkdir()
            fsync_folder(run.path.parent)
            write_atomically(run.config_file, config.encode())
        except OSError as error:
            raise InputError(
                f"cannot make the run directory {run.path}: {error.strerror}; choose another place with --runs-dir"
            ) from error
        return run

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def experiment(self) -> str:
        return self.path.parent.name

    @property
    def journal(self) -> Path:
        return self.path / "journal"

    @property
    def config_file(self) -> Path:
        return self.path / "config.yaml"

    def read(self, name: str) -> Json:
        """A JSON file of the run (`manifest.json` ...); empty if it is not there.

        Raises:
            CheckpointError: it is there, but not whole.
        """
        try:
            data = json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self.path / name} cannot be read: {error}") from error
        return data if isinstance(data, dict) else {}

    def write(self, name: str, data: Json) -> None:
        """Writes a JSON file of the run: after a crash there is the old or the new, whole."""
        (self.path / name).parent.mkdir(exist_ok=True)
        write_atomically(self.path / name, (json.dumps(data, indent=1, allow_nan=False) + "\n").encode())

    def acquire(self) -> None:
        """Makes this process the owner, until it ends (however it ends) or calls `release`.

        Raises:
            RunLockedError: another process owns the run.
        """
        lock = open(self.path / "lock", "a+b")  # noqa: SIM115 - held on purpose
        if not _locked(lock):
            lock.seek(0)
            owner = lock.read().decode(errors="replace").strip() or "unknown"
            lock.close()
            raise RunLockedError(
                f"run {self.id} is owned by another process ({owner}); wait for it, or end it and resume"
            )
        lock.truncate(0)
        lock.write(f"pid {os.getpid()} on {socket.gethostname()}\n".encode())
        lock.flush()
        self._lock = lock

    def release(self) -> None:
        """Gives the run up."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def is_owned(self) -> bool:
        """Whether some process owns the run now."""
        if self._lock is not None:
            return True
        try:
            with open(self.path / "lock", "rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def attempts(self) -> list[Json]:
        """What is known of each process life, oldest first."""
        return [
            self.read(f"attempts/{path.name}")
            for path in sorted((self.path / "attempts").glob("[0-9]*.json"))
        ]

    def next_attempt(self) -> int:
        """The number of the attempt that begins now."""
        taken = [*(self.path / "attempts").glob("[0-9]*.json"), *self.journal.glob("[0-9]*.jsonl")]
        return max((int(path.stem) for path in taken), default=0) + 1

    def status(self) -> str:
        """`completed`, `failed`, `preempted`, `interrupted`, `running`, `crashed`, or `created` (no step was made)."""
        if self.is_owned():
            return "running"
        attempts = self.attempts()
        if not attempts:
            return "created"
        return str(attempts[-1].get("status") or "crashed")


def _locked(lock: BinaryIO) -> bool:
    """Takes the lock; tries for a while, since whoever asks for a run's status holds it for a moment."""
    for pause in (0.01, 0.05, 0.2, None):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if pause is not None:
                time.sleep(pause)
        else:
            return True
    return False


def all_runs(runs_dir: Path) -> Iterator[RunDir]:
    """The runs below a folder, newest first (run ids begin with the time)."""
    folders = (path.parent for path in runs_dir.glob("*/*/config.yaml"))
    return (RunDir(path) for path in sorted(folders, key=lambda path: path.name, reverse=True))


def find_run(name: str, runs_dir: Path, before: RunDir | None = None) -> RunDir:
    """The run that `name` means: a path, an id, a unique prefix of an id, or `last`.

    Args:
        name: what the user called it.
        runs_dir: where the run directories are.
        before: only runs older than this one are meant, unless by their path.

    Raises:
        RunNotFoundError: none, or more than one.
    """
    if (Path(name) / "config.yaml").is_file():
        return RunDir(Path(name))
    runs = [run for run in all_runs(runs_dir) if before is None or _age(run) < _age(before)]
    if name == "last" and runs:
        return max(runs, key=_age)
    found = [run for run in runs if run.id == name] or [
        run for run in runs if name and run.id.startswith(name)
    ]
    if len(found) == 1:
        return found[0]
    if found:
        raise RunNotFoundError(
            f"{name!r} is the beginning of {len(found)} runs: {', '.join(run.id for run in found[:5])} ..."
        )
    known = f"the newest is {runs[0].id}" if runs else "it holds no runs"
    raise RunNotFoundError(
        f"no run {name!r} in {runs_dir.absolute()} ({known}); give a path, an id, the beginning of an id, or `last`"
    )


def _age(run: RunDir) -> tuple[str, int]:
    """Orders runs by time. Those of one second differ in their random ending, so the id alone does not say which is newer."""
    return run.id[:15], run.config_file.stat().st_mtime_ns
