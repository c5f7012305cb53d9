"""One process life of a run that another trainer makes: journal, trackers, checkpoints, result."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainyard.callbacks.resources import Resources
from trainyard.engine.journal import Journal
from trainyard.engine.writer import PendingWrite, Writer
from trainyard.integrations.checkpoints import Checkpoint, TrainerCheckpoints
from trainyard.integrations.description import plain
from trainyard.records.journal import finite, read
from trainyard.records.rundir import RunDir
from trainyard.redact import redacted
from trainyard.runs.manifest import NAME
from trainyard.runs.outcome import write_report
from trainyard.trackers.feed import Feeders
from trainyard.trackers.feed.card import read_run

log = logging.getLogger("trainyard")
Json = dict[str, Any]


@dataclass(frozen=True)
class Saved:
    """A checkpoint that the trainer has written, or (`wait` returns when it has) is writing."""

    path: Path
    step: int
    epochs: float
    resumable: bool = True
    wait: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Ending:
    """How far a training came.

    `samples` are those of an epoch; `best` is as in `result.json`; `is_best`: the final weights are the best model's.
    """

    step: int
    epochs: float
    samples: int | None = None
    digest: str | None = None
    best: Json | None = None
    is_best: bool = False


class Attempt:
    """Begins when it is made, the run being owned and its config and manifest written; `end` ends it.

    Methods raise OSError where the disk does; they are for one thread.
    """

    def __init__(self, run: RunDir, step: int, train_seconds: float = 0.0) -> None:
        """`step` is where the training goes on; `train_seconds` is what it took up to there."""
        self.run = run
        self.number = run.next_attempt()
        self.last_step = step
        self._started, self._begun = time.time(), time.monotonic() - train_seconds
        self._record(None)
        self._journal = Journal(run.journal, self.number, step)
        self._checkpoints = TrainerCheckpoints(run.path)
        self._writer = Writer()
        self._resources = Resources(self._system)
        self._result: Json = {}
        self._feeders = self._start_feeders()

    def _start_feeders(self) -> Feeders:
        feeders = Feeders(self.run.path, [name for name, _ in read_run(self.run.path).trackers])
        feeders.start()
        return feeders

    def values(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """A record of kind `metrics`, or `evaluation` with names that have `val_` or `test_` before them."""
        self.last_step = max(step, self.last_step)
        self._values(kind, step, values)
        if kind == "metrics":
            self._resources.on_log(step, {})
        self._tell_failures(step)

    def event(self, step: int, name: str, **detail: Any) -> None:
        self._journal.event(step, name, **plain(detail))
        self._journal.flush()

    def commit(self, saved: Saved) -> None:
        """Has a checkpoint verified while the training goes on."""
        self.last_step = max(saved.step, self.last_step)
        self._journal.flush()
        seconds = time.monotonic() - self._begun
        checkpoint = Checkpoint(
            saved.path.absolute(), saved.step, self.number, saved.epochs, seconds, saved.resumable
        )

        def work() -> None:
            saved.wait()
            self._journal.sync()
            self._checkpoints.commit(checkpoint)

        self._writer.submit(PendingWrite(saved.step, work, replaceable=False))

    def end(self, status: str, ending: Ending, error: str = "") -> None:
        """Writes the result and the report, and gives the run up."""
        try:
            self._writer.drain()
            self._tell_failures(ending.step)
            self._writer.close()
            self._checkpoints.prune()
            if error:
                self.event(ending.step, status, message=redacted(error))
            self._journal.flush()
            self._result = self._standing(status, ending) | ({"error": redacted(error)} if error else {})
            self._publish()
        finally:
            self._record(status, error)
            self.run.release()

    def late(self, kind: str, values: Mapping[str, Any]) -> None:
        """What comes after the training; an evaluation is of the final weights."""
        self.run.acquire()
        try:
            best = self._result["best"] if self._result["evaluated"] == "best" else None
            self._values(kind, best["step"] if best else self._result["steps"], values)
            found = {name: finite(value) for name, value in _numbers(values).items() if _is_metric(name)}
            if kind == "evaluation" and found:
                before = (
                    self._result["metrics"] if self._result["evaluated"] else {}
                )  # those of earlier weights
                self._result |= {"metrics": before | found, "evaluated": self._result["evaluated"] or "final"}
            self._feeders = self._start_feeders()
            self._publish()
        finally:
            self.run.release()

    def _publish(self) -> None:
        self.run.write("result.json", self._result)
        write_report(self.run)
        self._journal.end(self._result["steps"], self._result["status"])
        for warning in self._feeders.finish():
            log.warning("%s", warning)

    def _values(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        numbers = _numbers(values)
        self._journal.values(kind, step, numbers)
        if others := {
            name: value for name, value in values.items() if name not in numbers and not _is_nested(value)
        }:
            self._journal.event(step, "not_a_number", values=plain(others))
        self._journal.flush()

    def _system(self, step: int, values: Mapping[str, Any]) -> None:
        self._journal.values("metrics", step, {f"system_{name}": value for name, value in values.items()})

    def _tell_failures(self, step: int) -> None:
        for saved, message in self._writer.failures():
            log.warning("%s", message)
            self._journal.event(step, "checkpoint_failed", saved_step=saved, message=message)

    def _standing(self, status: str, ending: Ending) -> Json:
        seconds = time.monotonic() - self._begun
        rate = ending.samples * ending.epochs / max(1e-9, seconds) if ending.samples else None
        return {
            "status": status,
            "run_id": self.run.id,
            "experiment": self.run.experiment,
            "steps": ending.step,
            "epochs": ending.epochs,
            **self._evaluated(ending),
            "best": ending.best,
            "digest": ending.digest,
            "attempts": self.number,
            "determinism": self.run.read(NAME)["determinism"],
            "train_seconds": seconds,
            **({} if rate is None else {"samples_per_second": rate}),
        }

    def _evaluated(self, ending: Ending) -> Json:
        """The metrics of the final weights or, where they were not evaluated, the last ones there are."""
        found: dict[int, Json] = {}
        for record in read(self.run.journal):
            if record["kind"] == "evaluation":
                metrics = {name: value for name, value in record["values"].items() if _is_metric(name)}
                found.setdefault(record["step"], {}).update(metrics)
        last = max(found, default=0)
        if ending.is_best and ending.best and ending.best["step"] in found:
            return {"metrics": found[ending.best["step"]], "evaluated": "best"}
        return {
            "metrics": found.get(last, {}),
            "evaluated": "final" if found and last == ending.step else None,
        }

    def _record(self, status: str | None, error: str = "") -> None:
        record = {
            "attempt": self.number,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "working_directory": str(Path.cwd()),
            "started": self._started,
            "status": status,
            "ended": time.time() if status else None,
        }
        self.run.write(
            f"attempts/{self.number:04d}.json", record | ({"error": redacted(error)} if error else {})
        )


def _is_metric(name: str) -> bool:
    return name.startswith(("val_", "test_"))


def _numbers(values: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The values that are numbers, those of nested mappings by their dotted names."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if _is_nested(value):
            found |= _numbers(value, f"{prefix}{name}.")
        elif (
            isinstance(value, bool | int | float) or getattr(value, "shape", None) == ()
        ):  # the latter of NumPy or torch
            found[prefix + name] = float(value)
    return found


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping)
