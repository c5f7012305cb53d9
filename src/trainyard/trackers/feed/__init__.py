"""Forwards the journal to the trackers, each from a process of its own; this is the training process's side.

    training process ──writes──> journal ──tailed by──> python -m trainyard.trackers.feed ──> tracker
          └──────── one byte through a pipe: "I am done" ─────────┘

The training process never waits for a tracker, but for the `finish` at its end. A feeder keeps its place in
`RUN_DIR/trackers/<index>-<type>.json` and its errors in the `.log` beside it (see `State`), so that either side may
die at any moment: what was not sent is sent by the next attempt's feeder, or by `sync`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trainyard.regular import open_regular
from trainyard.trackers.feed.state import State, state_file
from trainyard.trackers.feed.tail import pending


class SyncReport(NamedTuple):
    """How one tracker stands after `sync`: values sent now, values still to be sent, and why they are not ("" if none)."""

    tracker: str
    sent: int
    pending: int
    error: str


class Feeders:
    """The feeder processes of one attempt, one per tracker."""

    def __init__(self, run_dir: Path, trackers: Sequence[str]) -> None:
        """`trackers` are the types in the config's `tracking`, in its order."""
        self._run_dir = run_dir.absolute()
        self._feeders = [_Feeder(self._run_dir, index, name) for index, name in enumerate(trackers)]

    def start(self) -> None:
        """Starts them. `config.yaml` and `manifest.json` must be there. Never raises: `finish` says what went wrong."""
        for feeder in self._feeders:
            feeder.start()

    def finish(self, timeout: float = 10.0) -> list[str]:
        """Lets them send what is left: the journal's last lines, the run's files and its status.

        Call it when the journal has its `end` and the run's files are written. Waits for `timeout` seconds in all at
        most; nothing is lost by that. Never raises.

        Returns:
            A warning for each tracker that has not got everything.
        """
        reports = _finish(self._feeders, timeout)
        return [_warning(report, self._run_dir.name) for report in reports if report.pending or report.error]


def sync(run_dir: Path, *, timeout: float | None = None) -> list[SyncReport]:
    """Sends to each tracker of a run what it has not got yet; what it has is not sent again.

    Runs the same processes as training does, so a tracker's library is never imported into the caller, and paths in
    the config are relative to the run's working directory, as they were then. A tracker that fails for 10 s is given up.

    Raises:
        InputError: the run's config cannot be read.
    """
    from trainyard.trackers.feed.card import read_run

    feeders = [
        _Feeder(run_dir.absolute(), index, name) for index, (name, _) in enumerate(read_run(run_dir).trackers)
    ]
    for feeder in feeders:
        feeder.start()
    return _finish(feeders, timeout)


class _Feeder:
    """One feeder process, seen from outside."""

    def __init__(self, run_dir: Path, index: int, name: str) -> None:
        self.name = name
        self._run_dir = run_dir
        self._index = index
        self._file = state_file(run_dir, index, name)
        self._before = State.load(self._file).sent
        self._process: subprocess.Popen[bytes] | None = None
        self._error = ""

    def start(self) -> None:
        # -P: a file `mlflow.py` in the working directory must not take the library's place. A session of its own:
        # Ctrl-C is meant for the training, which then commits and says when it is done.
        command = [
            sys.executable,
            "-P",
            "-m",
            __name__,
            str(self._run_dir),
            str(self._index),
            str(os.getpid()),
        ]
        try:
            self._file.parent.mkdir(exist_ok=True)
            with open_regular(self._file.with_suffix(".log"), "ab", depth=2) as log:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
                )
        except OSError as error:
            self._error = f"its process did not start: {error}"

    def ask_to_finish(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it is dead already: its exit status tells
                self._process.stdin.write(b".")
                self._process.stdin.close()

    def wait(self, timeout: float | None) -> SyncReport:
        """Waits for its end, which is brought about when the time is over: it may be killed at any moment."""
        state, finished = State.load(self._file), False
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                finished = self._process.wait(timeout) == 0
            self._process.kill()
            self._process.wait()
            state = State.load(self._file)
        return SyncReport(
            self.name, state.sent - self._before, self._left(state), "" if finished else self._reason(state)
        )

    def _left(self, state: State) -> int:
        try:
            return pending(self._run_dir / "journal", state)
        except OSError:
            return 0

    def _reason(self, state: State) -> str:
        log = self._file.with_suffix(".log")
        return self._error or state.error or f"it was not ready in time; {log} may say more"


def _finish(feeders: Sequence[_Feeder], timeout: float | None) -> list[SyncReport]:
    end = None if timeout is None else time.monotonic() + timeout
    for feeder in feeders:
        feeder.ask_to_finish()
    return [feeder.wait(None if end is None else max(0.0, end - time.monotonic())) for feeder in feeders]


def _warning(report: SyncReport, run: str) -> str:
    left = f"{report.pending} values" if report.pending else "the run's files and status"
    return f"tracker {report.tracker}: {left} not sent yet ({report.error}); `trainyard runs sync {run}` sends them"
