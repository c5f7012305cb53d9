"""The record, journal, tracker feeders and result of an attempt, for our trainer and for those of others."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from trainyard.engine.journal import Journal
from trainyard.records.manifest import NumericEnvironment
from trainyard.records.result import AttemptRecord, Result
from trainyard.records.run_dir import RunDir
from trainyard.records.status import Ended
from trainyard.reports.html import write_report
from trainyard.reports.journal import SegmentSummary
from trainyard.trackers.feed import Feeders

log = logging.getLogger("trainyard")


class Session:
    """Write the record, the journal and the result of one attempt, and start its tracker feeders."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.number = run.next_attempt()
        self._started = time.time()
        self._feeders: Feeders | None = None
        self._environment: NumericEnvironment | None = None
        self.has_ended = False
        run.sweep()
        self.record(None)

    def record(self, status: Ended | None, error: str | None = None, step: int | None = None) -> None:
        """Write the attempt's record; a `status` ends the attempt, at `step`.

        Raises:
            OSError: It cannot be written.
        """
        self.run.write_attempt(
            AttemptRecord(
                attempt=self.number,
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

    def record_environment(self, environment: NumericEnvironment) -> None:
        """Write into the attempt's record what its arithmetic depends on.

        Raises:
            OSError: It cannot be written.
        """
        self._environment = environment
        self.record(None)

    def open_journal(self, step: int) -> Journal:
        """Begin the attempt's segment of the journal, which continues from `step`."""
        return Journal(self.run.journal, self.number, step, SegmentSummary)

    def feed(self, trackers: Sequence[str]) -> None:
        """Start the processes that send the journal to the trackers."""
        self._feeders = Feeders(self.run.path, trackers)
        self._feeders.start()

    def publish(self, result: Result, end_journal: Callable[[], None]) -> None:
        """Write the result and end the attempt: journal, record, report, trackers.

        The trackers come last: what they have not got when the process ends is sent by the next attempt, or
        by `runs sync`.

        Raises:
            OSError: The result or the record cannot be written.
        """
        self.run.write(Result.FILE, result)
        end_journal()
        self.record(result.status, result.error, result.steps)
        report(self.run.path, write_report)
        for warning in self._feeders.finish() if self._feeders else ():
            log.warning("%s", warning)


def report(folder: Path, write: Callable[[Path], Path]) -> Path | None:
    """Write the report of a run or study, and return its path; if that fails, warn and return None."""
    try:
        return write(folder)
    except Exception as error:
        log.warning("the report cannot be written: %s: %s", type(error).__name__, error)
        return None
