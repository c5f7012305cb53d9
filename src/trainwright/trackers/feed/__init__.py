"""Forward the journal to the trackers, each from a process of its own: the training process's side.

    training process ──writes──> journal ──tailed by──> python -m trainwright.trackers.feed ──> tracker
          └──────── one byte through a pipe: "I am done" ─────────┘

The training process waits for a tracker only in `finish`, at its end. A feeder keeps its position in
`RUN_DIR/trackers/<index>-<type>.json` (see `State`) and its errors in the `.log` beside it, so that either
side may die at any moment: what was not sent is sent by the next attempt's feeder, or by `sync`.
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

from trainwright.errors import CheckpointError, InputError
from trainwright.records.journal import read
from trainwright.records.run_dir import RunDir
from trainwright.safe_files import open_regular
from trainwright.storage.seals import problems
from trainwright.trackers.feed.state import State, state_file
from trainwright.trackers.feed.tail import pending


class SyncReport(NamedTuple):
    """The result of `sync` for one tracker: values sent now, values not sent yet, and why not (or "")."""

    tracker: str
    sent: int
    pending: int
    error: str


_REST = 60.0  # seconds for what a run left; a busy machine takes long to import a tracker


class Feeders:
    """The feeder processes of one attempt, one per tracker."""

    def __init__(self, run_dir: Path, trackers: Sequence[str]) -> None:
        """Prepare feeders; `trackers` are the types in the config's `tracking`, in its order."""
        self._run_dir = run_dir.absolute()
        self._feeders = [_Feeder(self._run_dir, index, name) for index, name in enumerate(trackers)]

    def start(self) -> None:
        """Start the processes; `config.yaml` and `manifest.json` must exist.

        Never raises: `finish` says what went wrong.
        """
        for feeder in self._feeders:
            feeder.start()

    def finish(self, timeout: float = 10.0) -> list[str]:
        """Let the feeders send what is left: the journal's last lines, the run's files and its status.

        To be called when the journal has its `end` and the run's files are written. Waits for at most
        `timeout` seconds in all; what is not sent by then is not lost. Never raises.

        Returns:
            A warning for each tracker that has not received everything.
        """
        return _warnings(_finish(self._feeders, timeout), self._run_dir)


def send_rest(run_dir: Path, status: str) -> list[str]:
    """Send the trackers of a run that has ended what they have not received, within a minute.

    They were not ready in time, or everything was killed.

    Args:
        run_dir: The run.
        status: How it has ended.

    Returns:
        A warning for each tracker that has not received everything, or why the run cannot be read.
    """
    from trainwright.trackers.feed.card import read_feed_inputs

    try:
        names = [name for name, _ in read_feed_inputs(run_dir).trackers]
        states = [State.load(state_file(run_dir, index, name)) for index, name in enumerate(names)]
        if all(one.closed == status and not pending(run_dir / "journal", one) for one in states):
            return []
        return _warnings(sync(run_dir, timeout=_REST), run_dir)
    except (InputError, OSError) as error:
        return [str(error)]


def unsent(run_dir: Path) -> list[tuple[str, int]]:
    """Return each tracker that lacks values of a run, and how many; none where that cannot be known."""
    from trainwright.trackers.feed.card import read_feed_inputs

    try:
        names = [name for name, _ in read_feed_inputs(run_dir).trackers]
        states = [State.load(state_file(run_dir, index, name)) for index, name in enumerate(names)]
        counts = [pending(run_dir / "journal", state) for state in states]
    except (InputError, CheckpointError, OSError):
        return []
    return [(name, count) for name, count in zip(names, counts, strict=True) if count]


def sync(run_dir: Path, *, timeout: float | None = None, trust: bool = False) -> list[SyncReport]:
    """Send to each tracker of a run what it has not received yet.

    This runs the same processes as training does: a tracker's library is not imported into the calling
    process, and paths in the config are relative to the run's working directory. Each tracker is asked what
    it holds, as its data may have been deleted. A tracker that fails for ten seconds is given up. A damaged
    journal counts as an error, since what it has lost cannot be sent.

    Args:
        run_dir: The run.
        timeout: How many seconds to wait; None: as long as it takes.
        trust: Whether the user trusts the run.

    Raises:
        InputError: The run's config or manifest cannot be read; or a tracker's options use variables or name
            a host, and the run is neither own nor trusted.
    """
    from trainwright.trackers.feed.card import check_trackers, read_feed_inputs

    trackers = read_feed_inputs(run_dir).trackers
    if not trust:
        check_trackers(run_dir, trackers)
    feeders = [_Feeder(run_dir.absolute(), index, name) for index, (name, _) in enumerate(trackers)]
    for feeder in feeders:
        feeder.start(check=True)
    damage = _journal_problems(run_dir)
    return [
        report._replace(error="; ".join(filter(None, [report.error, *damage])))
        for report in _finish(feeders, timeout)
    ]


def _journal_problems(run_dir: Path) -> list[str]:
    damage = [problem for problem in problems(RunDir(run_dir)) if problem.startswith("journal/")]
    try:
        for _ in read(run_dir / "journal", damage):
            pass
    except OSError as error:
        damage.append(f"the journal cannot be read: {error.strerror}")
    return damage


class _Feeder:
    """One feeder process, as the process that starts it sees it."""

    def __init__(self, run_dir: Path, index: int, name: str) -> None:
        self.name = name
        self._run_dir = run_dir
        self._index = index
        self._file = state_file(run_dir, index, name)
        self._before = State.load(self._file).sent
        self._process: subprocess.Popen[bytes] | None = None
        self._error = ""

    def start(self, *, check: bool = False) -> None:
        # -P: a file `mlflow.py` in the working directory must not shadow the library. A session of its own:
        # Ctrl-C is meant for the training process, which then commits and says when it is done.
        command = [
            sys.executable,
            "-P",
            "-m",
            __name__,
            str(self._run_dir),
            str(self._index),
            str(os.getpid()),
            *(["check"] if check else []),
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
            with contextlib.suppress(OSError):  # it is dead already, as its exit status shows
                self._process.stdin.write(b".")
                self._process.stdin.close()

    def wait(self, timeout: float | None) -> SyncReport:
        """Wait for the process to end, and kill it when the time is over: it may be killed at any moment."""
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


def _warnings(reports: Sequence[SyncReport], run_dir: Path) -> list[str]:
    return [_warning(report, run_dir.name) for report in reports if report.pending or report.error]


def _warning(report: SyncReport, run: str) -> str:
    left = f"{report.pending} values" if report.pending else "the run's files and status"
    problem = f"tracker {report.tracker}: {left} not sent yet ({report.error})"
    return f"{problem}; `trainwright runs sync {run}` sends them"
