"""Windows of served rows, compared with the training rows: drift while it happens.

Replicas share a folder. Each writes the counts of its rows for each window of time there, and any of them
adds up those of all. A window is judged when it is over, so that the stated rate of false alarms holds;
before that, `/drift` shows what it holds so far.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
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


class Watch:
    """The windows of the rows that one model has answered.

    Args:
        folder: The folder that the replicas share.
        seconds: The length of a window.
        alarm_rate: The probability of an alarm in a window without drift.
        metrics: Gets the verdict on the last window.
    """

    def __init__(self, folder: Path, seconds: float, alarm_rate: float, metrics: Metrics) -> None:
        self._folder = folder
        self._seconds = seconds
        self._alarm_rate = alarm_rate
        self._metrics = metrics
        self._model: ServedModel | None = None
        self._reference: Reference | None = None
        self._window: Window | None = None
        self._index = 0
        self._judged = -1
        self._saved = self._looked = float("-inf")

    def take(self, model: ServedModel, rows: Any, records: Sequence[Record]) -> None:
        """Count rows of the model that is watched: the one that answered last, of several runs."""
        if model.is_shadow or not self._is_ready(model):
            return
        self._turn(records[-1].at)
        assert self._window is not None, "a reference has a window"
        columns = model.predictor.watched(rows)
        self._window.add(columns, joined_answers(records), [one.seconds for one in records], records[-1].at)

    def _is_ready(self, model: ServedModel) -> bool:
        """Return whether there is a reference; it is looked for now and then."""
        if model is self._model and self._reference is not None:
            return True
        if time.monotonic() - self._looked < _LOOKED_EVERY:
            return False
        self._looked = time.monotonic()
        try:
            reference = kept_reference(model)
        except TrainwrightError as error:
            log.warning("drift is not watched: %s", error)
            return False
        if reference is None:
            return False
        self._save()
        self._model, self._reference, self._window = model, reference, Window(reference)
        self._index = self._at(time.time())
        return True

    def _at(self, moment: float) -> int:
        return int(moment // self._seconds)

    def _turn(self, moment: float) -> None:
        """Begin a new window if the time of this one is over."""
        if self._reference is None or (index := self._at(moment)) <= self._index:
            return
        self._save()
        self._window, self._index = Window(self._reference), index

    def tick(self) -> None:
        """Save the window now and then, and judge the one before."""
        self._turn(time.time())
        if time.monotonic() - self._saved >= _SAVED_EVERY:
            self._save()
        self._judge()

    def close(self) -> None:
        """Save the window."""
        self._save()

    def _save(self) -> None:
        self._saved = time.monotonic()
        if self._window is None or not self._window.rows:
            return
        path = self._path(self._index) / f"{os.getpid()}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(self._window.to_json()).encode())

    def _path(self, index: int) -> Path:
        assert self._reference is not None, "a window has a reference"
        return self._folder / f"{self._reference.id[:16]}-{index}"

    def _judge(self) -> None:
        """Judge the last window that has been over for so long that the other replicas have saved theirs."""
        index = self._at(time.time() - 2 * _SAVED_EVERY) - 1
        if self._reference is None or index <= self._judged:
            return
        self._judged = index
        found = self._merged(index)
        if found is None:
            return
        drift = compare(found, self._alarm_rate)
        self._metrics.drift_alarm.set(drift.verdict == "drift")
        for column in drift.columns:
            self._metrics.drift_score.labels(column.name).set(column.score)
        if drift.lines:
            more = (
                f" (and {len(drift.lines) - _SAID} columns more: /drift)" if len(drift.lines) > _SAID else ""
            )
            log.warning("drift in %d rows: %s%s", drift.rows, "; ".join(drift.lines[:_SAID]), more)

    def _merged(self, index: int) -> Window | None:
        """Return the window of all replicas; None if it has no rows."""
        assert self._reference is not None, "the caller checks it"
        own, whole = f"{os.getpid()}.json", Window(self._reference)
        folder = self._path(index)
        for file in sorted(folder.glob("*.json")) if folder.is_dir() else []:
            if index == self._index and file.name == own:
                continue
            try:
                whole.merge(Window.from_json(json.loads(file.read_bytes()), self._reference))
            except (OSError, ValueError, KeyError, TypeError, TrainwrightError):
                log.warning("a window of another replica cannot be read: %s", file.name)
        if index == self._index and self._window is not None:
            whole.merge(self._window)
        return whole if whole.rows else None

    def report(self) -> dict[str, Any]:
        """Return the windows of the last time, the one that is not over last.

        Raises:
            RequestError: Nothing is watched yet.
        """
        if self._reference is None:
            raise RequestError(
                503,
                "not_watched",
                "there is no window yet: the training rows are being read, or nothing was predicted "
                "(the log says if they cannot be read)",
                headers={"Retry-After": "5"},
            )
        windows = [one.to_json() for one in self._windows()]
        return {
            "run": self._reference.run,
            "window_seconds": self._seconds,
            "drifted": any(one["verdict"] == "drift" for one in windows[:-1]),
            "windows": windows,
        }

    def _windows(self) -> Iterator[Drift]:
        for index in range(self._index - _KEPT + 1, self._index + 1):
            if (window := self._merged(index)) is not None:
                yield compare(window, self._alarm_rate)


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
