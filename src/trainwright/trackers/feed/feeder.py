"""Forward one run's journal to one tracker; the body of a feeder process."""

from __future__ import annotations

import gc
import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from trainwright.errors import InputError
from trainwright.records.journal import Line, segments
from trainwright.records.result import Result
from trainwright.records.run_dir import RunDir
from trainwright.records.status import TESTED
from trainwright.redact import redacted
from trainwright.safe_files import read_regular
from trainwright.storage.portable import stored_weights, weights_digest, write_portable
from trainwright.trackers.base import Histogram, ModelTracker, Point, RunCard, Tracker
from trainwright.trackers.feed.state import Position, State
from trainwright.trackers.feed.tail import fresh, histograms, points, tail

BATCH = 1000  # values; what MLflow takes in one call
_MODEL = ".model-"  # begins the name of the folder in which a model is put together

log = logging.getLogger("trainwright.trackers.feed")
ARTIFACTS = ("config.yaml", Result.FILE, "report.html", "best")


class Feeder:
    """Send each (metric, step) once.

    Values are sent in the order of their steps, and a tracker says when it is opened up to which step it
    holds each metric. The saved state only avoids reading the journal from its start each time.
    """

    def __init__(self, card: RunCard, file: Path, connect: Callable[[], Tracker]) -> None:
        """Prepare a feeder; `connect` is not called before there is something to send.

        Args:
            card: The run.
            file: Holds the state.
            connect: Makes the tracker.
        """
        self._card = card
        self._file = file
        self._connect = connect
        self._journal = card.run_dir / "journal"
        self._tracker: Tracker | None = None
        self._closed_before = ""
        self.state = State.load(file)

    def forward(self, *, check: bool = False) -> None:
        """Send what was journalled since the last time.

        Args:
            check: Ask the tracker first what it holds: its data may have been deleted.

        Raises:
            Exception: Whatever the tracker raises.
        """
        if check and segments(self._journal):
            self._closed_before = self.state.closed or self._closed_before
            self._opened()
        if next(tail(self._journal, self.state.position), None) is None:
            return
        tracker = self._opened()
        batch = _Batch(self.state, tracker.wants_histograms)
        for record, position in tail(self._journal, self.state.position):
            batch.add(record, position)
            if len(batch.points) >= BATCH:
                self._send(tracker, batch)
        self._send(tracker, batch)

    def finish(self, crashed: bool) -> None:
        """End the tracker's run if the attempt has ended; to be called when everything is forwarded.

        An attempt that `crashed` (its process is gone, and the journal has no end) counts as failed until the
        run is resumed.
        """
        status = self.state.ended or ("failed" if crashed else self._closed_before)
        if not status or status == self.state.closed or not self.state.position.segment:
            return
        tracker = self._opened()
        if self.state.ended:
            self._send_artifacts(tracker)
        tracker.close(status)
        if status in TESTED:
            self._send_model(tracker)
        self.state.closed, self.state.error = status, ""
        self.state.save(self._file)

    def failed(self, error: str) -> None:
        """Save why sending failed; the tracker is opened again next time, as only it knows what arrived."""
        self._tracker = None
        self.state.error = error
        self.state.save(self._file)

    def _opened(self) -> Tracker:
        if self._tracker is None:
            tracker = self._connect()
            self.state.agree(tracker.open(self._card))
            self.state.closed = ""
            self._tracker = tracker
            # A tracker's library brings a million objects that stay. Unless the garbage collector passes them
            # over, each value sent to MLflow's sqlite store costs half as much again.
            gc.freeze()
        return self._tracker

    def _send(self, tracker: Tracker, batch: _Batch) -> None:
        if batch.points:
            tracker.log(batch.points)
        if batch.histograms:
            tracker.log_histograms(batch.histograms)
        self.state.sent += len(batch.points)
        self.state.position, self.state.marks, self.state.ended = (
            batch.position,
            dict(batch.marks),
            batch.ended,
        )
        self.state.error = ""
        self.state.save(self._file)
        batch.points, batch.histograms = [], []

    def _send_artifacts(self, tracker: Tracker) -> None:
        """Send the run's files and folders, but none with a link in it: that may lead to a secret."""
        for name in ARTIFACTS:
            path = self._card.run_dir / name
            if name == "config.yaml":
                _send_without_passwords(tracker, path, name)
            elif path.exists() and not any(part.is_symlink() for part in (path, *path.rglob("*"))):
                tracker.log_artifact(path, name)

    def _send_model(self, tracker: Tracker) -> None:
        """Send the model where the tracker takes models, and this one can be taken along."""
        if not (isinstance(tracker, ModelTracker) and tracker.wants_model):
            return
        run = RunDir(self._card.run_dir)
        trackers = self._file.parent
        for left in trackers.glob(f"{_MODEL}*"):  # of a feeder that was killed
            shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=_MODEL, dir=trackers) as folder:
            try:
                weights = stored_weights(run)
                write_portable(run, weights, Path(folder) / "run")
                tracker.log_model(Path(folder), weights_digest(weights))
            except InputError as error:
                log.info("the model is not sent: %s", error)


class _Batch:
    """The points of one call, and the feeder's state after it."""

    def __init__(self, state: State, wants_histograms: bool) -> None:
        self.points: list[Point] = []
        self.histograms: list[Histogram] = []
        self.marks = dict(state.marks)
        self.position = state.position
        self.ended = state.ended
        self._wants_histograms = wants_histograms

    def add(self, record: Line, position: Position) -> None:
        self.points += fresh(points(record), self.marks)
        if self._wants_histograms:
            self.histograms += fresh(histograms(record), self.marks)
        if record["kind"] in ("start", "end"):
            self.ended = record.get("status", "")
        self.position = position


def _send_without_passwords(tracker: Tracker, path: Path, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clean = Path(folder) / path.name
        clean.write_text(redacted(read_regular(path).decode()), encoding="utf-8")
        tracker.log_artifact(clean, name)
