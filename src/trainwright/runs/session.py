"""The record, journal, tracker feeders and result of an attempt, for our trainer and for those of others."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trainwright.config.schema import CheckpointConfig
from trainwright.engine.journal import FollowerJournal, Journal
from trainwright.errors import TrainwrightError
from trainwright.records.manifest import NumericEnvironment
from trainwright.records.result import AttemptRecord, Result
from trainwright.records.run_dir import RunDir
from trainwright.records.status import ENDED, Ended, Status
from trainwright.reports.html import write_report
from trainwright.reports.journal import SegmentSummary
from trainwright.runs.leasing import take_lease
from trainwright.trackers.feed import Feeders
from trainwright.world import World

log = logging.getLogger("trainwright")


class Session:
    """Write the record, the journal and the result of one attempt, and start its tracker feeders.

    Args:
        run: The run, which this process owns.
        processes: The number of processes that make the attempt.
        compresses: Whether checkpoints are compressed when they are put into the run's store.
    """

    def __init__(self, run: RunDir, processes: int = 1, *, compresses: bool = False) -> None:
        self.run = run
        self._processes = processes
        self.lease = take_lease(run, compresses=compresses)
        self.number = self.lease.attempt
        self._started = time.time()
        self._feeders: Feeders | None = None
        self._environment: NumericEnvironment | None = None
        self.has_ended = False
        try:
            run.sweep()
            self.record(None)
        except OSError:
            self.lease.release()
            raise

    def record(self, status: Ended | None, error: str | None = None, step: int | None = None) -> None:
        """Write the attempt's record; a `status` ends the attempt, at `step`.

        Raises:
            OSError: It cannot be written.
        """
        self.run.write_attempt(
            AttemptRecord(
                attempt=self.number,
                processes=self._processes,
                pid=os.getpid(),
                host=socket.gethostname(),
                working_directory=str(Path.cwd()),
                started=self._started,
                status=status,
                ended=time.time() if status else None,
                step=step,
                environment=self._environment,
                error=error or None,
            )
        )
        self.has_ended = status is not None

    def note_environment(self, environment: NumericEnvironment, *, differs: bool = False) -> None:
        """Note what the attempt's arithmetic depends on, for its record.

        If that `differs` from what the manifest says, it is written at once; otherwise at the attempt's end.

        Raises:
            OSError: It cannot be written.
        """
        self._environment = environment
        if differs:
            self.record(None)

    def complete_earlier(self, environment: NumericEnvironment) -> None:
        """Write into the records of attempts that were killed what their arithmetic depended on.

        It was that of the manifest, which is about to hold another.

        Raises:
            OSError: It cannot be written.
        """
        for record in self.run.attempts():
            if record.attempt != self.number and record.status is None and record.environment is None:
                self.run.write_attempt(record.model_copy(update={"environment": environment}))

    def close(self, status: Status, message: str) -> None:
        """Write how the attempt ended, unless `publish` did. Without a status in that record, it has crashed.

        An attempt that has lost the run writes nothing.
        """
        if self.has_ended or not self.run.path.exists():
            return
        with contextlib.suppress(OSError, TrainwrightError):
            self.lease.check()
            self.record(status if status in ENDED else None, message)
            self.lease.end(status)

    def open_journal(self, step: int) -> Journal:
        """Begin the attempt's segment of the journal, which continues from `step`."""
        journal = Journal(self.run.journal, self.number, step, SegmentSummary)
        self.lease.renew()  # in a store, it can be seen from now on what is trained here
        return journal

    def feed(self, trackers: Sequence[str]) -> None:
        """Start the processes that send the journal to the trackers."""
        self._feeders = Feeders(self.run.path, trackers)
        self._feeders.start()

    def publish(self, result: Result, end_journal: Callable[[], None], *, page: bool = True) -> None:
        """Write the result and end the attempt: journal, record, report (if `page`), trackers.

        The trackers come last: what they have not got when the process ends is sent by the next attempt, or
        by `runs sync`.

        Raises:
            OSError: The result or the record cannot be written.
            RunLostError: Another attempt has taken the run over.
        """
        self.lease.check()  # the result, the report and the tables have the same names in each attempt
        self.run.write(Result.FILE, result)
        end_journal()
        self.record(result.status, result.error, result.steps)
        if page and result.status != "paused":  # a run of many pauses would write a report for each
            report(self.run.path, write_report)
        self.lease.end(result.status)
        for warning in self._feeders.finish() if self._feeders else ():
            log.warning("%s", warning)


class FollowerSession:
    """Write nothing: in a follower, a process that is not the main one, the session is empty."""

    lease = None
    has_ended = False

    def __init__(self, number: int) -> None:
        self.number = number

    def note_environment(self, environment: NumericEnvironment, *, differs: bool = False) -> None:
        """Leave it to the main process."""

    def complete_earlier(self, environment: NumericEnvironment) -> None:
        """Leave it to the main process."""

    def close(self, status: Status, message: str) -> None:
        """Leave it to the main process."""

    def open_journal(self, step: int) -> Journal:  # noqa: ARG002 - as in `Session`
        """Return a journal that is not kept."""
        return FollowerJournal()

    def feed(self, trackers: Sequence[str]) -> None:
        """Leave it to the main process."""

    def publish(self, result: Result, end_journal: Callable[[], None], *, page: bool = True) -> None:
        """Leave it to the main process."""


def open_session(run: RunDir, world: World, config: CheckpointConfig) -> Session | FollowerSession:
    """Begin an attempt: the main process writes, the others do not.

    Raises:
        RunLockedError: Another attempt has just taken the run.
        InputError: The run's store cannot be used.
        CheckpointError: The store cannot be read, or what is there is damaged.
    """
    sessions: list[Session] = []

    def begin() -> int:
        sessions.append(Session(run, world.size, compresses=config.compression == "zstd"))
        return sessions[0].number

    number = world.from_main(begin)
    return sessions[0] if sessions else FollowerSession(number)


def report(folder: Path, write: Callable[[Path], Path]) -> Path | None:
    """Write the report of a run or study, and return its path; if that fails, warn and return None."""
    try:
        return write(folder)
    except Exception as error:
        log.warning("the report cannot be written: %s: %s", type(error).__name__, error)
        return None
