"""Windows of served rows, compared with the training rows: drift while it happens.

Replicas share a folder. Each writes the counts of its rows for each window of time there, and any of them
adds up those of all. A window is judged when it is over, so that the stated rate of false alarms holds;
before that, `/drift` shows what it holds so far.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from trainwright.errors import TrainwrightError
from trainwright.monitoring.drift import Drift, compare
from trainwright.monitoring.reference import FILE, Reference
from trainwright.monitoring.sketches import Window
from trainwright.records.artifact import ArtifactDir, artifact_reference
from trainwright.runs.watching import reference_of
from trainwright.safe_files import write_atomically
from trainwright.servers.service.errors import RequestError
from trainwright.servers.service.metrics import Metrics
from trainwright.servers.service.recording import Record, joined_answers
from trainwright.servers.service.served import ServedModel

log = logging.getLogger("trainwright")
_KEPT = 48  # windows
_SAID = 3  # columns in the log
_SAVED_EVERY = 2.0  # seconds
_LOOKED_EVERY = 1.0  # seconds, for a reference that is being made


class _Windows:
    """The windows of the rows that the models of one reference have answered.

    Args:
        reference: What they are compared with.
        folder: The folder that the replicas share.
        seconds: The length of a window.
        own: The name of this replica's files.
    """

    def __init__(self, reference: Reference, folder: Path, seconds: float, own: str) -> None:
        self.reference = reference
        self._folder = folder
        self._seconds = seconds
        self._own = own
        self._index = self.at(time.time())
        self._judged = self._index - 1  # what was before is judged already, if it is
        self._lock = threading.Lock()  # on the window, which is read while rows are counted
        self._window = Window(reference)

    def add(self, *counted: Any) -> None:
        """Count rows; see `Window.add`."""
        with self._lock:
            self._window.add(*counted)

    def at(self, moment: float) -> int:
        """Return the number of the window at a time."""
        return int(moment // self._seconds)

    def turn(self, moment: float) -> None:
        """Begin a new window if the time of this one is over."""
        if (index := self.at(moment)) > self._index:
            self.save()
            with self._lock:
                self._window, self._index = Window(self.reference), index
            for folder in self._folder.glob(f"{self.reference.id[:16]}-*"):
                if int(folder.name.rpartition("-")[2]) < index - _KEPT:
                    shutil.rmtree(folder, ignore_errors=True)  # other replicas remove it, too

    def save(self) -> None:
        """Write the window."""
        if self._window.rows:
            path = self._path(self._index) / f"{self._own}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(self._window.to_json()).encode())

    def _path(self, index: int) -> Path:
        return self._folder / f"{self.reference.id[:16]}-{index}"

    def over(self) -> Window | None:
        """Return the last window that is over, once; None if there is no new one, or it has no rows.

        It has been over for so long that the other replicas have saved theirs.
        """
        index = self.at(time.time() - 2 * _SAVED_EVERY) - 1
        if index <= self._judged:
            return None
        self._judged = index
        return self._merged(index)

    def _merged(self, index: int) -> Window | None:
        """Return a window of all replicas; None if it has no rows."""
        whole, folder = Window(self.reference), self._path(index)
        for file in sorted(folder.glob("*.json")) if folder.is_dir() else []:
            if index == self._index and file.stem == self._own:
                continue
            try:
                whole.merge(Window.from_json(json.loads(file.read_bytes()), self.reference))
            except (OSError, ValueError, KeyError, TypeError, TrainwrightError):
                log.warning("a window of another replica cannot be read: %s", file.name)
        with self._lock:
            if index == self._index:
                whole.merge(self._window)
        return whole if whole.rows else None

    def last(self) -> Iterator[Window]:
        """Yield the windows of the last time, the one that is not over last."""
        for index in range(self._index - _KEPT + 1, self._index + 1):
            if (window := self._merged(index)) is not None:
                yield window


class Watch:
    """The windows of the rows that the models of a service have answered.

    Those of each run are compared with its own reference; the metrics are those of the main model.

    Args:
        folder: The folder that the replicas share.
        seconds: The length of a window.
        alarm_rate: The probability of an alarm in a window without drift.
        metrics: Gets the verdict on the last window.
        main: Returns the model that is the main one now.
    """

    noun = "windows of drift"

    def __init__(
        self,
        folder: Path,
        seconds: float,
        alarm_rate: float,
        metrics: Metrics,
        main: Callable[[], ServedModel],
    ) -> None:
        self._folder = folder
        self._seconds = seconds
        self._alarm_rate = alarm_rate
        self._metrics = metrics
        self._main = main
        # Not the number of the process, which is the same in every container.
        self._own = uuid.uuid4().hex[:16]
        self._watched: dict[str, _Windows] = {}  # by run
        self._looked: dict[str, float] = {}  # when a reference was looked for
        self._saved = float("-inf")

    def take(self, model: ServedModel, rows: Any, records: Sequence[Record]) -> None:
        """Count rows."""
        if model.is_shadow or (watched := self._of(model)) is None:
            return
        watched.turn(records[-1].at)
        columns = model.predictor.watched(rows)
        seconds = [one.seconds for one in records]
        watched.add(columns, joined_answers(records), seconds, records[-1].at)

    def _of(self, model: ServedModel) -> _Windows | None:
        """Return the windows of a model; None if it has no reference, which is looked for now and then."""
        run = model.predictor.run_id
        if run in self._watched:
            return self._watched[run]
        if time.monotonic() - self._looked.get(run, float("-inf")) < _LOOKED_EVERY:
            return None
        self._looked[run] = time.monotonic()
        try:
            reference = kept_reference(model)
        except TrainwrightError as error:
            log.warning("drift is not watched: %s", error)
            return None
        if reference is None:
            return None
        self._watched[run] = _Windows(reference, self._folder, self._seconds, self._own)
        return self._watched[run]

    def tick(self) -> None:
        """Save the windows now and then, and judge those before."""
        is_due = time.monotonic() - self._saved >= _SAVED_EVERY
        for run, watched in self._watched.items():
            watched.turn(time.time())
            if is_due:
                watched.save()
            if (window := watched.over()) is not None:
                self._judge(run, compare(window, self._alarm_rate))
        if is_due:
            self._saved = time.monotonic()

    def close(self) -> None:
        """Save the windows."""
        for watched in self._watched.values():
            watched.save()

    def forget(self) -> None:
        """Take the verdict on a main model that is no more back."""
        self._metrics.drift_alarm.set(0)

    def _judge(self, run: str, drift: Drift) -> None:
        """Show a verdict in the metrics and the log, which names columns and never what rows hold."""
        if run == self._main().predictor.run_id:
            self._metrics.drift_alarm.set(drift.verdict == "drift")
            for column in drift.columns:
                self._metrics.drift_score.labels(column.name).set(column.score)
        if names := [repr(column.name) for column in drift.drifted]:
            more = f" and {len(names) - _SAID} columns more" if len(names) > _SAID else ""
            shown = ", ".join(names[:_SAID])
            log.warning("drift in %d rows of run %s: %s%s (see /drift)", drift.rows, run, shown, more)

    def report(self) -> dict[str, Any]:
        """Return the windows of the last time of the main model, the one that is not over last.

        Raises:
            RequestError: Nothing is watched yet.
        """
        run = self._main().predictor.run_id
        if (watched := self._watched.get(run)) is None:
            raise RequestError(
                503,
                "not_watched",
                f"there is no window of run {run} yet: its training rows are being read, or nothing was "
                "predicted (the log says if they cannot be read)",
                headers={"Retry-After": "5"},
            )
        windows = [compare(one, self._alarm_rate).to_json() for one in watched.last()]
        return {
            "run": watched.reference.run,
            "window_seconds": self._seconds,
            "drifted": any(one["verdict"] == "drift" for one in windows),
            "windows": windows,
        }


def kept_reference(model: ServedModel) -> Reference | None:
    """Return the reference that is kept with a model; None if there is none yet.

    Raises:
        CheckpointError: It is damaged.
    """
    found = model.predictor.run
    if isinstance(found, ArtifactDir):
        is_there = artifact_reference(found.path).is_file()
        return reference_of(found, model.predictor) if is_there else None
    kept = found.read_json(FILE)
    return Reference.from_json(kept) if kept else None
